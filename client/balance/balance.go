package balance

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/client/pick/credit"
)

// Request is what a router knows of a request. It is a plain value.
type Request struct {
	// Model and Role name the pool; those of Options where they are empty.
	Model string
	Role  pick.Role
	// PromptTokens is the length of the prompt, about; 0 is not known.
	PromptTokens int64
	// Avoid names workers that were tried already.
	Avoid []string
}

// Balancer routes by the newest view. All methods may be called from any
// goroutine.
type Balancer struct {
	opts     Options
	picker   *pick.Picker
	ledger   *credit.Ledger
	failures failures

	// renewing is held by the one goroutine that takes a newer view over.
	renewing sync.Mutex
	current  atomic.Pointer[pools]
}

// New returns a Balancer. It starts nothing. An error names the option that is
// wrong, and wraps ErrOption or pick.ErrOption.
func New(o Options) (*Balancer, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	o.fill()
	picker, err := pick.NewPicker(o.Pick)
	if err != nil {
		return nil, err
	}
	b := &Balancer{
		opts: o, picker: picker,
		ledger: credit.NewLedger(credit.Options{AssumedTokens: o.AssumedTokens, Now: o.Pick.Now}),
	}
	b.current.Store(&pools{static: b.opts.Static, perRank: o.Pick.PerRank, ledger: b.ledger})
	return b, nil
}

// Pick chooses a worker, and counts the request there until Route.Done. It
// never waits for a plane. What a view needs to be picked from is made by the
// first Pick that meets the view. The error is ErrNoView, ErrUnknownPool, or
// one of package pick; ReasonOf has the word for it.
func (b *Balancer) Pick(r Request) (*Route, error) {
	p := b.newest()
	k := p.decided(b.keyOf(r))
	c, err := b.choose(p, k, r)
	if err != nil {
		return nil, err
	}
	return b.route(p, k, c, r), nil
}

// PickPair chooses a prefill and a decode worker for one request, from one
// view, and counts the request at both until each Route is done. The role of
// the request is not used. Without either of them nothing is counted, and the
// error names the pool that has none.
func (b *Balancer) PickPair(r Request) (prefill, decode *Route, err error) {
	p := b.newest()
	kp, kd := b.keyOf(r), b.keyOf(r)
	kp.role, kd.role = pick.RolePrefill, pick.RoleDecode
	cp, err := b.choose(p, kp, r)
	if err != nil {
		return nil, nil, fmt.Errorf("prefill: %w", err)
	}
	cd, err := b.choose(p, kd, r)
	if err != nil {
		return nil, nil, fmt.Errorf("decode: %w", err)
	}
	return b.route(p, kp, cp, r), b.route(p, kd, cd, r), nil
}

// Local returns what this process has at a worker: open requests, and those
// that its reports cannot have yet.
func (b *Balancer) Local(workerID string) credit.Local {
	return b.ledger.Local(credit.Target{WorkerID: workerID, Rank: pick.NoRank})
}

func (b *Balancer) keyOf(r Request) key {
	k := key{r.Model, r.Role}
	if k.model == "" {
		k.model = b.opts.Model
	}
	if k.role == pick.RoleAny {
		k.role = b.opts.Role
	}
	return k
}

// choose picks from a pool. It counts nothing.
func (b *Balancer) choose(p *pools, k key, r Request) (pick.Choice, error) {
	table, why, err := p.table(k)
	if err != nil {
		return pick.Choice{}, err
	}
	ask := pick.Request{PromptTokens: r.PromptTokens}
	for _, id := range r.Avoid {
		ask.Avoid = append(ask.Avoid, credit.Target{WorkerID: id, Rank: pick.NoRank})
	}
	tried := ask.Avoid
	ask.Avoid = b.failures.add(tried, b.opts.Pick.Now())
	c, err := b.picker.Pick(table, ask)
	if errors.Is(err, pick.ErrAllTried) && len(ask.Avoid) > len(tried) {
		ask.Avoid = tried // one that failed lately is better than none
		c, err = b.picker.Pick(table, ask)
	}
	if why != "" {
		c.Fallback, c.Reason = true, why
	}
	return c, err
}

// newest returns the pools of the newest view. One goroutine takes a new view
// over, others go on with the one before meanwhile.
func (b *Balancer) newest() *pools {
	p := b.current.Load()
	if v, _ := b.opts.Watcher.View(); v == p.view {
		return p
	}
	if p.view == nil {
		b.renewing.Lock()
	} else if !b.renewing.TryLock() {
		return p
	}
	defer b.renewing.Unlock()
	v, _ := b.opts.Watcher.View() // not older than what is held
	p = b.current.Load()
	if v == nil || v == p.view {
		return p
	}
	b.ledger.Sync(receipts(v))
	p = &pools{view: v, static: b.opts.Static, perRank: b.opts.Pick.PerRank, ledger: b.ledger}
	b.current.Store(p)
	return p
}
