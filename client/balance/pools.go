package balance

import (
	"slices"
	"sync"

	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/client/pick/credit"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// key names a pool. An empty model has the workers of all models.
type key struct {
	model string
	role  pick.Role
}

// pools has the tables of one view, made when they are first used. All methods
// may be called from any goroutine.
type pools struct {
	// view is nil before the first.
	view    *client.View
	static  []Worker
	perRank bool
	ledger  *credit.Ledger

	mu sync.Mutex
	// tables are of pools that the view has, and fallbacks of models that static
	// workers name: a model that only a request names has none of its own.
	tables, fallbacks map[key]func() *pick.Table
}

// decided returns a key that names a role: where k has none, plain, or the only
// one that the view has of the model.
func (p *pools) decided(k key) key {
	if k.role != pick.RoleAny {
		return k
	}
	k.role = pick.RolePlain
	if p.missing(k) == nil {
		return k
	}
	prefill, decode := key{k.model, pick.RolePrefill}, key{k.model, pick.RoleDecode}
	switch hasPrefill, hasDecode := p.missing(prefill) == nil, p.missing(decode) == nil; {
	case hasPrefill && !hasDecode:
		return prefill
	case hasDecode && !hasPrefill:
		return decode
	}
	return k
}

// table returns the table of a pool. why is empty, or the reason why it has the
// static workers.
func (p *pools) table(k key) (t *pick.Table, why pick.Reason, err error) {
	missing := p.missing(k)
	if missing == nil {
		return p.once(&p.tables, k, p.compile), "", nil
	}
	if !slices.ContainsFunc(p.static, func(w Worker) bool { return w.Model == k.model }) {
		k.model = ""
	}
	if !slices.ContainsFunc(p.static, k.takes) {
		return nil, "", missing
	}
	return p.once(&p.fallbacks, k, p.fallback), missing.Reason, nil
}

// missing returns why the view has no workers of a pool; nil where it has.
func (p *pools) missing(k key) *Error {
	switch {
	case p.view == nil:
		return ErrNoView
	case k.model != "" && p.view.Pool(k.model, pb.Role(k.role)) == nil,
		k.model == "" && !slices.ContainsFunc(p.view.Pools(), func(x *pb.Pool) bool { return pick.Role(x.GetKey().GetRole()) == k.role }):
		return ErrUnknownPool
	}
	return nil
}

// once makes a table, but not while others need the lock.
func (p *pools) once(all *map[key]func() *pick.Table, k key, build func(key) *pick.Table) *pick.Table {
	p.mu.Lock()
	if *all == nil {
		*all = map[key]func() *pick.Table{}
	}
	table, ok := (*all)[k]
	if !ok {
		table = sync.OnceValue(func() *pick.Table { return build(k) })
		(*all)[k] = table
	}
	p.mu.Unlock()
	return table()
}

// compile makes the table of a pool of the view.
func (p *pools) compile(k key) *pick.Table {
	return pick.NewTable(candidates(p.view, k, p.perRank), pick.TableOptions{Model: k.model, Role: k.role, Ledger: p.ledger})
}

// fallback makes the table of the static workers that a pool can use.
func (p *pools) fallback(k key) *pick.Table {
	var all []pick.PolicyCandidate
	for _, w := range p.static {
		if !k.takes(w) {
			continue
		}
		if w.ID == "" {
			w.ID = w.URL
		}
		all = append(all, pick.PolicyCandidate{WorkerID: w.ID, URL: w.URL, Rank: pick.NoRank, Role: k.role, Freshness: pick.Missing})
	}
	return pick.NewTable(all, pick.TableOptions{Role: k.role, Ledger: p.ledger})
}

// takes says that a static worker serves a pool.
func (k key) takes(w Worker) bool {
	return orPlain(w.Role) == k.role && (w.Model == "" || w.Model == k.model)
}
