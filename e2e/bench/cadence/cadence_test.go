package cadence

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client/report"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A native reporter and a bare loop are told apart, and both have gaps; the
// reporter is granted the interval that it asks for.
func TestReceiver(t *testing.T) {
	r, err := NewReceiver()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	defer runs.Wait()
	defer stop()
	runs.Go(func() { _ = r.Serve() })
	defer r.Close()
	const interval = 20 * time.Millisecond
	reporter, err := report.New(report.Options{
		Address:      "http://" + r.Address(),
		Registration: &loadplanev1.RegisterRequest{Url: "http://127.0.0.1:1", ReportIntervalMs: uint32(interval.Milliseconds())},
		Report:       reports(),
		Logger:       slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	runs.Go(func() { _ = reporter.Run(ctx) })
	b := NewBare()
	runs.Go(func() {
		if err := b.Run(ctx, BareSpec{Address: r.Address(), Ranks: 2, Interval: interval}); err != nil {
			t.Error(err)
		}
	})
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	await := func(reports int) {
		t.Helper()
		if err := r.Await(within, reports, 2); err != nil {
			t.Fatal(err)
		}
	}
	await(2)
	r.Record(interval)
	b.Record(interval)
	await(5)
	// The bare loop may be later than the reporter.
	for r.Seen().Bare.Count < 3 && within.Err() == nil {
		await(int(r.Seen().Reports.Events) + 1)
	}
	s, ticks := r.Seen(), b.Ticks()
	if s.Reports.Count < 3 || s.Bare.Count < 3 || ticks.Count < 3 || s.Reports.Sources != 1 || s.Bare.Sources != 1 || s.Unhealthy != 0 {
		t.Errorf("%+v, ticks %+v", s, ticks)
	}
	short, over := context.WithCancel(t.Context())
	over()
	if err := r.Await(short, 1<<30, 2); err == nil {
		t.Error("a billion reports came")
	}
}

// reports makes healthy reports of two ranks.
func reports() func(time.Time) *loadplanev1.EngineReport {
	var sequence uint64
	return func(time.Time) *loadplanev1.EngineReport {
		sequence++
		m := &loadplanev1.EngineReport{SourceInstanceId: "a", Sequence: sequence, Status: loadplanev1.Status_STATUS_HEALTHY}
		for i := range int32(2) {
			m.Ranks = append(m.Ranks, &loadplanev1.RankSample{Load: &loadplanev1.RankLoad{DpRank: i}})
		}
		return m
	}
}
