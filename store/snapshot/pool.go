package snapshot

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/loadplane/loadplane/store"
)

// PoolKey names a pool.
type PoolKey struct {
	// Model is empty for workers that name none.
	Model string
	Role  store.Role
}

// Pool is the load of all workers of one model and role. It is immutable.
type Pool struct {
	Key PoolKey
	// Workers counts all; the four after it count by freshness.
	Workers, Fresh, Stale, Missing, Unreachable int
	// Expected counts the workers that coverage is out of: all but those that
	// cannot be heard or have no engine.
	Expected int
	// Heard counts the workers with a report, whatever its age.
	Heard int
	// Aggregate sums over the fresh workers; nil without any.
	Aggregate *store.Aggregate
	// HottestWorker and HottestRank name the highest load; the id is empty
	// without one.
	HottestWorker string
	HottestRank   int32
	// TokenUsageImbalance and RequestImbalance are largest over mean of the
	// fresh workers; below 0 for unknown.
	TokenUsageImbalance, RequestImbalance float64
	// Version is the one in which the pool last changed, of those that were
	// built.
	Version uint64
	// Encoded is a whole loadplane.v1.Pool message.
	Encoded []byte
}

// PoolGrave says that a pool left the view. It is immutable.
type PoolGrave struct {
	Key PoolKey
	// Version is the one that the pool is gone from.
	Version uint64

	at store.Instant
}

// Pool graves are kept for a time and up to a number.
const (
	keepPoolGraves = time.Minute
	maxPoolGraves  = 20_000
)

// Coverage returns fresh over expected workers, and false without any.
func (p *Pool) Coverage() (float64, bool) {
	if p.Expected == 0 {
		return 0, false
	}
	return float64(p.Fresh) / float64(p.Expected), true
}

// pools groups entries by model and role, sorted by both.
func pools(entries []*store.Entry) []*Pool {
	members := map[PoolKey][]*store.Entry{}
	for _, e := range entries {
		for _, k := range poolsOf(e.Worker) {
			members[k] = append(members[k], e)
		}
	}
	out := make([]*Pool, 0, len(members))
	for k, es := range members {
		out = append(out, pool(k, es))
	}
	slices.SortFunc(out, func(a, b *Pool) int { return byKey(a.Key, b.Key) })
	return out
}

// poolsOf returns the pools of a worker.
func poolsOf(w *store.Worker) []PoolKey {
	if len(w.Models) == 0 {
		return []PoolKey{{Role: w.Role}}
	}
	keys := make([]PoolKey, len(w.Models))
	for i, m := range w.Models {
		keys[i] = PoolKey{m, w.Role}
	}
	return keys
}

func byKey(a, b PoolKey) int {
	return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Role, b.Role))
}

// findPool returns a pool of a sorted list, nil where it is not there.
func findPool(sorted []*Pool, k PoolKey) *Pool {
	i, ok := slices.BinarySearchFunc(sorted, k, func(p *Pool, k PoolKey) int { return byKey(p.Key, k) })
	if !ok {
		return nil
	}
	return sorted[i]
}

// inherit takes over what did not change since last, and leaves graves of
// the pools that are gone.
func (s *Snapshot) inherit(last *Snapshot, now store.Instant) {
	for i, p := range s.Pools {
		if old := findPool(last.Pools, p.Key); old != nil && bytes.Equal(old.Encoded, p.Encoded) {
			s.Pools[i] = old
		}
	}
	graves := slices.Clip(last.PoolGraves)
	for _, p := range last.Pools {
		if findPool(s.Pools, p.Key) == nil {
			graves = append(graves, &PoolGrave{p.Key, s.Version, now})
		}
	}
	s.poolHorizon = last.poolHorizon
	for len(graves) > 0 && (len(graves) > maxPoolGraves || now.Sub(graves[0].at) > keepPoolGraves) {
		s.poolHorizon = graves[0].Version
		graves = graves[1:]
	}
	s.PoolGraves = graves
}

func pool(k PoolKey, entries []*store.Entry) *Pool {
	p := &Pool{Key: k, Workers: len(entries), TokenUsageImbalance: -1, RequestImbalance: -1}
	var fresh []*store.Aggregate
	hottest := -1.0
	for _, e := range entries {
		p.count(e)
		if e.Freshness != store.Fresh || e.Aggregate == nil {
			continue
		}
		fresh = append(fresh, e.Aggregate)
		if heat, ok := heatOf(e.Aggregate); ok && heat > hottest {
			hottest, p.HottestWorker, p.HottestRank = heat, e.Worker.ID, e.Aggregate.HottestRank
		}
	}
	if p.Aggregate = store.Combine(fresh); p.Aggregate != nil {
		if v, ok := p.Aggregate.Float(store.SumTokenUsageImbalance); ok {
			p.TokenUsageImbalance = v
		}
		if v, ok := p.Aggregate.Float(store.SumRequestImbalance); ok {
			p.RequestImbalance = v
		}
	}
	p.Encoded = encodePool(p)
	return p
}

// heatOf is what the hottest worker is chosen by: its hottest rank's usage.
func heatOf(a *store.Aggregate) (float64, bool) {
	if a.HottestBy == "" {
		return 0, false
	}
	return a.Float(store.SumMaxRankTokenUsage)
}

func (p *Pool) count(e *store.Entry) {
	switch e.Freshness {
	case store.Fresh:
		p.Fresh++
	case store.Stale:
		p.Stale++
	case store.Unreachable:
		p.Unreachable++
	default:
		p.Missing++
	}
	if e.Load != nil {
		p.Heard++
	}
	if e.Worker.Hearable() && e.Reason != store.ReasonNoEngine {
		p.Expected++
	}
}
