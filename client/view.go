package client

import (
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// View is the state of all workers at one version, with the newest receipts.
// It is immutable: every method may be called from any goroutine, and nothing
// that they return may be changed.
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
