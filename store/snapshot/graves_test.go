package snapshot

import (
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

// TestGravesTellWhatTheyForgot trims each kind without the other.
func TestGravesTellWhatTheyForgot(t *testing.T) {
	long := store.Instant(2 * time.Minute)
	worker := func(version uint64, at store.Instant) *store.Tombstone {
		return &store.Tombstone{Version: version, At: at}
	}
	pool := func(version uint64, at store.Instant) *PoolGrave { return &PoolGrave{Version: version, at: at} }
	for name, c := range map[string]struct {
		graves  graves
		horizon uint64
		left    int
	}{
		"workers": {graves{workers: []*store.Tombstone{worker(3, 0), worker(5, 1), worker(7, long)}}, 5, 1},
		"pools":   {graves{pools: []*PoolGrave{pool(3, 0), pool(5, 1), pool(7, long)}}, 5, 1},
		"neither": {graves{workers: []*store.Tombstone{worker(7, long)}, pools: []*PoolGrave{pool(7, long)}}, 0, 2},
		"below":   {graves{workers: []*store.Tombstone{worker(3, 0)}, horizon: 4}, 4, 0},
	} {
		if c.graves.trim(long); c.graves.horizon != c.horizon || len(c.graves.workers)+len(c.graves.pools) != c.left {
			t.Errorf("%s: horizon %d, left %d, want %d and %d", name, c.graves.horizon, len(c.graves.workers)+len(c.graves.pools), c.horizon, c.left)
		}
	}
	for name, g := range map[string]*graves{
		"workers": {workers: make([]*store.Tombstone, maxPoolGraves+2)},
		"pools":   {pools: make([]*PoolGrave, maxPoolGraves+2)},
	} {
		for i := range g.workers {
			g.workers[i] = worker(uint64(i+1), 0)
		}
		for i := range g.pools {
			g.pools[i] = pool(uint64(i+1), 0)
		}
		if g.trim(0); g.horizon != 2 || len(g.workers)+len(g.pools) != maxPoolGraves {
			t.Errorf("%s: horizon %d, left %d", name, g.horizon, len(g.workers)+len(g.pools))
		}
	}
}
