package balance

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/client/pick/credit"
)

// failures knows the workers that did not take a request lately. The zero value
// has none. Its methods may be called from any goroutine.
type failures struct {
	// some says that until is not empty, without the lock.
	some  atomic.Bool
	mu    sync.Mutex
	until map[string]time.Time
}

// note has a worker left alone for the time of the options.
func (f *failures) note(workerID string, o Options) {
	if o.Cooldown < 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.until == nil {
		f.until = map[string]time.Time{}
	}
	f.until[workerID] = o.Pick.Now().Add(o.Cooldown)
	f.some.Store(true)
}

// add returns avoid with the workers that failed lately. It does not change
// avoid.
func (f *failures) add(avoid []credit.Target, now time.Time) []credit.Target {
	if !f.some.Load() {
		return avoid
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	avoid = avoid[:len(avoid):len(avoid)]
	for id, until := range f.until {
		if !now.Before(until) {
			delete(f.until, id)
			continue
		}
		avoid = append(avoid, credit.Target{WorkerID: id, Rank: pick.NoRank})
	}
	f.some.Store(len(f.until) > 0)
	return avoid
}
