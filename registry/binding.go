package registry

import (
	"log/slog"
	"net/netip"

	"github.com/loadplane/loadplane/store"
)

// Claim is what the first message of a stream says of itself and what the
// connection proves.
type Claim struct {
	// Addr is the worker_addr of the message, as it was sent.
	Addr string
	Role store.Role
	// Source is the source instance, not empty.
	Source string
	// Peer is the remote address of the connection.
	Peer netip.AddrPort
}

// Refusal is the error of Bind, Binding.Check and Binding.Admit. It is
// immutable.
type Refusal struct {
	// Reason is the word that was counted.
	Reason store.Reason
	// Message states the fact for the peer, without internals.
	Message string
	// Detail states it for operators, where they should know more; it goes to
	// the log and the diagnostics.
	Detail string
	// Drop says that only this report is refused; the stream may go on. When
	// it is false the fault is one of identity, or the plane is stopping, and
	// the stream must end.
	Drop bool
}

// Error returns the reason and the message.
func (e *Refusal) Error() string { return string(e.Reason) + ": " + e.Message }

// Bind admits the first valid report of a stream: it checks identity and
// sequence, makes the stream the one that speaks for its worker, and leaves
// the report in the store. Nothing changes when it returns a *Refusal. A first
// report with an old sequence binds its stream and is otherwise ignored.
func (r *Registry) Bind(c Claim, first *store.Load) (*Binding, error) {
	origin, err := NormalizeOrigin(c.Addr)
	r.mu.RLock()
	b, w, why := r.bind(bid{Claim: c, origin: origin, bad: err, dialect: store.DialectPush}, first)
	r.mu.RUnlock()
	return r.bound(b, w, why, &c)
}

// bound tells of what came of a bid.
func (r *Registry) bound(b *Binding, w *worker, why *Refusal, c *Claim) (*Binding, error) {
	if why == nil {
		if b.replaced != nil {
			r.refuse(w, superseded())
			b.replaced = nil
		}
		return b, nil
	}
	r.refuse(w, why, c.attrs()...)
	if w != nil && why.Reason == ReasonRetired {
		poke(w.early)
	}
	return nil, why
}

// bid is a claim with its normalised origin, or why it has none, and the
// dialect and the lease of the stream that makes it.
type bid struct {
	Claim
	origin  string
	bad     error
	dialect store.Dialect
	// lease is that of a registered reporter; empty for other streams.
	lease string
}

// bind finds the worker of a bid and binds it. The caller holds r.mu, so
// neither the worker's removal nor a drain can fall in between.
func (r *Registry) bind(c bid, first *store.Load) (*Binding, *worker, *Refusal) {
	w := r.keepers[c.origin]
	switch {
	case r.draining:
		return nil, nil, shuttingDown()
	case c.bad != nil:
		return nil, nil, &Refusal{Reason: ReasonBadAddress, Message: "worker_addr: " + c.bad.Error()}
	case w == nil && !r.synced:
		return nil, nil, &Refusal{Reason: ReasonNotSynced, Message: "discovery is not complete yet"}
	case w == nil:
		return nil, nil, &Refusal{Reason: ReasonUnknownWorker, Message: "no worker has the origin " + c.origin}
	case w.noEngine:
		return nil, w, noEngine(w)
	case !w.pushes() && r.shared[c.origin]:
		return nil, w, &Refusal{
			Reason:  store.ReasonDuplicateOrigin,
			Message: "worker " + w.id + " has the same origin and does not push",
		}
	case !w.pushes():
		return nil, w, &Refusal{Reason: ReasonDialectMismatch, Message: "the worker's dialect is " + w.dialect.String()}
	}
	b, why := w.bind(c, first)
	return b, w, why
}

func noEngine(w *worker) *Refusal {
	return &Refusal{Reason: store.ReasonNoEngine, Message: "discovery says that nothing reports at the worker " + w.id}
}

// attrs say in the log who claims what.
func (c *Claim) attrs() []slog.Attr {
	return []slog.Attr{
		slog.String("addr", cut(c.Addr)), slog.String("source", cut(c.Source)), slog.String("peer", c.Peer.String()),
	}
}

// Refuse counts and logs a report that was refused before or after binding for
// a reason that is not the registry's own. b is nil before; c is what the
// report claims.
func (r *Registry) Refuse(b *Binding, c Claim, why *Refusal) {
	var w *worker
	if b != nil {
		w = b.w
	}
	r.refuse(w, why, c.attrs()...)
}

// Binding is the right of one stream, or of one session of a dialer, to speak
// for one worker. Admit is for one goroutine; the other methods are safe for concurrent use.
type Binding struct {
	w          *worker
	claim      bid
	generation uint64
	ended      chan struct{}

	// replaced is the binding whose place this one took, until that was told.
	replaced *Binding

	// why is set before ended closes, under the worker's lock.
	why *Refusal
}

// Check says whether a later message of a stream still claims what it was
// bound by; of that of a lease, the source instance alone. Another claim ends
// the binding.
func (b *Binding) Check(c Claim) error {
	named := b.claim.lease != "" || (c.Role == b.claim.Role && b.sameOrigin(c.Addr))
	if c.Source == b.claim.Source && named {
		return b.Err()
	}
	b.w.endIf(b, &Refusal{
		Reason:  ReasonClaimChanged,
		Message: "worker_addr, worker_type and source_instance_id must stay those of the first report",
	})
	return b.Err()
}

func (b *Binding) sameOrigin(addr string) bool {
	if addr == b.claim.Addr {
		return true
	}
	origin, err := NormalizeOrigin(addr)
	return err == nil && origin == b.claim.origin
}

// Admit leaves a further report in the store. An equal or lower sequence is
// counted and changes nothing, and is no error.
func (b *Binding) Admit(l *store.Load) error {
	w := b.w
	w.mu.Lock()
	if w.bound != b {
		why := b.why
		w.mu.Unlock()
		if why == nil {
			why = superseded() // used after Close
		}
		return why
	}
	v := w.judge(w.last, l)
	if v.accepts() {
		w.accept(v, l)
		w.reclaim(b)
		w.slot.Offer(b.generation, l)
	}
	w.mu.Unlock()
	if v == jumped {
		why := jumpRefusal()
		w.reg.refuse(w, why, slog.String("source", cut(l.Source)), slog.Uint64("sequence", l.Sequence))
		return why
	}
	return nil
}

// Heard returns when the report was received that was accepted last of the
// worker; 0 for never. After Admit it is that of a report whose sequence was
// newer.
func (b *Binding) Heard() store.Instant {
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	return b.w.accepted
}

// Ended closes when the stream lost its right; Err then says why.
func (b *Binding) Ended() <-chan struct{} { return b.ended }

// Err returns the *Refusal that ended the binding, nil while it lasts and
// after Close.
func (b *Binding) Err() error {
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	if b.why == nil {
		return nil
	}
	return b.why
}

// Close gives the right back. The last report stays and ages. The engine is
// asked early to report again, as its stream may not come back by itself.
func (b *Binding) Close() {
	w := b.w
	w.mu.Lock()
	mine := w.bound == b
	if mine {
		w.unbind()
		w.slot.Bind(w.stream(""))
	}
	w.mu.Unlock()
	if mine {
		poke(w.early)
	}
}
