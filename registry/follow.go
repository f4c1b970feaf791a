package registry

import (
	"context"
	"time"
)

// Times of discovery.
const (
	// settleDiscovery is how long a change of what discovery says waits for
	// more.
	settleDiscovery = 100 * time.Millisecond
	// settleFacts is how long a change by what engines say waits for more.
	settleFacts = settleDiscovery
	// recheckFile is how often the file is read without a sign of change,
	// for file systems that give none.
	recheckFile = 5 * time.Second
	// sourcePatience is how long discovery waits for the first list of a source.
	sourcePatience = time.Minute
)

// follower waits for what makes a reconciliation necessary. It is for one
// goroutine.
type follower struct {
	r     *Registry
	start starter
	watch *fileWatch
	// recheck ticks where there is a workers file. The others are nil while they
	// are not waited for: file, facts, lists and counts are the settle times of
	// changes, patience and welcome the ends of waiting.
	recheck, file, facts, lists, counts, patience, welcome <-chan time.Time
}

// begin starts to wait for sources and reporters.
func (f *follower) begin() {
	r := f.r
	r.discovering.Lock()
	defer r.discovering.Unlock()
	if len(r.sources.feeds) > 0 {
		r.sources.patient, f.patience = true, time.After(sourcePatience)
	}
	if r.opts.Registration != RegistrationOff {
		r.sources.welcoming, f.welcome = true, time.After(r.opts.welcomeFor())
	}
}

// settle begins a settle time, unless one runs.
func settle(timer *<-chan time.Time) {
	if *timer == nil {
		*timer = time.After(settleDiscovery)
	}
}

// next does what is to be done next; false says that ctx ended.
func (f *follower) next(ctx context.Context) bool {
	r := f.r
	events, failures := f.watch.events()
	select {
	case <-ctx.Done():
		return false
	case e := <-events:
		if f.watch.relevant(e) {
			settle(&f.file)
		}
	case err := <-failures:
		r.roll.watch.Do(func() { r.log.Warn("workers file watch failed", "error", err) })
		settle(&f.file)
	case <-r.learned:
		settle(&f.facts)
	case <-r.delivered:
		settle(&f.lists)
	case <-r.recounted:
		settle(&f.counts)
	case <-r.ordered:
		r.reconcile(f.start)
	case <-f.file:
		f.reread()
	case <-f.recheck:
		f.reread()
	case <-f.facts:
		f.facts = nil
		r.renew(f.start)
	case <-f.lists:
		f.lists = nil
		r.takeUp(f.start)
	case <-f.counts:
		f.counts = nil
		r.recount()
	case <-f.patience:
		f.stopWaiting()
	case <-f.welcome:
		f.stopWelcoming()
	}
	return true
}

// reread takes up the workers file as it is now.
func (f *follower) reread() {
	f.file = nil
	if err := f.watch.aim(); err != nil {
		f.r.log.Debug("workers file cannot be watched", "error", err)
	}
	if f.r.reload() {
		f.r.reconcile(f.start)
	}
}

// recount tells how many workers registered themselves.
func (r *Registry) recount() {
	r.discovering.Lock()
	defer r.discovering.Unlock()
	r.noteSources()
}

// stopWaiting goes on without the sources that delivered nothing.
func (f *follower) stopWaiting() {
	if late := f.r.late(); len(late) > 0 {
		f.r.log.Error("discovery goes on without sources", "sources", late)
		f.r.renew(f.start)
	}
}

// late waits no more for sources, and returns the names of those that delivered
// nothing.
func (r *Registry) late() (names []string) {
	r.discovering.Lock()
	defer r.discovering.Unlock()
	r.sources.patient = false
	for _, f := range r.sources.feeds {
		if !f.took {
			names = append(names, f.name)
		}
	}
	return names
}

// stopWelcoming waits no more for reporters to register again.
func (f *follower) stopWelcoming() {
	if f.r.welcomed() {
		f.r.renew(f.start)
	}
}

// welcomed ends the time for reporters, and says whether the store waits for it.
func (r *Registry) welcomed() bool {
	r.discovering.Lock()
	defer r.discovering.Unlock()
	r.sources.welcoming = false
	r.mu.RLock()
	defer r.mu.RUnlock()
	return !r.told
}
