package sim

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/loadplane/loadplane/sim/reporter"
)

// AllEngines as Fault.Engine means every engine of the fleet.
const AllEngines = -1

// FaultKind names what goes wrong.
type FaultKind string

// The faults.
const (
	// FaultRestart ends the life of the engine and starts the next: a new
	// source instance id, sequence from 1, no monitors until it is registered
	// again, a new start time, counters from 0. The HTTP listener stays, and so
	// do the ports beside it and the lease of a native engine.
	FaultRestart FaultKind = "restart"
	// FaultRerank is a restart with Ranks DP ranks, as a new deployment: pages,
	// reports and sockets have the new number. Kinds without ranks keep one.
	FaultRerank FaultKind = "rerank"
	// FaultFreeze stops the values; reports and sample times go on.
	FaultFreeze FaultKind = "freeze"
	// FaultSilent stops the reports and what is published; streams stay open.
	// All pages answer 503.
	FaultSilent FaultKind = "silent"
	// FaultFail makes sampling fail. Pushed reports keep the last sample and
	// stay HEALTHY until it is three seconds old, then turn STALE; those of a
	// monitor are UNREACHABLE at once, native ones STALE; nothing is published.
	// The load pages of SGLang keep the sample, with its time, and all others
	// answer 500.
	FaultFail FaultKind = "fail"
	// FaultZeroCapacity sends ranks of zeros, capacities too, as HEALTHY.
	FaultZeroCapacity FaultKind = "zero_capacity"
	// FaultNaN sends NaN as the token usage of the first rank. Pages without
	// one have it in the place of another value, JSON has null. To a monitor it
	// is a sample that failed, and what is published has no place for it.
	FaultNaN FaultKind = "nan"
	// FaultSlow answers start_reporting after Delay. The registration takes
	// effect then, whether or not the caller still waits. Of kinds that do not
	// push it delays every page, and each sample of a monitor, which fails when
	// it takes a second.
	FaultSlow FaultKind = "slow"
	// FaultDown closes the listeners and their connections; a native engine
	// leaves its plane. Pushed streams go on until their leases end.
	FaultDown FaultKind = "down"
	// FaultIdle sends zeros for all loads and leaves the capacities. Counters
	// stand still meanwhile.
	FaultIdle FaultKind = "idle"
)

var faultKinds = []FaultKind{
	FaultRestart, FaultRerank, FaultFreeze, FaultSilent, FaultFail, FaultZeroCapacity,
	FaultNaN, FaultSlow, FaultDown, FaultIdle,
}

// FaultKinds returns all kinds of faults.
func FaultKinds() []FaultKind { return slices.Clone(faultKinds) }

// Fault is something that goes wrong at a time. It is a plain value.
type Fault struct {
	// Kind is what goes wrong.
	Kind FaultKind
	// Engine is the index of the engine, from 0, or AllEngines.
	Engine int
	// After is the time from the start of Run to the first occurrence.
	After time.Duration
	// For is how long it lasts; 0 means until Run ends. Restarts take none.
	For time.Duration
	// Every is the time between starts of occurrences; 0 means only once. It
	// must be longer than For, and needs a For unless Kind is a restart.
	Every time.Duration
	// Delay is the delay of FaultSlow, and only of it; there it is above 0.
	Delay time.Duration
	// Ranks is the number of ranks of FaultRerank, and only of it, 1 to 4,096.
	Ranks int
}

// ParseFault reads "kind" or "kind:key=value,...". Keys are engine (an index
// or "all", the default), after, for, every and, for slow, delay (1s by
// default), for rerank ranks, which it needs; times are Go durations. Its errors name the text that is wrong.
func ParseFault(text string) (Fault, error) {
	kind, rest, more := strings.Cut(text, ":")
	f := Fault{Kind: FaultKind(kind), Engine: AllEngines}
	if f.Kind == FaultSlow {
		f.Delay = time.Second
	}
	seen := map[string]bool{}
	for more {
		var pair string
		pair, rest, more = strings.Cut(rest, ",")
		key, value, _ := strings.Cut(pair, "=")
		if seen[key] {
			return Fault{}, fmt.Errorf("sim: fault %q: %q stands twice", text, key)
		}
		seen[key] = true
		if err := f.set(key, value); err != nil {
			return Fault{}, fmt.Errorf("sim: fault %q: %w", text, err)
		}
	}
	return f, f.validate()
}

func (f *Fault) set(key, value string) error {
	var err error
	switch key {
	case "engine":
		f.Engine, err = parseEngine(value)
	case "after":
		f.After, err = time.ParseDuration(value)
	case "for":
		f.For, err = time.ParseDuration(value)
	case "every":
		f.Every, err = time.ParseDuration(value)
	case "delay":
		f.Delay, err = time.ParseDuration(value)
	case "ranks":
		if f.Ranks, err = strconv.Atoi(value); err != nil {
			return fmt.Errorf("ranks %q is not a number", value)
		}
	default:
		return fmt.Errorf("unknown key %q", key)
	}
	return err
}

func parseEngine(value string) (int, error) {
	if value == "all" {
		return AllEngines, nil
	}
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("engine %q is neither an index nor \"all\"", value)
	}
	return int(n), nil
}

func (f Fault) validate() error {
	fail := func(fact string) error { return fmt.Errorf("sim: fault %q: %s", f, fact) }
	switch {
	case !slices.Contains(faultKinds, f.Kind):
		return fmt.Errorf("sim: unknown fault %q; known are %s", f.Kind, named(faultKinds))
	case f.Engine < AllEngines:
		return fail("engine is negative")
	case f.After < 0 || f.For < 0 || f.Every < 0:
		return fail("a time is negative")
	case f.misfit() != "":
		return fail(f.misfit())
	case f.restarts() && f.For != 0:
		return fail("a restart takes no for")
	case !f.restarts() && f.Every > 0 && f.For == 0:
		return fail("every needs a for")
	case f.Every > 0 && f.Every <= f.For:
		return fail("every must be longer than for")
	}
	return nil
}

// misfit says what is wrong with the values that one kind alone takes; empty
// for nothing.
func (f Fault) misfit() string {
	switch {
	case f.Kind == FaultSlow && f.Delay <= 0:
		return "delay must be above 0"
	case f.Kind != FaultSlow && f.Delay != 0:
		return "only slow takes a delay"
	case f.Kind == FaultRerank && (f.Ranks < 1 || f.Ranks > maxRanks):
		return fmt.Sprintf("ranks must be 1 to %d", maxRanks)
	case f.Kind != FaultRerank && f.Ranks != 0:
		return "only rerank takes ranks"
	}
	return ""
}

// restarts says whether the fault is another life, which has no end.
func (f Fault) restarts() bool { return f.Kind == FaultRestart || f.Kind == FaultRerank }

// String returns the text that ParseFault reads.
func (f Fault) String() string {
	var parts []string
	if f.Engine != AllEngines {
		parts = append(parts, "engine="+strconv.Itoa(f.Engine))
	}
	add := func(key string, d time.Duration) {
		if d != 0 {
			parts = append(parts, key+"="+d.String())
		}
	}
	add("after", f.After)
	add("for", f.For)
	add("every", f.Every)
	add("delay", f.Delay)
	if f.Ranks != 0 {
		parts = append(parts, "ranks="+strconv.Itoa(f.Ranks))
	}
	if len(parts) == 0 {
		return string(f.Kind)
	}
	return string(f.Kind) + ":" + strings.Join(parts, ",")
}

// faultSet holds the faults that hold now. The zero value holds none. Its
// methods are safe for concurrent use.
type faultSet struct {
	reports reporter.Faults

	mu      sync.Mutex
	active  map[FaultKind]Fault
	changed chan struct{} // closes when active changes; nil while unwatched
}

func (s *faultSet) set(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active == nil {
		s.active = map[FaultKind]Fault{}
	}
	s.active[f.Kind] = f
	s.announceLocked(f.Kind)
}

// clear says whether there was one to end.
func (s *faultSet) clear(kind FaultKind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.active[kind]
	delete(s.active, kind)
	s.announceLocked(kind)
	return ok
}

// announceLocked tells those concerned that the fault began or ended.
func (s *faultSet) announceLocked(kind FaultKind) {
	if flag := s.reports.Switch(string(kind)); flag != nil {
		_, on := s.active[kind]
		flag.Store(on)
	}
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

func (s *faultSet) get(kind FaultKind) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.active[kind]
	return f, ok
}

// watch says whether the fault holds, until the channel closes.
func (s *faultSet) watch(kind FaultKind) (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	_, ok := s.active[kind]
	return ok, s.changed
}

// play makes the fault happen at its times until ctx ends.
func (e *Engine) play(ctx context.Context, f Fault) {
	if !wait(ctx, f.After) {
		return
	}
	for {
		begun := time.Now()
		e.SetFault(f)
		if f.For > 0 {
			wait(ctx, f.For)
			e.ClearFault(f.Kind)
		}
		if f.Every == 0 || !wait(ctx, f.Every-time.Since(begun)) {
			return
		}
	}
}

// wait returns false when ctx ends before d has passed.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
