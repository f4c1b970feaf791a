package picks

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/client/pick/credit"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
)

// shot is a view with the tables that were asked of it. The ledger has taken
// its receipts.
type shot struct {
	view *snapshot.View
	// roles are those that serve each model, the empty model being any.
	roles  map[string][]pick.Role
	tables sync.Map // of key to *pick.Table

	// cost is what it took to make the shot and its tables; under Picks.mu.
	cost time.Duration
	// until is the Instant up to which the shot is used whatever comes.
	until atomic.Int64
}

// key names a table.
type key struct {
	model   string
	role    pick.Role
	perRank bool
}

const (
	// holdFactor is how much longer than it took to make them a shot and its
	// tables are used at least. Where a large fleet reports all the time, no
	// more than a tenth of a core goes into tables.
	holdFactor = 9
	// holdShare is the share of the stale time that bounds this use.
	holdShare = 8
)

// table returns the candidates for a query, and the shot they are of; nil
// where no worker has the model.
func (p *Picks) table(q query) (*shot, *pick.Table) {
	if s := p.last.Load(); s != nil && p.serves(s) {
		if t, ok := s.find(q); ok {
			return s, t
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.renew()
	t, ok := s.find(q)
	if !ok {
		t = p.build(s, s.key(q))
	}
	return s, t
}

// serves says that no newer shot than s is to be made now.
func (p *Picks) serves(s *shot) bool {
	if p.clock.Now() < store.Instant(s.until.Load()) {
		return true
	}
	view, _ := p.opts.Snapshots.Current()
	return view == s.view
}

// renew returns the shot of now; p.mu is held.
func (p *Picks) renew() *shot {
	last := p.last.Load()
	if last != nil && p.serves(last) {
		return last
	}
	begun := p.clock.Now()
	view, _ := p.opts.Snapshots.Current()
	s := &shot{view: view, roles: rolesOf(view.Pools)}
	p.sync(last, view)
	p.spent(s, begun)
	p.last.Store(s)
	return s
}

// build makes a table; p.mu is held. So no table is of an older shot than the
// ledger knows.
func (p *Picks) build(s *shot, k key) *pick.Table {
	begun := p.clock.Now()
	t := pick.NewTable(p.candidates(s.view, k), pick.TableOptions{Model: k.model, Role: k.role, Ledger: p.ledger})
	s.tables.Store(k, t)
	p.metrics.tables.Inc()
	p.spent(s, begun)
	return t
}

// spent adds to the cost of a shot.
func (p *Picks) spent(s *shot, begun store.Instant) {
	now := p.clock.Now()
	s.cost += now.Sub(begun)
	s.until.Store(int64(now.Add(min(holdFactor*s.cost, p.stale/holdShare))))
}

// find returns the table for a query and whether it is known, as nil where no
// worker has the model.
func (s *shot) find(q query) (*pick.Table, bool) {
	if len(s.roles[q.model]) == 0 {
		return nil, true
	}
	if t, ok := s.tables.Load(s.key(q)); ok {
		table, _ := t.(*pick.Table)
		return table, true
	}
	return nil, false
}

// key returns the table that a query wants. A query without a role wants plain
// workers, or those of the only role there is.
func (s *shot) key(q query) key {
	k := key{q.model, q.role, q.perRank}
	if roles := s.roles[q.model]; k.role == pick.RoleAny && !slices.Contains(roles, pick.RolePlain) && len(roles) == 1 {
		k.role = roles[0]
	} else if k.role == pick.RoleAny {
		k.role = pick.RolePlain
	}
	return k
}

func rolesOf(pools []*snapshot.Pool) map[string][]pick.Role {
	roles := map[string][]pick.Role{}
	add := func(model string, role pick.Role) {
		if !slices.Contains(roles[model], role) {
			roles[model] = append(roles[model], role)
		}
	}
	for _, pool := range pools {
		role := pick.Role(pool.Key.Role) // the numbers of both are the wire's
		add(pool.Key.Model, role)
		add("", role)
	}
	return roles
}

// sync tells the ledger of the receipts that are new since the last view. Where
// a worker left, it tells of all, so that the ledger forgets that one.
func (p *Picks) sync(last *shot, view *snapshot.View) {
	var changed []credit.Receipt
	kept := 0
	for i, w := range view.Workers {
		if last != nil {
			j, ok := last.view.FindNear(w.Row, i)
			if ok {
				kept++
			}
			if ok && last.view.Receipts[j] == view.Receipts[i] {
				continue
			}
		}
		changed = append(changed, p.receipt(w, view.Receipts[i]))
	}
	if last == nil || kept == len(last.view.Workers) {
		for _, r := range changed {
			p.ledger.Observe(r)
		}
		return
	}
	all := make([]credit.Receipt, len(view.Workers))
	for i, w := range view.Workers {
		all[i] = p.receipt(w, view.Receipts[i])
	}
	p.ledger.Sync(all)
}

// receipt returns what the ledger is told of a worker. Only what carried a
// load covers a dispatch, and not one that the engine calls old.
func (p *Picks) receipt(w *snapshot.Worker, r *snapshot.Receipt) credit.Receipt {
	out := credit.Receipt{WorkerID: w.Worker.ID, Row: w.Row, Interval: w.Worker.Interval}
	if w.Load != nil {
		out.Instance = w.Load.Source
	}
	if r != nil && w.Load != nil && w.Load.Status == store.StatusHealthy {
		out.At = p.time(r.Received)
		if oldest, report := r.OldestSampleUnixMs, r.ReportUnixMs; oldest >= 0 && report >= 0 {
			out.Sampled = out.At.Add(-time.Duration(max(0, report-oldest)) * time.Millisecond)
		}
	}
	if w.Worker.Dialect == store.DialectPoll {
		out.Polled = true
		if _, d, ok := p.store.Inspect(w.Row); ok {
			out.Interval = max(out.Interval, d.PollInterval) // longer where the engine is slow
		}
	}
	return out
}
