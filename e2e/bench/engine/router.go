package engine

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/e2e/bench/gaps"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
)

// Router is a watcher that decodes and applies every message, and measures how
// old a report is when its worker is in the view. It is safe for concurrent
// use.
type Router struct {
	mu     sync.Mutex
	since  int64
	ages   *hdrhistogram.Histogram
	deltas uint64
	err    error
	// came are the reports as they came into the view, by worker.
	came *gaps.Recorder[string]
}

// NewRouter returns a router that records nothing before Record.
func NewRouter() *Router {
	return &Router{since: 1 << 62, ages: newHistogram(), came: gaps.New[string]()}
}

// Run watches an API until ctx ends.
func (r *Router) Run(ctx context.Context, url string) error {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DisableCompression: true}
	defer transport.CloseIdleConnections()
	c := loadplanev1connect.NewSnapshotServiceClient(&http.Client{Transport: transport}, url)
	stream, err := c.WatchSnapshots(ctx, &pb.WatchSnapshotsRequest{ClientId: "bench"})
	if err != nil {
		return r.fail(err)
	}
	defer func() { _ = stream.Close() }()
	var replica client.Replica
	replica.Resume()
	var changed []*pb.Worker
	for stream.Receive() {
		m := stream.Msg()
		changed = append(changed, m.GetDelta().GetWorkers()...)
		view, err := replica.Apply(m, time.Now())
		if err != nil {
			return r.fail(err)
		}
		if view.Version() == m.GetCursor().GetVersion() {
			r.note(changed)
			changed = nil
		}
	}
	return r.fail(stream.Err())
}

func (r *Router) fail(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	return err
}

func (r *Router) note(changed []*pb.Worker) {
	now := Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deltas++
	for _, w := range changed {
		if len(w.GetRanks()) == 0 {
			continue
		}
		due := w.GetRanks()[0].GetNumTotalTokens() - StampBase
		if due > 0 { // Others do not count.
			r.came.Note(w.GetWorkerId(), now)
		}
		if due >= r.since {
			_ = r.ages.RecordValue(min(max(now-due, 1), MaxTime)) // It fits.
		}
	}
}

// Record begins to record the reports that are due from now on, an interval
// apart.
func (r *Router) Record(interval time.Duration) {
	r.came.Record(interval, Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since, r.deltas = Now(), 0
	r.ages.Reset()
}

// Ages are the times from when a report was due to when its worker was in the
// router's view, microseconds. It is a plain value.
type Ages struct {
	Count, P50, P99, P999, Max int64
	// Messages is how many came.
	Messages uint64
	// Gaps are the times between two reports of an engine in the view.
	Gaps gaps.Seen
	// Failure is what ended the watch; empty while it lasts.
	Failure string
}

// Ages returns what was recorded.
func (r *Router) Ages() Ages {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := Ages{
		Count: r.ages.TotalCount(), Max: r.ages.Max(), Messages: r.deltas, Gaps: r.came.Seen(Now()),
		P50: r.ages.ValueAtQuantile(50), P99: r.ages.ValueAtQuantile(99), P999: r.ages.ValueAtQuantile(99.9),
	}
	if r.err != nil {
		a.Failure = r.err.Error()
	}
	return a
}
