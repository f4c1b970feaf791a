package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/loadplane/loadplane/store"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime"
)

// Times and sizes of a Mirror.
const (
	pageSize = 500
	// listTimeout bounds all pages of one list.
	listTimeout = 5 * time.Minute
	// holdFor is how long a list that is empty of a sudden must stay so.
	holdFor = time.Minute
	// A watch that lasted shortWatch did not end as soon as it began, and one
	// that lasted steadyWatch stands.
	shortWatch, steadyWatch = time.Second, 5 * time.Second
	// minWatchTimeout is the least time after which the server is asked to end
	// a watch; the most is twice that.
	minWatchTimeout = 5 * time.Minute
	// triesBeforeList is how many watches may fail, in a way that goes with the
	// version, before the list is read anew.
	triesBeforeList = 3

	minBackoff, maxBackoff = 500 * time.Millisecond, 30 * time.Second
)

// Options configure a Mirror. It is a plain value.
type Options[V any] struct {
	// Client reads the objects of Namespace that Selector, a label selector,
	// selects.
	Client              *Client
	Namespace, Selector string
	// Relist is how often the whole list is read whatever the watch says, give
	// or take a tenth. Silence is how long a watch in which nothing comes, not
	// even a bookmark, is trusted. Both are above 0.
	Relist, Silence time.Duration
	// Convert makes what is kept of an object, which it must not keep. old is
	// what was made of the object before, the zero value for a new one. at is
	// when the event came that showed the object, or when the list was asked for,
	// the same for all of a list. It is called by one goroutine at a time.
	Convert func(object runtime.Object, old V, at time.Time) V
	// Equal says that two values are the same to the reader.
	Equal func(a, b V) bool
	// Changed gets a signal, where it has room, when Values would return
	// something else.
	Changed chan<- struct{}
	Metrics *Metrics
	Logger  *slog.Logger
}

// State says how good what a Mirror holds is. It is a plain value.
type State struct {
	// Lists is the number of whole lists that were taken over; 0 says that
	// nothing is known.
	Lists uint64
	// Err says why what is held may be old; nil where it is not.
	Err error
	// Heard is when the server last sent a list or something in a watch, and
	// when Run began where it never did; zero before that.
	Heard time.Time
}

// Mirror is a copy of the objects of one namespace. It is safe for concurrent
// use.
type Mirror[V any] struct {
	opts Options[V]
	// lines bounds those of the log.
	lines rate.Sometimes

	mu    sync.Mutex
	items map[string]V
	state State
	// errs are the last errors of the list, the watch and a list held back;
	// nil where it went well since.
	errs [faults]error

	// What follows is for the goroutine of Run.

	// version is where the next watch begins; empty to list first.
	version string
	// relist is when the next list is due, and held since when an empty list
	// is held back; zero for none.
	relist, held time.Time
	// again are the delays after failures of lists and of watches.
	again [heldFault]backoff
	// failures counts the watches that failed since one stood.
	failures int
	// panicked says that the last list or watch ended by a panic, which is in
	// the log.
	panicked bool
}

// fault is a kind of error that stays until the same goes well.
type fault int

const (
	listFault fault = iota
	watchFault
	heldFault
	faults
)

// NewMirror returns a mirror that holds nothing yet. It starts nothing.
func NewMirror[V any](opts Options[V]) *Mirror[V] {
	return &Mirror[V]{opts: opts, items: make(map[string]V), lines: rate.Sometimes{First: 10, Interval: 10 * time.Second}}
}

// Values returns what is held, by the name of the object, and how good it is.
func (m *Mirror[V]) Values() (map[string]V, State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.items), m.state
}

// State returns how good what is held is.
func (m *Mirror[V]) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Run lists and watches until ctx ends. It is called once.
func (m *Mirror[V]) Run(ctx context.Context) {
	m.heard()
	for ctx.Err() == nil {
		wait, err := m.turn(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			wait = m.fail(err)
		}
		pause(ctx, wait)
	}
}

// turn lists, where that is due, and watches. It returns how long to wait after
// what went well. A list that fails stops no watch that can go on.
func (m *Mirror[V]) turn(ctx context.Context) (time.Duration, error) {
	if m.version == "" || !time.Now().Before(m.relist) {
		err := m.guard(ctx, "list", m.list)
		if err != nil && (m.version == "" || ctx.Err() != nil) {
			return 0, err
		}
		if err != nil {
			m.relist = time.Now().Add(m.fail(err))
		}
	}
	began := time.Now()
	err := m.guard(ctx, "watch", m.follow)
	return shortWatch - time.Since(began), err
}

// guard makes a failure of a panic, and logs the first in a row.
func (m *Mirror[V]) guard(ctx context.Context, verb string, do func(context.Context) error) (err error) {
	defer func() {
		p := recover()
		if p != nil && !m.panicked {
			m.opts.Logger.Error("kubernetes mirror panicked", "verb", verb, "resource", m.opts.Client.kind.String(),
				"namespace", m.opts.Namespace, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
		if m.panicked = p != nil; m.panicked {
			err = m.opts.Client.failure(ctx, verb, m.opts.Namespace, fmt.Errorf("%w: %v", errPanic, p))
		}
	}()
	return do(ctx)
}

// fail notes what went wrong and returns how long to wait.
func (m *Mirror[V]) fail(err error) time.Duration {
	var e *Error
	if !errors.As(err, &e) {
		return minBackoff
	}
	m.opts.Metrics.asked(e.Verb, e.Reason)
	if e.Verb == "list" {
		m.note(listFault, e)
		return max(m.again[listFault].next(), e.after)
	}
	m.failures++
	if e.Reason == ReasonExpired || (relistHelps(e.Reason) && m.failures%triesBeforeList == 0) {
		m.version = ""
	}
	if e.Reason != ReasonExpired && e.Reason != ReasonSilent {
		m.note(watchFault, e) // those two are over with the next list
	}
	return max(m.again[watchFault].next(), e.after)
}

// relistHelps says that a watch failed in a way that may not end by trying
// again from the same version.
func relistHelps(reason store.Reason) bool {
	switch reason {
	case ReasonBadAnswer, ReasonShort, ReasonForbidden, ReasonRejected, ReasonPanic:
		return true
	}
	return false
}

// note keeps an error until it is cleared by nil, and logs it where it is
// another.
func (m *Mirror[V]) note(f fault, err error) {
	m.mu.Lock()
	old := m.state.Err
	m.errs[f] = err
	m.state.Err = nil
	for _, e := range m.errs {
		if m.state.Err == nil {
			m.state.Err = e
		}
	}
	current, listed := m.state.Err, m.state.Lists > 0
	m.mu.Unlock()
	if text(old) == text(current) {
		return
	}
	m.lines.Do(func() {
		log := m.opts.Logger.With("resource", m.opts.Client.kind.String(), "namespace", m.opts.Namespace)
		switch {
		case current == nil:
			log.Info("kubernetes list and watch go well again")
		case listed:
			log.Warn("kubernetes list not current, last one kept", "error", current.Error())
		default:
			log.Warn("kubernetes list cannot be read, there is none yet", "error", current.Error())
		}
	})
	m.signal()
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// heard notes that the server sent something.
func (m *Mirror[V]) heard() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.Heard = time.Now()
}

// signal says that there is something to look at.
func (m *Mirror[V]) signal() {
	select {
	case m.opts.Changed <- struct{}{}:
	default:
	}
}

// stood says that a watch did its work.
func (m *Mirror[V]) stood() {
	m.again[watchFault], m.failures = 0, 0
	m.note(watchFault, nil)
}

// backoff is the last delay of a series of failures.
type backoff time.Duration

// next returns how long to wait: twice as long each time, less up to a half.
func (b *backoff) next() time.Duration {
	*b = min(max(2**b, backoff(minBackoff)), backoff(maxBackoff))
	return time.Duration(*b)/2 + rand.N(time.Duration(*b)/2)
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// emptied is the error of a list that is held back.
func (m *Mirror[V]) emptied() error {
	return fmt.Errorf("the list of %s in namespace %s is empty where it had %d: the last one is kept until a list %v later confirms it",
		m.opts.Client.kind, m.opts.Namespace, len(m.items), holdFor)
}
