package main

import (
	"sync"

	"github.com/loadplane/loadplane/client/balance"
	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/client/pick/credit"
)

// turns is round robin as a score of the router's own: whoever had a turn
// longest ago is next. It knows no load, and is there to compare with.
type turns struct {
	mu   sync.Mutex
	last map[credit.Target]float64
	turn float64
}

func newTurns() *turns { return &turns{last: map[credit.Target]float64{}} }

func (t *turns) score(c *pick.PolicyCandidate, _ credit.Local, _ pick.Request) (float64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last[credit.Target{WorkerID: c.WorkerID, Rank: c.Rank}], true
}

func (t *turns) took(r *balance.Route) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn++
	t.last[r.Target] = t.turn
}
