package push

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func unreachable(r *pb.LoadReport) { r.Status = pb.ReportStatus_REPORT_STATUS_UNREACHABLE }

// The first report must not say unreachable just because the first sample is
// under way.
func TestFirstReportWaitsForTheFirstSample(t *testing.T) {
	const never = time.Hour
	for _, test := range []struct {
		name     string
		interval time.Duration
		// sampled is when there is a sample, and hurried says that it is told.
		sampled time.Duration
		hurried bool
		want    []time.Duration
	}{
		{"told of the sample", 300 * ms, 40 * ms, true, []time.Duration{40 * ms, 300 * ms, 600 * ms, 900 * ms, 1200 * ms}},
		{"not told of it", 100 * ms, 930 * ms, false, []time.Duration{1000 * ms, 1100 * ms, 1200 * ms}},
		{"sample before the next report", 100 * ms, 130 * ms, false, grid(13, 100*ms)[2:]},
		{"no sample", 400 * ms, never, false, []time.Duration{1000 * ms, 1200 * ms}},
		{"told of no sample", time.Hour, never, true, []time.Duration{1000 * ms}},
		{"there before", time.Hour, 0, false, []time.Duration{0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, r := newPlant(t, Options{}), &router{}
				p.serve(addrA, r)
				began := time.Now()
				p.reshape(func(r *pb.LoadReport) {
					if time.Since(began) < test.sampled {
						unreachable(r)
					}
				})
				p.register(addrA, test.interval, never)
				if pass(min(test.sampled, 500*ms)); test.hurried {
					p.Hurry()
				}
				pass(time.Until(began.Add(1250 * ms)))
				if got := r.times(began); !slices.Equal(got, test.want) {
					t.Errorf("reports at %v, want %v", got, test.want)
				}
				if r.streams != 1 {
					t.Errorf("%d streams", r.streams)
				}
			})
		})
	}
}

// Later streams tell at once that the engine is gone.
func TestOnlyTheFirstReportToATargetWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlant(t, Options{}), &router{}
		stop := p.serve(addrA, r)
		p.register(addrA, 100*ms, time.Hour)
		pass(2 * time.Second)
		p.reshape(unreachable)
		stop()
		pass(10 * ms)
		p.serve(addrA, r)
		pass(time.Second)
		if at, opened := r.at[len(r.at)-1], r.opened; len(opened) != 2 || !slices.ContainsFunc(r.at, opened[1].Equal) || at.Equal(opened[1]) {
			t.Errorf("streams opened at %v, reports at %v", opened, r.at)
		}
	})
}

// A stream stays what its first report said; planes end one that does not.
func TestAnotherEngineGetsAnotherStreamAtOnce(t *testing.T) {
	for name, change := range map[string]func(*pb.LoadReport){
		"source":  func(r *pb.LoadReport) { r.SourceInstanceId = "another" },
		"address": func(r *pb.LoadReport) { r.Worker.WorkerAddr = "another" },
		"role":    func(r *pb.LoadReport) { r.Worker.WorkerType = pb.WorkerType_WORKER_TYPE_DECODE },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, r := newPlant(t, Options{}), &router{}
				p.serve(addrA, r)
				began := time.Now()
				p.register(addrA, 100*ms, time.Hour)
				pass(250 * ms)
				p.reshape(change)
				pass(300 * ms)
				if got := r.times(began); !slices.Equal(got, grid(6, 100*ms)) {
					t.Errorf("reports at %v", got)
				}
				if r.streams != 2 || r.conns != 2 {
					t.Errorf("%d streams on %d connections, want 2 on 2", r.streams, r.conns)
				}
				if got := testutil.ToFloat64(p.metrics.ended.WithLabelValues(verdictAnew.String())); got != 1 {
					t.Errorf("%v ends are counted as %v", got, verdictAnew)
				}
				if targets, _ := p.Targets(); len(targets) != 1 || !targets[0].Connected {
					t.Errorf("targets %+v", targets)
				}
			})
		})
	}
}

func TestRouterThatDoesNotAnswerAFarewellDelaysTheNextStreamByItAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlant(t, Options{}), &router{rude: true}
		p.serve(addrA, r)
		began := time.Now()
		p.register(addrA, 100*ms, time.Hour)
		pass(50 * ms)
		p.reshape(func(r *pb.LoadReport) { r.SourceInstanceId = "another" })
		pass(time.Second)
		if want := []time.Time{began, began.Add(100*ms + farewell)}; !slices.EqualFunc(r.opened, want, time.Time.Equal) {
			t.Errorf("streams at %v, want %v", r.opened, want)
		}
	})
}

// An engine that is another one at each report must not cause a stream each.
func TestStreamsAnewAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlant(t, Options{}), &router{}
		p.serve(addrA, r)
		p.reshape(func(r *pb.LoadReport) { r.SourceInstanceId = string(rune('a' + r.SequenceId%2)) })
		p.register(addrA, 10*ms, time.Hour)
		pass(10 * time.Second)
		if streams, _ := r.count(); streams < 20 || streams > 55 {
			t.Errorf("%d streams in 10 s", streams)
		}
	})
}

// A registration that comes when the lease has just run out, and before the
// stream has heard of it, begins anew.
func TestRegistrationAtTheEndOfTheLeaseIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlant(t, Options{}), &router{}
		p.serve(addrA, r)
		p.register(addrA, 100*ms, time.Minute)
		pass(50 * ms)
		p.Set.mu.Lock()
		old := p.streams[addrA]
		if !old.lease.Stop() { // as when it fires
			t.Error("the lease is over")
		}
		p.Set.mu.Unlock()
		p.register(addrA, 100*ms, time.Minute)
		old.cancel() // what it does then
		pass(time.Second)
		targets, _ := p.Targets()
		if len(targets) != 1 || !targets[0].Connected || targets[0].Reports < 9 {
			t.Errorf("targets %+v a second after the registration", targets)
		}
		if got := testutil.ToFloat64(p.metrics.targets); got != 1 {
			t.Errorf("%v targets are counted", got)
		}
		if want := 100 * ms; p.wanted(addrA.String()) != want {
			t.Errorf("wants %v of the source, want %v", p.wanted(addrA.String()), want)
		}
	})
}

// A report that cannot be written ends its stream.
func TestReportThatCannotBeSentEndsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlant(t, Options{}), &router{}
		p.serve(addrA, r)
		p.register(addrA, 100*ms, time.Hour)
		pass(50 * ms)
		p.reshape(func(r *pb.LoadReport) { r.SourceInstanceId, r.LastError = "s", new(string); *r.LastError = "\xff" })
		pass(100 * ms)
		if targets, _ := p.Targets(); len(targets) != 0 || len(r.endings()) != 1 {
			t.Errorf("targets %+v, %d streams ended", targets, len(r.endings()))
		}
	})
}

func TestLatenessIsObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		p, r := newPlant(t, Options{Registerer: reg}), &router{}
		p.serve(addrA, r)
		p.register(addrA, 100*ms, time.Hour)
		pass(50 * ms)
		p.slowDown(150 * ms) // the report of 100 ms ends at 250 ms, so that of 200 ms is 50 ms late
		pass(200 * ms)
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "loadreporter_push_interval_error_seconds" {
				continue
			}
			if h := f.GetMetric()[0].GetHistogram(); h.GetSampleCount() != 2 || h.GetSampleSum() < .049 || h.GetSampleSum() > .051 {
				t.Errorf("%d reports were late by %v s together, want 2 by 0.05", h.GetSampleCount(), h.GetSampleSum())
			}
			return
		}
		t.Error("there is no such metric")
	})
}

// An end that hangs is given up.
func TestEndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		set, err := New(Options{
			Report: func(time.Time) *pb.LoadReport { <-release; return &pb.LoadReport{} },
			Dial:   func(context.Context, string) (net.Conn, error) { return nil, errors.New("gone") },
		})
		if err != nil {
			t.Fatal(err)
		}
		set.tasks.Go(func() { set.opts.Report(time.Now()) })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		if err := set.Run(ctx, nil); err == nil || time.Since(began) != shutdownTimeout || shutdownTimeout > 5*time.Second {
			t.Errorf("ended with %v after %v, want an error after %v", err, time.Since(began), shutdownTimeout)
		}
		close(release)
	})
}
