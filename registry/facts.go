package registry

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
)

// minAsk and maxAsk are the times between two questions about the facts of an
// engine that did not answer all of them.
const minAsk, maxAsk = time.Second, 30 * time.Second

// roleFor is how long a role that an engine said stays at least, once it was
// another before.
const roleFor = time.Minute

// curiosity is the list of workers about whose facts an inquiry is to begin.
// It is safe for concurrent use.
type curiosity struct {
	mu      sync.Mutex
	workers []*worker
	wake    chan struct{}
}

func (c *curiosity) add(w *worker) {
	c.mu.Lock()
	c.workers = append(c.workers, w)
	c.mu.Unlock()
	poke(c.wake)
}

func (c *curiosity) take() []*worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	workers := c.workers
	c.workers = nil
	return workers
}

// satisfy begins inquiries until ctx ends. They run beside each other, and no
// goroutine is left for a worker whose facts are known.
func (r *Registry) satisfy(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.curious.wake:
		}
		for _, w := range r.curious.take() {
			w.ask()
		}
	}
}

// wonder has the engine asked for its facts soon. The caller holds w.mu.
func (w *worker) wonder() {
	if w.ask == nil || w.reg.opts.Prober == nil {
		return
	}
	w.wanted = true
	if w.asking {
		poke(w.curious)
		return
	}
	w.asking = true
	w.reg.curious.add(w)
}

// wonderNow is wonder for callers without the lock.
func (w *worker) wonderNow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wonder()
}

// wonders says whether the facts are still to be asked for, and ends the
// inquiry where they are not.
func (w *worker) wonders() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asking = w.wanted
	w.wanted = false
	drain(w.curious)
	return w.asking
}

// inquire asks the engine for its facts until every question is answered. What
// makes it wonder several times at once is asked once.
func (w *worker) inquire(ctx context.Context) {
	for wait := minAsk; await(ctx, settleFacts, nil) && w.wonders(); wait = min(2*wait, maxAsk) {
		f := w.reg.opts.Prober.Facts(ctx, w.target())
		if ctx.Err() != nil {
			return
		}
		if w.learnFacts(&f) {
			wait = minAsk / 2
			continue
		}
		w.mu.Lock()
		w.wanted = true
		w.mu.Unlock()
		await(ctx, wait-settleFacts, w.curious)
	}
}

// await waits for a time or a signal and says whether ctx lasts.
func await(ctx context.Context, d time.Duration, signal <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-signal:
	}
	return ctx.Err() == nil
}

// learnFacts takes over what the engine said, unless the worker is gone or has
// another identity by now. Discovery is told of what it has to take up. It says
// whether there is nothing more to ask.
func (w *worker) learnFacts(f *Finding) bool {
	r := w.reg
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.workers[w.id] != w {
		return f.Complete
	}
	w.mu.Lock()
	old, now := w.facts, f.Facts
	if !f.Complete {
		now = now.Or(&old)
	}
	now.Models = now.Models[:min(len(now.Models), maxListed)]
	held := w.holdRole(&now)
	w.facts = now
	if now.ReporterPort != old.ReporterPort || now.LoadStat != old.LoadStat {
		w.stir()
		poke(w.back)
	}
	matters := (w.spec.Role == store.RoleUnspecified && now.Role != old.Role) ||
		(w.spec.Models == nil && !slices.Equal(now.Models, old.Models))
	w.mu.Unlock()
	if now.Family != old.Family || now.Version != old.Version {
		w.tell(&now)
	}
	if matters {
		poke(r.learned)
	}
	return f.Complete && !held
}

// holdRole keeps the role that is known where another one was taken up less
// than a minute ago: one address may lead to several engines by turns, and each
// change ends what is known of the worker. It says whether it did. The caller
// holds w.mu.
func (w *worker) holdRole(now *Facts) (held bool) {
	switch old := w.facts.Role; {
	case old == store.RoleUnspecified || now.Role == old:
	case time.Since(w.roleMoved) < roleFor:
		now.Role, held = old, true
	default:
		w.roleMoved = time.Now()
	}
	return held
}

// Or returns f with the gaps filled from before.
func (f Facts) Or(before *Facts) Facts {
	f.Family = cmp.Or(f.Family, before.Family)
	f.Version = cmp.Or(f.Version, before.Version)
	f.Role = cmp.Or(f.Role, before.Role)
	f.DPSize = cmp.Or(f.DPSize, before.DPSize)
	f.CapacityTokens = cmp.Or(f.CapacityTokens, before.CapacityTokens)
	f.MaxRunning = cmp.Or(f.MaxRunning, before.MaxRunning)
	f.ReporterPort = cmp.Or(f.ReporterPort, before.ReporterPort)
	f.LoadStat = cmp.Or(f.LoadStat, before.LoadStat)
	if f.Models == nil {
		f.Models = before.Models
	}
	return f
}

// tell shows operators what the engine is.
func (w *worker) tell(f *Facts) {
	w.slot.Diagnose(func(d *store.Diagnostics) { d.Engine, d.EngineVersion = cut(f.Family), cut(f.Version) })
}

// memory is what a worker keeps when discovery lists it again.
type memory struct {
	facts   Facts
	claimed store.Role
	dialect store.Dialect
	// line outlives an identity: what it asked last may still be under way.
	// So do the bounds of what is logged, and when the role moved.
	line      *egress.Line
	lines     *lines
	roleMoved time.Time
	// registered is the engine as a reporter registered it; nil for never.
	registered *WorkerSpec
}

// memory returns what is known of the engine that discovery lists; nothing for
// no worker or for another URL, and nothing of the engine where another one runs
// at the URL.
func (w *worker) memory(s *WorkerSpec) memory {
	if w == nil || w.url != s.URL {
		return memory{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.anotherUID(s.UID) {
		return memory{line: w.line, lines: w.lines}
	}
	return memory{facts: w.facts, claimed: w.claimed, dialect: w.def.Dialect, line: w.line, lines: w.lines, roleMoved: w.roleMoved, registered: w.registered}
}
