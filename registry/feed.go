package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/loadplane/loadplane/store"
)

// errNoList is what is said of a source that has not delivered yet.
var errNoList = errors.New("no list yet")

// maxListLines bounds what is logged of the workers that one list names and that
// cannot be had, and what is logged of their fields.
const maxListLines = 8

// feed is a Source with what it delivered. What is new in it is left by the
// source's goroutine and taken by the reconciler.
type feed struct {
	source Source
	name   string

	mu sync.Mutex
	// specs are the last list, listed its receipt, 0 for never; fresh says that
	// it was not taken yet.
	specs  []WorkerSpec
	listed store.Instant
	fresh  bool
	// err is why there is no newer list; nil while there is.
	err error

	// took says that a list was taken; good is the list in force, sorted by id,
	// and refused are the ids of those that cannot be had, each with the reason.
	// They are guarded by Registry.discovering.
	took    bool
	good    []WorkerSpec
	refused map[string]string
	// ignored are the fields that are not taken over, each by its worker's id
	// and its name, with the reason.
	ignored map[[2]string]string
}

// checkSources says what is wrong with the names of sources.
func checkSources(all []Source) error {
	seen := map[string]bool{byFlag: true, byFile: true, byAdmin: true, byRegistration: true}
	for _, s := range all {
		if s == nil {
			return errors.New("a source is nil")
		}
		name := s.Name()
		if err := checkText(name, maxZoneBytes); err != nil {
			return fmt.Errorf("source %q: %w", cut(name), err)
		}
		if seen[name] || strings.Contains(name, bySeparator) {
			return fmt.Errorf("source %q: the name is taken or contains %q", name, bySeparator)
		}
		seen[name] = true
	}
	return nil
}

// attend runs a source until ctx ends. One that ends by itself, or panics, keeps
// its last list and counts as failing.
func (r *Registry) attend(ctx context.Context, f *feed) {
	take := func(l Listing) {
		f.put(l, r.clock.Now())
		poke(r.delivered)
	}
	stack, err := f.run(ctx, take)
	if ctx.Err() != nil && stack == nil {
		return
	}
	r.log.Error("source of discovery ended, last list kept",
		slog.String("source", f.name), slog.String("error", cut(err.Error())), slog.String("stack", string(stack)))
	take(Listing{Err: err})
}

// run is that of the source, with what ended it.
func (f *feed) run(ctx context.Context, take func(Listing)) (stack []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			stack, err = debug.Stack(), fmt.Errorf("the source panicked: %v", p)
		}
	}()
	f.source.Run(ctx, take)
	return nil, errors.New("the source ended by itself")
}

// put leaves a listing; the newest list and the newest error count.
func (f *feed) put(l Listing, at store.Instant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err = l.Err; f.err == nil {
		f.specs, f.listed, f.fresh = l.Specs, at, true
	}
}

// take returns the list that was not taken yet, if there is one.
func (f *feed) take() (specs []WorkerSpec, fresh bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	specs, fresh = f.specs, f.fresh
	f.specs, f.fresh = nil, false
	return specs, fresh
}

// status returns how the source is, while its first list is waited for or after.
// The caller holds Registry.discovering.
func (f *feed) status(waiting bool) store.SourceStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := store.SourceStatus{Name: f.name, Synced: f.took, Workers: len(f.good), Listed: f.listed}
	switch {
	case !st.Synced && f.err != nil:
		st.Error = cut(fmt.Sprintf("%s: %s", errNoList, f.err))
	case !st.Synced && !waiting:
		st.Error = errNoList.Error()
	case f.err != nil:
		st.Error = cut(f.err.Error())
	}
	return st
}

// takeUp takes what sources delivered and reconciles where it matters.
func (r *Registry) takeUp(start starter) {
	r.discovering.Lock()
	defer r.discovering.Unlock()
	changed := false
	for _, f := range r.sources.feeds {
		specs, fresh := f.take()
		if !fresh {
			continue
		}
		good := r.admissible(f, specs)
		changed = changed || !f.took || !slices.EqualFunc(good, f.good, alike)
		f.took, f.good = true, good
	}
	if !changed {
		r.noteSources()
		return
	}
	r.sources.merged = r.merge()
	r.put(start)
}

// admissible returns the workers of a list that can be had, sorted by id. A field
// that cannot be had is left out, so that it costs neither the worker nor what
// else the list says of it.
func (r *Registry) admissible(f *feed, specs []WorkerSpec) []WorkerSpec {
	specs = slices.SortedStableFunc(slices.Values(specs), byID)
	good, refused, ignored := make([]WorkerSpec, 0, len(specs)), make(map[string]string), make(map[[2]string]string)
	for i := range specs {
		s := &specs[i]
		err := checkNamed(s)
		if n := len(good); err == nil && n > 0 && good[n-1].ID == s.ID {
			err = errors.New("the list names it twice")
		}
		if err != nil {
			refused[s.ID] = err.Error()
			continue
		}
		for field, why := range r.curtail(s) {
			ignored[[2]string{s.ID, field}] = why.Error()
		}
		good = append(good, *s)
	}
	r.tellRefused(f, refused)
	r.tellIgnored(f, ignored)
	f.refused, f.ignored = refused, ignored
	return good
}

// curtail takes from a spec the fields that cannot be had here, and returns why.
func (r *Registry) curtail(s *WorkerSpec) map[string]error {
	left := make(map[string]error)
	if err := r.checkDialect(s.Dialect); err != nil {
		s.Dialect, left["dialect"] = store.DialectUnspecified, err
	}
	if err := r.checkPace(s.Interval); err != nil {
		s.Interval, left["interval"] = 0, err
	}
	return left
}

func alike(a, b WorkerSpec) bool { return reflect.DeepEqual(a, b) }

func byID(a, b WorkerSpec) int { return cmp.Compare(a.ID, b.ID) }

// checkNamed says what a worker that did not come as text lacks of a name or an
// address.
func checkNamed(s *WorkerSpec) error {
	if err := checkText(s.ID, maxAddrBytes); err != nil {
		return fmt.Errorf("id: %w", err)
	}
	if !strings.Contains(s.Origin, ":") || s.URL == "" {
		return errors.New("it has no URL or no origin")
	}
	return nil
}

// tellRefused counts the workers that a list names and that cannot be had, and
// logs those that are new.
func (r *Registry) tellRefused(f *feed, refused map[string]string) {
	count(r.metrics.specsRefused, f.name, len(refused))
	for id, why := range news(refused, f.refused) {
		r.log.Warn("worker of a source cannot be had", "source", f.name, "worker", cut(id), "error", cut(why))
	}
}

// tellIgnored counts the fields of a list that are not taken over, and logs those
// that are new.
func (r *Registry) tellIgnored(f *feed, ignored map[[2]string]string) {
	count(r.metrics.fieldsIgnored, f.name, len(ignored))
	for of, why := range news(ignored, f.ignored) {
		r.log.Warn("field of a worker of a source ignored", "source", f.name, "worker", cut(of[0]), "field", of[1], "error", cut(why))
	}
}

// news yields what is in one map and not in the other, up to the number of lines
// that a list is worth.
func news[K, V comparable](now, before map[K]V) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		lines := 0
		for key, why := range now {
			if before[key] == why {
				continue
			}
			if lines++; lines > maxListLines || !yield(key, why) {
				return
			}
		}
	}
}
