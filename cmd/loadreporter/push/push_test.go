package push

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"
)

// grid returns n times from 0, d apart.
func grid(n int, d time.Duration) []time.Duration {
	all := make([]time.Duration, n)
	for i := range all {
		all[i] = time.Duration(i) * d
	}
	return all
}

func TestDeliversAtOnceAndThenOnAGrid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlant(t, Options{}), &router{}
		p.serve(addrA, r)
		began := time.Now()
		p.register(addrA, 300*ms, time.Minute)
		pass(3 * time.Second)
		if got := r.times(began); !slices.Equal(got, grid(11, 300*ms)) {
			t.Errorf("reports at %v", got)
		}
		if r.conns != 1 || r.streams != 1 {
			t.Errorf("%d connections, %d streams, want one of each", r.conns, r.streams)
		}
		targets, _ := p.Targets()
		if len(targets) != 1 || !targets[0].Connected || targets[0].Reports != 11 || targets[0].Addr != addrA {
			t.Errorf("targets %+v", targets)
		}
	})
}

// Renewals that are faster than reports silence upstream's reporter.
func TestRenewalsDoNotShiftReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlant(t, Options{}), &router{}
		p.serve(addrA, r)
		began := time.Now()
		for range 30 {
			p.register(addrA, 300*ms, time.Second)
			pass(100 * ms)
		}
		if got := r.times(began); !slices.Equal(got, grid(11, 300*ms)) {
			t.Errorf("reports at %v", got)
		}
		if r.streams != 1 {
			t.Errorf("%d streams", r.streams)
		}
	})
}

func TestRenewalsOfAnyKindStarveNobody(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		intervals := rapid.SliceOfN(rapid.IntRange(100, 1000), 1, 4).Draw(rt, "intervals")
		each := rapid.IntRange(10, 900).Draw(rt, "each")
		synctest.Test(t, func(t *testing.T) {
			p, r := newPlant(t, Options{}), &router{}
			p.serve(addrA, r)
			for i := range 10_000 / each {
				p.register(addrA, time.Duration(intervals[i%len(intervals)])*ms, time.Minute)
				pass(time.Duration(each) * ms)
			}
			longest := time.Duration(0)
			got := r.times(time.Now())
			for i := 1; i < len(got); i++ {
				longest = max(longest, got[i]-got[i-1])
			}
			if bound := time.Duration(slices.Max(intervals)) * ms; longest > bound || len(got) < 5 {
				t.Fatalf("%d reports, %v without one, the longest interval is %v", len(got), longest, bound)
			}
		})
	})
}

func TestChangedIntervalIsTakenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlant(t, Options{}), &router{}
		p.serve(addrA, r)
		began := time.Now()
		p.register(addrA, time.Second, time.Minute)
		pass(1500 * ms)
		p.register(addrA, 200*ms, time.Minute)
		pass(300 * ms)
		// The last report was at 1 s, so the next one is overdue.
		want := []time.Duration{0, time.Second, 1500 * ms, 1700 * ms}
		if got := r.times(began); !slices.Equal(got, want) {
			t.Errorf("reports at %v, want %v", got, want)
		}
		if p.wanted(addrA.String()) != 200*ms {
			t.Errorf("wants %v of the source", p.wanted(addrA.String()))
		}
	})
}

func TestShortIntervalIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlant(t, Options{}), &router{}
		p.serve(addrA, r)
		began := time.Now()
		p.register(addrA, ms, time.Minute)
		pass(100 * ms)
		if got := r.times(began); !slices.Equal(got, grid(11, MinInterval)) {
			t.Errorf("reports at %v", got)
		}
	})
}

func TestLeaseEndCancelsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlant(t, Options{}), &router{}
		p.serve(addrA, r)
		p.register(addrA, 100*ms, 1500*ms)
		_, changed := p.Targets()
		pass(1499 * ms)
		if targets, _ := p.Targets(); len(targets) != 1 || len(r.endings()) != 0 {
			t.Fatalf("%v, %v before the lease ended", targets, r.endings())
		}
		pass(2 * ms)
		if targets, _ := p.Targets(); len(targets) != 0 {
			t.Errorf("%v after the lease ended", targets)
		}
		if ended := r.endings(); len(ended) != 1 || status.Code(ended[0]) != codes.Canceled {
			t.Errorf("the stream ended with %v, want that it was cancelled", ended)
		}
		select {
		case <-changed:
		default:
			t.Error("nobody is told that the table changed")
		}
		if p.wanted(addrA.String()) != 0 {
			t.Errorf("wants %v of the source", p.wanted(addrA.String()))
		}
		p.register(addrA, 100*ms, time.Second)
		pass(50 * ms)
		if streams, _ := r.count(); streams != 2 {
			t.Errorf("%d streams after another registration", streams)
		}
	})
}

func TestStatusOfTheRouterDecides(t *testing.T) {
	want := map[codes.Code]verdict{
		codes.Unavailable: verdictRetry, codes.DeadlineExceeded: verdictRetry, codes.ResourceExhausted: verdictRetry,
		codes.InvalidArgument: verdictReject, codes.Unauthenticated: verdictReject,
		codes.PermissionDenied: verdictReject, codes.Unimplemented: verdictReject,
	}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reg := prometheus.NewRegistry()
				p := newPlant(t, Options{Registerer: reg})
				r := &router{end: func(n int) (int, error) {
					if n > 0 {
						return -1, nil
					}
					return 2, status.Error(code, "because")
				}}
				p.serve(addrA, r)
				p.register(addrA, 100*ms, 10*time.Second)
				pass(2 * time.Second) // the end, and the pause of one retry
				streams, _ := r.count()
				targets, _ := p.Targets()
				v := want[code] // verdictEnd for all others
				if (streams == 2) != (v == verdictRetry) || (len(targets) == 0) != (v == verdictEnd) {
					t.Errorf("%d streams, targets %+v, want %v", streams, targets, v)
				}
				if got := testutil.ToFloat64(p.metrics.ended.WithLabelValues(v.String())); got != 1 {
					t.Errorf("%v ends are counted as %v", got, v)
				}
				if v == verdictReject && (len(targets) != 1 || targets[0].Err != "because") {
					t.Errorf("target %+v does not say why", targets)
				}
				p.register(addrA, 100*ms, 10*time.Second)
				pass(100 * ms)
				if streams, _ := r.count(); streams != 2 {
					t.Errorf("%d streams after another registration", streams)
				}
			})
		})
	}
}

// A registration between the opening and the rejection of a stream is later
// than what was rejected.
func TestRenewalDuringARejectedStreamCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, Options{})
		r := &router{end: func(n int) (int, error) {
			if n > 0 {
				return -1, nil
			}
			return 5, status.Error(codes.InvalidArgument, "no")
		}}
		p.serve(addrA, r)
		p.register(addrA, 100*ms, time.Minute)
		pass(150 * ms)
		p.register(addrA, 100*ms, time.Minute)
		pass(time.Second)
		if r.streams != 2 {
			t.Errorf("%d streams", r.streams)
		}
	})
}

func TestBackoff(t *testing.T) {
	for range 200 {
		var b backoff
		for _, want := range []time.Duration{250 * ms, 500 * ms, 1000 * ms, 2000 * ms, 4000 * ms, 5000 * ms, 5000 * ms} {
			if got := b.next(); got < want*8/10 || got > want*12/10 {
				t.Fatalf("waits %v, want %v give or take a fifth", got, want)
			}
		}
	}
}

// An outage makes the pauses longer; a connection makes them short again.
func TestBackoffBeginsAnewOnceConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlant(t, Options{}), &router{}
		stop := p.serve(addrA, r)
		p.register(addrA, 100*ms, time.Hour)
		pass(time.Second)
		stop()
		pass(time.Minute)
		stop = p.serve(addrA, r)
		pass(6 * time.Second)
		if streams, _ := r.count(); streams != 2 {
			t.Fatalf("%d streams 6 s after the router came back", streams)
		}
		stop()
		pass(10 * ms)
		p.serve(addrA, r)
		pass(300 * ms)
		if streams, _ := r.count(); streams != 3 {
			t.Errorf("%d streams 300 ms after a short outage", streams)
		}
		for i := 1; i < len(r.got); i++ {
			if r.got[i].SequenceId <= r.got[i-1].SequenceId {
				t.Fatalf("sequence %d after %d", r.got[i].SequenceId, r.got[i-1].SequenceId)
			}
		}
	})
}

func TestRouterThatNeverReadsDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, Options{})
		p.padding = strings.Repeat("x", 8<<10)
		deaf, good := &router{deaf: true}, &router{}
		p.serve(addrA, deaf)
		p.serve(addrB, good)
		p.register(addrA, 100*ms, time.Hour)
		began := time.Now()
		p.register(addrB, 100*ms, time.Hour)
		pass(time.Minute)
		if got := good.times(began); !slices.Equal(got, grid(601, 100*ms)) {
			t.Errorf("%d reports to the good router, the last at %v", len(got), got[len(got)-1])
		}
		streams, _ := deaf.count()
		if streams < 5 || streams > 30 {
			t.Errorf("%d streams to the deaf router in a minute, want one every few seconds", streams)
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestDialThatHangsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int32
		p := newPlant(t, Options{Dial: func(ctx context.Context, _ string) (net.Conn, error) {
			dials.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		p.register(addrA, 100*ms, time.Hour)
		pass(2900 * ms)
		if targets, _ := p.Targets(); targets[0].Err != "" || dials.Load() != 1 {
			t.Fatalf("%+v, %d dials before the time-out", targets[0], dials.Load())
		}
		pass(time.Second)
		targets, _ := p.Targets()
		if targets[0].Err == "" || targets[0].Connected || dials.Load() != 2 {
			t.Errorf("%+v, %d dials after it", targets[0], dials.Load())
		}
	})
}

func TestRefusedDialSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, Options{Dial: func(context.Context, string) (net.Conn, error) {
			return nil, errors.New("nobody is there")
		}})
		p.register(addrA, 100*ms, time.Hour)
		pass(100 * ms)
		if targets, _ := p.Targets(); !strings.Contains(targets[0].Err, "nobody is there") {
			t.Errorf("%+v", targets[0])
		}
	})
}

func TestHurryComesBetweenAndShiftsNothing(t *testing.T) {
	tests := []struct {
		name     string
		interval time.Duration
		at       []time.Duration
		want     []time.Duration
	}{
		{"once", 100 * ms, []time.Duration{40 * ms}, []time.Duration{0, 40 * ms, 100 * ms, 200 * ms}},
		{"twice in an interval", 100 * ms, []time.Duration{40 * ms, 70 * ms}, []time.Duration{0, 40 * ms, 100 * ms, 200 * ms}},
		{"in two intervals", 100 * ms, []time.Duration{40 * ms, 170 * ms}, []time.Duration{0, 40 * ms, 100 * ms, 170 * ms, 200 * ms}},
		{"just after a report", 100 * ms, []time.Duration{3 * ms}, []time.Duration{0, 10 * ms, 100 * ms, 200 * ms}},
		{"just before a report", 100 * ms, []time.Duration{97 * ms}, []time.Duration{0, 97 * ms, 100 * ms, 200 * ms}},
		{"at the shortest interval", 10 * ms, []time.Duration{2 * ms, 3 * ms}, grid(21, 10*ms)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, r := newPlant(t, Options{}), &router{}
				p.serve(addrA, r)
				began := time.Now()
				p.register(addrA, test.interval, time.Minute)
				synctest.Wait()
				for _, at := range test.at {
					pass(time.Until(began.Add(at)))
					p.Hurry()
				}
				pass(time.Until(began.Add(200 * ms)))
				if got := r.times(began); !slices.Equal(got, test.want) {
					t.Errorf("reports at %v, want %v", got, test.want)
				}
			})
		})
	}
}

func TestFloodOfHurryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlant(t, Options{}), &router{}
		p.serve(addrA, r)
		p.register(addrA, 100*ms, time.Minute)
		for range 10_000 {
			p.Hurry()
			pass(ms / 10)
		}
		if _, reports := r.count(); reports < 20 || reports > 22 {
			t.Errorf("%d reports in a second at an interval of 100 ms", reports)
		}
	})
}

func TestRegisterIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, Options{MaxTargets: 2})
		for i := range 2 {
			a := netip.AddrPortFrom(addrA.Addr(), uint16(1+i))
			p.serve(a, &router{})
			p.register(a, time.Second, time.Minute)
		}
		pass(time.Second)
		if err := p.Register(Registration{addrB, time.Second, time.Minute}); !errors.Is(err, ErrFull) {
			t.Errorf("error %v of a third target", err)
		}
		p.register(netip.AddrPortFrom(addrA.Addr(), 2), time.Second, time.Minute)
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		if err := p.Register(Registration{addrA, time.Second, time.Minute}); !errors.Is(err, ErrClosed) {
			t.Errorf("error %v after the end", err)
		}
	})
}

// Targets that never answer must not keep the routers away that do: not for
// longer than an hour, and not while there are others.
func TestTargetsThatNeverAnswerGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead := func(i int) netip.AddrPort { return netip.AddrPortFrom(addrA.Addr(), uint16(100+i)) }
		reg := prometheus.NewRegistry()
		p, r := newPlant(t, Options{MaxTargets: 3, Registerer: reg}), &router{}
		stop := p.serve(addrA, r)
		p.register(addrA, 100*ms, time.Minute)
		pass(time.Second)
		for i := range 5 {
			p.register(dead(i), 10*ms, math.MaxInt64)
			pass(ms)
		}
		addrs := func() (all []netip.AddrPort) {
			targets, _ := p.Targets()
			for i := range targets {
				all = append(all, targets[i].Addr)
				if left := time.Until(targets[i].Expires); left > MaxLease {
					t.Errorf("%s has a lease of %v", targets[i].Addr, left)
				}
			}
			return all
		}
		if got, want := addrs(), []netip.AddrPort{dead(3), dead(4), addrA}; !slices.Equal(got, want) {
			t.Errorf("targets %v, want %v", got, want)
		}
		if p.wanted(dead(0).String()) != 0 || p.wanted(dead(4).String()) != 10*ms {
			t.Error("samples are wanted for one that gave way, or not for one that is there")
		}
		// One that was connected once stays, even while it is away.
		stop()
		pass(time.Second)
		p.register(dead(5), time.Second, time.Minute)
		if got, want := addrs(), []netip.AddrPort{dead(4), dead(5), addrA}; !slices.Equal(got, want) {
			t.Errorf("targets %v, want %v", got, want)
		}
		if n := testutil.ToFloat64(p.metrics.evicted); n != 4 {
			t.Errorf("%v gave way, want 4", n)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	for _, opts := range []Options{{}, {Report: (&plant{}).report, MaxTargets: -1}} {
		if _, err := New(opts); err == nil {
			t.Errorf("%+v is taken", opts)
		}
	}
	s, err := New(Options{Report: (&plant{}).report})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Register(Registration{addrA, time.Second, time.Second}); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v before Run", err)
	}
}

func TestTargetsLeftByAnOwnerAreReportedToAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &router{}
		var p *plant
		p = newPlant(t, Options{Dial: func(ctx context.Context, a string) (net.Conn, error) { return p.dial(ctx, a) }})
		p.serve(addrA, r)
		began := time.Now()
		p.register(addrA, 100*ms, 450*ms)
		pass(time.Second)
		if got := r.times(began); !slices.Equal(got, grid(5, 100*ms)) {
			t.Errorf("reports at %v", got)
		}

		q := newPlant(t, Options{Dial: func(ctx context.Context, a string) (net.Conn, error) { return p.dial(ctx, a) }},
			Registration{addrA, 100 * ms, 450 * ms})
		pass(time.Second)
		if _, reports := r.count(); reports != 10 {
			t.Errorf("%d reports with those for a target that was left", reports)
		}
		if err := q.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestMissedTimesAreSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlant(t, Options{}), &router{}
		p.serve(addrA, r)
		began := time.Now()
		p.register(addrA, 100*ms, time.Minute)
		pass(50 * ms)
		p.slowDown(350 * ms)
		pass(100 * ms)
		p.slowDown(0)
		pass(500 * ms)
		// The one that is due at 100 ms, and one for all that passed meanwhile.
		want := []time.Duration{0, 450 * ms, 450 * ms, 500 * ms, 600 * ms}
		if got := r.times(began); !slices.Equal(got, want) {
			t.Errorf("reports at %v, want %v", got, want)
		}
		if got := testutil.ToFloat64(p.metrics.skipped); got != 2 {
			t.Errorf("%v times counted as skipped, want 300 and 400 ms", got)
		}
	})
}

func TestTargetsAreSorted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, Options{})
		var want []string
		for i := range 9 {
			addr := netip.MustParseAddrPort(fmt.Sprintf("192.0.2.%d:1", 9-i))
			p.register(addr, time.Second, time.Minute)
			want = append(want, addr.String())
		}
		slices.Reverse(want)
		targets, _ := p.Targets()
		for i, target := range targets {
			if target.Addr.String() != want[i] {
				t.Errorf("%s at %d, want %s", target.Addr, i, want[i])
			}
		}
	})
}

// Who samples for a target is told when it is reported to, by each stream and
// interval.
func TestTimesOfReportsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []time.Duration
		began := time.Now()
		p := newPlant(t, Options{Align: func(target string, due time.Time) {
			mu.Lock()
			defer mu.Unlock()
			if target != addrA.String() {
				t.Errorf("told of %s", target)
			}
			told = append(told, due.Sub(began))
		}})
		stop := p.serve(addrA, &router{})
		p.register(addrA, 100*ms, time.Minute)
		pass(250 * ms)
		p.register(addrA, 100*ms, time.Minute)
		p.register(addrA, 300*ms, time.Minute)
		pass(200 * ms)
		mu.Lock()
		if want := []time.Duration{100 * ms, 500 * ms}; !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
		mu.Unlock()
		stop()
		p.serve(addrA, &router{})
		pass(10 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if len(told) != 3 {
			t.Errorf("told %v with another stream", told)
		}
	})
}
