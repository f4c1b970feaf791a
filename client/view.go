package client

import (
	"cmp"
	"slices"
	"strings"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// View is the state of all workers at one version, with the newest receipts.
// It is immutable: every method may be called from any goroutine, and nothing
// that they return may be changed. No method allocates. Methods that take a
// worker want one of this view. The order of workers and ranks is that of their
// names; it is no ranking.
type View struct {
	state
	// at is when the message that made the view arrived, by the monotonic
	// clock.
	at time.Time
}

// Lineage names the history that Version belongs to.
func (v *View) Lineage() string { return v.cursor.GetLineage() }

// Epoch is the start of the plane that numbered the version, in Unix
// milliseconds.
func (v *View) Epoch() uint64 { return v.cursor.GetEpoch() }

// Version is the number of the state within its epoch.
func (v *View) Version() uint64 { return v.cursor.GetVersion() }

// Warming says that the plane has not yet heard the workers it expects.
func (v *View) Warming() bool { return v.warming }

// Digest is the sum of the workers' content hashes modulo 2^64.
func (v *View) Digest() uint64 { return v.digest }

// Workers returns the workers, sorted by worker_id.
func (v *View) Workers() []*pb.Worker { return v.workers }

// Pools returns the pools, sorted by model, then role.
func (v *View) Pools() []*pb.Pool { return v.pools }

// Worker returns a worker by its id; nil where it is not in the view.
func (v *View) Worker(id string) *pb.Worker {
	if i, ok := findWorker(v.workers, id); ok {
		return v.workers[i]
	}
	return nil
}

// Pool returns a pool by its key; nil where it is not in the view.
func (v *View) Pool(model string, role pb.Role) *pb.Pool {
	if i, ok := slices.BinarySearchFunc(v.pools, poolKey{model, role}, comparePool); ok {
		return v.pools[i]
	}
	return nil
}

// Receipt returns the receipt of a worker's last accepted report; nil where it
// was never heard.
func (v *View) Receipt(w *pb.Worker) *pb.WorkerLiveness { return v.receipts[w.GetRow()].WorkerLiveness }

// Valid says whether a worker is fresh and its report still young enough at
// now, a reading of this process's clock. A view that gets no messages any
// more turns invalid by itself, worker by worker.
func (v *View) Valid(w *pb.Worker, now time.Time) bool {
	r, heard := v.receipts[w.GetRow()]
	return w.GetFreshness() == pb.Freshness_FRESHNESS_FRESH && heard && now.Before(r.until)
}

// Freshness is the plane's judgement of a worker, and the reader's own at now:
// FRESH only while Valid, else STALE where the plane said FRESH. MISSING is a
// worker that never reported; it has no load, and that is not a load of zero.
func (v *View) Freshness(w *pb.Worker, now time.Time) pb.Freshness {
	f := w.GetFreshness()
	if f == pb.Freshness_FRESHNESS_FRESH && !v.Valid(w, now) {
		return pb.Freshness_FRESHNESS_STALE
	}
	return f
}

// ReceivedAt returns when the plane received a worker's last accepted report,
// by this process's clock and at the latest: one message's way is not
// subtracted. ok is false where the worker was never heard. Every worker has a
// time of its own; there is none for all.
func (v *View) ReceivedAt(w *pb.Worker) (at time.Time, ok bool) {
	r, ok := v.receipts[w.GetRow()]
	return r.received, ok
}

// SampledAt returns when the oldest rank sample of a worker's last accepted
// report was taken, by this process's clock and at the latest: the times of the
// engine's clock are only compared with each other. What was sent to the worker
// later is not in its numbers. ok is false where the engine does not say.
func (v *View) SampledAt(w *pb.Worker) (at time.Time, ok bool) {
	return v.receipts[w.GetRow()].sampled()
}

// ValidUntil returns when a worker turns invalid by itself, by this process's
// clock; Valid says whether it is valid at all. ok is false where the worker
// was never heard.
func (v *View) ValidUntil(w *pb.Worker) (at time.Time, ok bool) {
	r, ok := v.receipts[w.GetRow()]
	return r.until, ok
}

// ReportAge returns how long before now the plane received a worker's last
// accepted report. ok is false where the worker was never heard.
func (v *View) ReportAge(w *pb.Worker, now time.Time) (age time.Duration, ok bool) {
	r, ok := v.receipts[w.GetRow()]
	if !ok {
		return 0, false
	}
	return now.Sub(r.received), true
}

func comparePool(p *pb.Pool, k poolKey) int {
	return cmp.Or(strings.Compare(p.GetKey().GetModel(), k.model), cmp.Compare(p.GetKey().GetRole(), k.role))
}

// CountValid returns how many workers are valid at now.
func (v *View) CountValid(now time.Time) int {
	n := 0
	for _, w := range v.workers {
		if v.Valid(w, now) {
			n++
		}
	}
	return n
}

// Age returns how long ago the message that made the view arrived.
func (v *View) Age(now time.Time) time.Duration { return now.Sub(v.at) }
