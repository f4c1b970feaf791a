package registry

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
)

// Bounds of sequences, of the set of retired instances, and of the addresses
// that a message lists.
const (
	maxFirstSequence = 1 << 62
	maxSequenceJump  = 1 << 32
	maxRetired       = 16
	maxShownAddrs    = 4
)

// worker is one identity of a discovered worker: who may speak for it and who
// does. The fields above logged do not change.
type worker struct {
	reg       *Registry
	slot      *store.Slot
	id        string
	url       string
	origin    string
	duplicate bool
	noEngine  bool
	// dialect is the configured one; DialectUnspecified is auto.
	dialect store.Dialect
	// stop ends the worker's loop, where there is one; ask begins to inquire.
	stop context.CancelFunc
	ask  func()
	// changed signals a change in place, early that the engine should be asked
	// again soon, pushed that a stream came while another dialect had its
	// turn, back that an engine answers that refused connections or says
	// something else of its reporters, curious that the facts should be asked
	// for sooner, detailed that detail changed,
	// failing that connections began to be refused.
	changed, early, pushed, back, curious, detailed, failing chan struct{}

	// line is that of the requests to the engine.
	line *egress.Line

	// lines bounds those of the log.
	lines *lines

	mu   sync.Mutex
	spec WorkerSpec
	def  *store.Worker
	// roleKnown says that the role of def is more than assumed; claimed is
	// the role of a stream that was bound while it was not.
	roleKnown bool
	claimed   store.Role
	// turn is the dialect whose streams may bind; push and native always may
	// where they are configured or nothing is.
	turn store.Dialect
	// rival is the dialect of the dialer on trial beside the one that has the
	// turn; DialectUnspecified for none. rivalWay is what it showed last, and
	// rivalSince, where it is not preferred, when it began: it may speak while
	// nothing was heard since.
	rival      store.Dialect
	rivalWay   Way
	rivalSince store.Instant
	// engines are those of the dialers that run.
	engines []*Engine
	// registered is the engine as a reporter registered it, nil for never, and
	// lease the one that is held, empty for none.
	registered *WorkerSpec
	lease      string
	// facts are what the engine said of itself. wanted says that they are to
	// be asked for, asking that inquire runs.
	facts          Facts
	wanted, asking bool
	// behind is where the next search for pages begins; see Target.
	behind string
	// shown is the state of the way that operators see, and refusedSince when
	// connections began to be refused without a break.
	shown        Way
	refusedSince time.Time
	// failedSince is when the engine began to fail without a break.
	failedSince time.Time
	// firstShown is when a dialer on trial first showed what came of it, and
	// detail what the dialer reads.
	firstShown time.Time
	detail     string
	// roleMoved is when a role that the engine had said became another.
	roleMoved time.Time
	// addrs are the resolved addresses of the host.
	addrs []netip.Addr
	// bound is the stream that may speak; nil without one.
	bound      *Binding
	generation uint64
	// unbound is when a stream last lost its right, and doubt what is held
	// against reporters.
	unbound store.Instant
	doubt   doubt
	// source is the current instance and last where it stands; accepted is
	// when a report of any instance was last accepted, 0 for never.
	source   string
	last     position
	accepted store.Instant
	// retired are the superseded instances, oldest first.
	retired []retiree
	// uid is the last one that discovery named; empty for none.
	uid string
}

// position is the last accepted sequence of an instance, if there is one.
type position struct {
	sequence uint64
	known    bool
}

type retiree struct {
	source string
	last   position
}

func newWorker(r *Registry, d *definition, m memory) *worker {
	def := d.def
	signal := func() chan struct{} { return make(chan struct{}, 1) }
	w := &worker{
		reg: r, slot: r.opts.Store.NewSlot(def), stop: func() {},
		id: def.ID, url: def.URL, origin: def.Origin, dialect: d.dialect, duplicate: def.Duplicate,
		changed: signal(), early: signal(), pushed: signal(), back: signal(), curious: signal(), detailed: signal(), failing: signal(),
		spec: d.spec, def: def, roleKnown: d.roleKnown, facts: m.facts, line: m.line, lines: m.lines, roleMoved: m.roleMoved,
		registered: m.registered, noEngine: def.NoEngine, uid: d.spec.UID,
	}
	if w.line == nil {
		w.line = egress.NewLine()
	}
	if w.lines == nil {
		w.lines = newLines()
	}
	w.addrs = literalAddrs(w.host())
	return w
}

// pushes says whether streams of the push dialect may bind.
func (w *worker) pushes() bool {
	return w.dialect == store.DialectPush || w.dialect == store.DialectUnspecified
}

// host returns the host of the origin without brackets.
func (w *worker) host() string {
	return strings.Trim(w.origin[:strings.LastIndexByte(w.origin, ':')], "[]")
}

// literalAddrs returns the addresses that a host has without a resolver.
func literalAddrs(host string) []netip.Addr {
	if host == "localhost" {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr.Unmap()}
	}
	return nil
}

// bind admits a bid for this worker, or says why not and changes nothing.
func (w *worker) bind(c bid, first *store.Load) (*Binding, *Refusal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if why := w.checkRole(c.Role); why != nil {
		return nil, why
	}
	if why := w.checkPeer(c.Peer.Addr()); why != nil {
		return nil, why
	}
	if w.bound != nil && w.bound.claim.lease != "" && w.heardBefore(first) {
		return nil, leaseHeld()
	}
	return w.take(c, first)
}

// take makes the stream of a bid the one that speaks, or says why not and
// changes nothing. The caller holds r.mu for reading, and w.mu.
func (w *worker) take(c bid, first *store.Load) (*Binding, *Refusal) {
	if unasked(c.dialect) && w.reg.formers.bar(w.origin, w.uid, c.Source) {
		return nil, &Refusal{Reason: ReasonRetired, Message: "the source instance is that of what ran here before"}
	}
	last, back := w.position(c.Source)
	if back && w.heardBefore(first) && !w.otherWay(c.dialect) {
		return nil, &Refusal{Reason: ReasonRetired, Message: "another source instance took over and is still heard"}
	}
	v := w.judge(last, first)
	if v == jumped {
		return nil, jumpRefusal()
	}
	if back {
		w.reg.metrics.flaps.Inc()
	}
	if w.source != "" && w.source != c.Source {
		w.wonder() // it may be another engine
	}
	w.switchSource(c.Source, last)
	w.settle(c)
	old := w.bound
	b := w.attach(c)
	b.replaced = old
	if v.accepts() {
		w.accept(v, first)
		w.slot.Offer(b.generation, first)
	}
	return b, nil
}

// otherWay says that a bid is of another dialect than the one in force, and
// that who has the turn was decided before: the same process of the engine may
// come back by it.
func (w *worker) otherWay(d store.Dialect) bool {
	return w.dialect == store.DialectUnspecified && d != w.def.Dialect && d != store.DialectPush
}

// settle makes the dialect of a bid the one in force, where it was left open,
// and its role, where none is known. The caller holds r.mu for reading, so
// that no older definition is put in the place of a newer one.
func (w *worker) settle(c bid) {
	def := *w.def
	if w.doubt.on && c.dialect == store.DialectNative {
		w.doubt.end(w.reg.clock.Now())
	}
	if w.dialect == store.DialectUnspecified {
		def.Dialect = c.dialect
		if unasked(c.dialect) && w.turn != c.dialect {
			w.turn, w.rival = c.dialect, store.DialectUnspecified
			poke(w.pushed)
		}
	}
	if !w.roleKnown && c.Role != store.RoleUnspecified {
		def.Role, w.claimed, w.roleKnown = c.Role, c.Role, true
	}
	if def.Dialect != w.def.Dialect {
		w.reg.metrics.chose(def.Dialect)
		w.lines.turn.Do(func() {
			if attrs, ok := w.reg.roll.ways.room(slog.String("worker", w.id), slog.String("dialect", def.Dialect.String())); ok {
				w.reg.log.LogAttrs(context.Background(), slog.LevelInfo, "dialect chosen", attrs...)
			}
		})
	} else if def.Role == w.def.Role {
		return
	}
	w.def = &def
	w.reg.opts.Store.Apply(store.Discovery{Updated: []store.Update{{Slot: w.slot, Worker: &def}}})
}

// checkRole holds the role of a claim against the one that is known. Where
// none is known, that of the engine stands.
func (w *worker) checkRole(role store.Role) *Refusal {
	want := w.def.Role
	if !w.roleKnown {
		want = cmp.Or(w.facts.Role, role)
	}
	if role == want && role != store.RoleUnspecified {
		return nil
	}
	return &Refusal{
		Reason:  ReasonRoleMismatch,
		Message: "the claimed role is not the discovered one",
		Detail:  fmt.Sprintf("the report claims the role %q, discovery says %q", role, want),
	}
}

// checkPeer holds the address of a connection against those of the worker.
func (w *worker) checkPeer(peer netip.Addr) *Refusal {
	peer = peer.Unmap().WithZone("")
	allowed := func(p netip.Prefix) bool { return p.Contains(peer) }
	switch {
	case w.reg.opts.OriginOnly, slices.Contains(w.addrs, peer), slices.ContainsFunc(w.spec.Peers, allowed):
		return nil
	case len(w.addrs) == 0:
		return &Refusal{Reason: ReasonNotSynced, Message: "the addresses of " + w.origin + " are not known yet"}
	}
	return &Refusal{
		Reason:  ReasonPeerMismatch,
		Message: fmt.Sprintf("the connection comes from %s, which is no address of the worker; its setting peers= allows others", peer),
		Detail: cut(fmt.Sprintf("the connection comes from %s, expected %s; the worker's setting peers= allows others",
			peer, listAddrs(w.addrs, w.spec.Peers))),
	}
}

func listAddrs(addrs []netip.Addr, peers []netip.Prefix) string {
	var texts []string
	for _, a := range addrs {
		texts = append(texts, a.String())
	}
	for _, p := range peers {
		texts = append(texts, p.String())
	}
	if len(texts) > maxShownAddrs {
		texts = append(texts[:maxShownAddrs:maxShownAddrs], "...")
	}
	return strings.Join(texts, " or ")
}

// position returns where an instance stands and whether it is retired.
func (w *worker) position(source string) (last position, back bool) {
	if source == w.source {
		return w.last, false
	}
	for _, old := range w.retired {
		if old.source == source {
			return old.last, true
		}
	}
	return position{}, false
}

// heardBefore says whether the current instance was heard within StaleAfter
// when l was received.
func (w *worker) heardBefore(l *store.Load) bool {
	return w.accepted != 0 && l.Received.Sub(w.accepted) < w.reg.opts.StaleAfter
}

// verdict is the outcome of a sequence.
type verdict uint8

const (
	older verdict = iota
	jumped
	newer
	rebased
)

func (v verdict) accepts() bool { return v >= newer }

// judge compares the sequence of a report with where its instance stands, and
// counts one that is not newer.
func (w *worker) judge(last position, l *store.Load) verdict {
	switch {
	case last.known && l.Sequence <= last.sequence:
		w.reg.metrics.oldSequence.Inc()
		return older
	case last.known && l.Sequence-last.sequence <= maxSequenceJump:
		return newer
	case l.Sequence > maxFirstSequence:
		return jumped
	case !last.known:
		return newer
	case w.heardBefore(l):
		return jumped
	}
	return rebased
}

func jumpRefusal() *Refusal {
	return &Refusal{Reason: ReasonSequenceJump, Message: "the sequence is too far above the last accepted one", Drop: true}
}

// accept moves the current instance to an accepted report.
func (w *worker) accept(v verdict, l *store.Load) {
	if v == rebased {
		w.reg.metrics.rebased.Inc()
	} else {
		w.reg.metrics.followed(w.last, l.Sequence)
	}
	w.last = position{l.Sequence, true}
	w.accepted = l.Received
}

// switchSource makes source the current instance and retires the one before.
func (w *worker) switchSource(source string, last position) {
	if source == w.source {
		return
	}
	w.retired = slices.DeleteFunc(w.retired, func(old retiree) bool { return old.source == source })
	if w.source != "" {
		w.reg.metrics.takeovers.Inc()
		if len(w.retired) >= maxRetired {
			w.retired = slices.Delete(w.retired, 0, len(w.retired)-maxRetired+1)
		}
		w.retired = append(w.retired, retiree{w.source, w.last})
	}
	w.source, w.last = source, last
}

// attach gives the right to speak to a new binding.
func (w *worker) attach(c bid) *Binding {
	w.detach(superseded())
	w.generation++
	w.bound = &Binding{w: w, claim: c, generation: w.generation, ended: make(chan struct{})}
	w.slot.Bind(w.stream(c.Peer.String()))
	w.reg.metrics.bound.Inc()
	w.reg.streamed(w.bound, true)
	return w.bound
}

func superseded() *Refusal {
	return &Refusal{Reason: ReasonSuperseded, Message: "a newer stream speaks for the worker"}
}

// detach takes the right from the bound stream and says whether there was
// one.
func (w *worker) detach(why *Refusal) bool {
	b := w.bound
	if b == nil {
		return false
	}
	b.why = why
	close(b.ended)
	w.unbind()
	return true
}

// unbind leaves the worker without a stream.
func (w *worker) unbind() {
	w.reg.streamed(w.bound, false)
	w.bound, w.unbound = nil, w.reg.clock.Now()
	w.reg.metrics.bound.Dec()
}

// stream returns the worker's row of streams.
func (w *worker) stream(peer string) store.Stream {
	st := store.Stream{Row: w.slot.Row(), Source: w.source, Peer: peer, Generation: w.generation}
	for _, old := range w.retired {
		st.Retired = append(st.Retired, old.source)
	}
	return st
}

// end takes the right from whatever stream is bound, and says whether there
// was one. The caller tells of it, once it holds no lock.
func (w *worker) end(why *Refusal) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.detach(why)
}

// endIf takes the right from b if it has it, and has the engine asked early.
func (w *worker) endIf(b *Binding, why *Refusal) {
	w.mu.Lock()
	mine := w.bound == b && w.detach(why)
	if mine {
		w.slot.Bind(w.stream(""))
	}
	w.mu.Unlock()
	if mine {
		w.reg.refuse(w, why)
		poke(w.early)
	}
}

// heard says whether a report was ever accepted.
func (w *worker) heard() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.accepted != 0
}

// heardSince says whether a report was accepted since an instant.
func (w *worker) heardSince(at store.Instant) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.accepted >= at
}

// speaks says whether a stream of a dialect is bound.
func (w *worker) speaks(d store.Dialect) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bound != nil && w.bound.claim.dialect == d
}

// settings returns what the registration needs to know.
func (w *worker) settings() (WorkerSpec, *store.Worker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spec, w.def
}

// guarded says whether the address came from outside the plane's settings.
func (w *worker) guarded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spec.Guarded
}

// anotherUID says whether what discovery names is not what ran here before. The
// caller holds w.mu.
func (w *worker) anotherUID(uid string) bool { return w.uid != "" && uid != "" && uid != w.uid }

// learn adds what was found out of the host's addresses. A nil list keeps the
// last one.
func (w *worker) learn(addrs []netip.Addr) {
	if len(addrs) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addrs = addrs
}
