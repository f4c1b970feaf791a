package registry

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
)

// Facts are what an engine says of itself. A zero field is unknown. It is a
// plain value and its slices must not be changed.
type Facts struct {
	// Family is the engine's kind, such as "sglang" or "vllm".
	Family string
	// Version is the engine's own, as it was sent.
	Version string
	// Models are the served models, sorted, without duplicates. They stand
	// where discovery names none.
	Models []string
	// Role stands where discovery names none.
	Role store.Role
	// DPSize is the number of DP ranks.
	DPSize int
	// CapacityTokens is the KV cache capacity of a rank in tokens, for engines
	// whose load page does not say it.
	CapacityTokens int64
	// MaxRunning is the most requests that a rank runs at once, for engines
	// whose load page does not say it.
	MaxRunning int64
	// ReporterPort is the port on which the engine's load reporter is to be
	// dialled; 0 for none.
	ReporterPort int
	// LoadStat is where the engine publishes its load.
	LoadStat LoadStat
}

// LoadStat is where an engine publishes the load of its DP ranks, one ZMQ
// socket for each. It is a plain value and comparable; a zero Port says that
// the engine publishes none.
type LoadStat struct {
	// Host is empty where it is the engine's own, which a wildcard address
	// means.
	Host string
	// Port is that of rank 0; rank r has Port + r.
	Port int
	// Topic is the first frame of each message; empty for the usual one.
	Topic string
	// Ranks is the number of sockets.
	Ranks int
}

// Target is what a prober or a dialer needs to know of a worker, as it is at
// one moment. It is a plain value.
type Target struct {
	// ID, URL and Origin are the worker's; URL has no trailing slash.
	ID, URL, Origin string
	// Interval is the one at which reports are wanted.
	Interval time.Duration
	// Models are those that discovery names; nil for none.
	Models []string
	// MaxRunning is the most requests that a rank runs at once, as discovery
	// says; 0 for unknown.
	MaxRunning int64
	// TokenFile and CAFile are the credentials in force; empty for none.
	TokenFile, CAFile string
	// ReporterPort is the port of the load reporter in force: that of discovery,
	// else that of Facts, else the general one; 0 for none.
	ReporterPort int
	// Lease is the one that a session asks for.
	Lease time.Duration
	// Facts are what is known of the engine so far.
	Facts Facts
	// Using is the dialect in use. A probe then asks about those preferred to
	// it alone, and for no facts but those that tell whether they are there;
	// DialectUnspecified asks for all.
	Using store.Dialect
	// Behind is the page that was the last to time out when the engine was
	// asked for all; the next search begins behind it. Empty for none.
	Behind string
	// Line is that of all requests to the engine but registrations, of which
	// one is under way at a time; nil for none.
	Line *egress.Line
	// Patience bounds a question while load is read from the engine as well,
	// which waits for it; 0 for no bound of its own.
	Patience time.Duration
}

// Verdict says whether an engine offers a dialect.
type Verdict uint8

// The verdicts.
const (
	// VerdictUnknown: there was no definite answer; ask again.
	VerdictUnknown Verdict = iota
	// VerdictOffered: the dialect can be tried.
	VerdictOffered
	// VerdictAbsent: the engine does not have it, or refuses it.
	VerdictAbsent
)

// String returns the word that people see.
func (v Verdict) String() string { return [...]string{"unknown", "offered", "absent"}[v] }

// Offer says whether an engine offers one dialect, and why that is known. It
// is a plain value.
type Offer struct {
	Dialect store.Dialect
	Verdict Verdict
	// Reason is why the dialect is not offered; empty where it is.
	Reason store.Reason
	// Detail says what was asked and answered, for people.
	Detail string
}

// Finding is what came of asking an engine. It is a plain value.
type Finding struct {
	// Facts are what the engine said of itself.
	Facts Facts
	// Complete says that there is nothing more to learn: every question about
	// Facts had a definite answer.
	Complete bool
	// Offers are in the order of preference, one for each dialect that was
	// asked about.
	Offers []Offer
	// Behind is what Target.Behind is to be for the next search.
	Behind string
}

// Prober asks engines what they are and what they offer. It reads only, joins
// Target.Line for each question, and its methods are safe for concurrent use.
// Both return within the bound of one
// call each for the few questions that they ask.
type Prober interface {
	// Facts asks what the engine is; the finding has no offers.
	Facts(ctx context.Context, t Target) Finding
	// Probe asks what the engine is and which dialects it offers; which of it,
	// says Target.Using.
	Probe(ctx context.Context, t Target) Finding
}

// Dialer speaks to engines in a dialect in which the plane dials them. It joins
// Target.Line for each request, and is safe for concurrent use.
type Dialer interface {
	// Serve keeps the load of one worker coming until ctx ends, and then
	// returns an empty reason. It bears all passing trouble itself. It returns
	// a reason where the engine does not have the dialect (ReasonUnsupported),
	// refuses it (ReasonAuth), where another process answers than before
	// (ReasonInstanceChanged), or where the worker is spoken for by another
	// stream (the reason of the refusal).
	// After a definite answer the engine is left alone for a minute, or asked
	// anew what it offers; after ReasonInstanceChanged it is served again at
	// once. It is called once at a time for each worker, and for many workers
	// at once.
	Serve(ctx context.Context, e *Engine) store.Reason
}

// Engine is a worker as a dialer works with it. It is safe for concurrent use.
type Engine struct {
	w       *worker
	dialect store.Dialect
	changed chan struct{}
}

// engine returns the worker for one run of a dialer, until leave is called.
func (w *worker) engine(d store.Dialect) (e *Engine, leave func()) {
	e = &Engine{w: w, dialect: d, changed: make(chan struct{}, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	drain(w.changed) // what changed until now is in the target
	w.engines = append(w.engines, e)
	return e, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.engines = slices.DeleteFunc(w.engines, func(other *Engine) bool { return other == e })
	}
}

// stir signals that the target may have changed. The caller holds w.mu.
func (w *worker) stir() {
	poke(w.changed)
	for _, e := range w.engines {
		poke(e.changed)
	}
}

// Way is the state of the way to an engine, for diagnostics. It is a plain
// value.
type Way struct {
	State RegistrationState
	// Reason and Err say what failed last; empty after a good call.
	Reason store.Reason
	Err    error
	// Status is the HTTP status of the last call; 0 without an answer.
	Status int
	// Interval is the one in force; 0 leaves the shown one.
	Interval time.Duration
	// Detail says what is read, for people; empty for nothing new.
	Detail string
	// Renewal is the time until the session is renewed; 0 where it is not, or
	// nothing is new.
	Renewal time.Duration
}

// Target returns what is known of the worker now.
func (e *Engine) Target() Target { return e.w.target() }

func (w *worker) target() Target {
	w.mu.Lock()
	defer w.mu.Unlock()
	opts := &w.reg.opts
	patience := opts.StaleAfter / 2
	if w.turn == store.DialectUnspecified || unasked(w.turn) {
		patience = 0
	}
	return Target{
		Line: w.line, Behind: w.behind, Patience: patience,
		ID: w.id, URL: w.url, Origin: w.origin, Interval: w.def.Interval,
		Models: w.spec.Models, MaxRunning: w.spec.MaxRunning, Facts: w.facts,
		TokenFile: cmp.Or(w.spec.TokenFile, opts.TokenFile), CAFile: cmp.Or(w.spec.CAFile, opts.CAFile),
		ReporterPort: cmp.Or(w.spec.reporterPort(), w.facts.ReporterPort, opts.ReporterPort), Lease: opts.Lease,
	}
}

// Changed signals that discovery, or what the engine says of its reporters, may
// have changed the target in place. It is for the dialer that serves the engine.
func (e *Engine) Changed() <-chan struct{} { return e.changed }

// Wonder has the engine asked anew, soon, what it says of itself: for a dialer
// that finds nobody where the engine was. Facts that differ signal Changed.
func (e *Engine) Wonder() { e.w.wonderNow() }

// Open makes a session of a dialer the stream that speaks for the worker and
// leaves its first load in the store. source names the instance of the engine
// process; peer is the address that was dialled. Nothing changes when it
// returns a *Refusal, as it does while another dialect is in force. A dialer
// that is on trial beside the one in use takes its place.
func (e *Engine) Open(source string, peer netip.AddrPort, first *store.Load) (*Binding, error) {
	c := bid{Claim: Claim{Addr: e.w.url, Source: source, Peer: peer}, origin: e.w.origin, dialect: e.dialect}
	r := e.w.reg
	r.mu.RLock()
	b, overtook, why := e.w.open(c, first)
	r.mu.RUnlock()
	if overtook != nil {
		e.Show(*overtook)
	}
	return r.bound(b, e.w, why, &c.Claim)
}

// open admits a dialer's bid. Where it was on trial, what it showed last is
// returned as well. The caller holds r.mu for reading.
func (w *worker) open(c bid, first *store.Load) (b *Binding, overtook *Way, why *Refusal) {
	if w.reg.draining {
		return nil, nil, shuttingDown()
	}
	if now := w.reg.workers[w.id]; now != w {
		return nil, nil, gone(now != nil)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	rival := w.rival == c.dialect && w.turn != c.dialect
	if rival && w.rivalSince != 0 && w.accepted > w.rivalSince {
		return nil, nil, superseded()
	}
	if w.turn != c.dialect && !rival {
		return nil, nil, superseded()
	}
	b, why = w.take(c, first)
	if why == nil && rival {
		overtook = w.overtake(c.dialect)
	}
	return b, overtook, why
}

// Refuse counts and logs a report of the worker that was refused before it
// reached the store.
func (e *Engine) Refuse(why *Refusal) { e.w.reg.refuse(e.w, why) }

// Show tells operators how the way to the engine is. It is cheap where nothing
// changed. It does nothing once another dialect is in force; what a dialer on
// trial shows is kept until its dialect is.
func (e *Engine) Show(way Way) {
	w := e.w
	w.mu.Lock()
	mine := w.turn == e.dialect
	if !mine && w.rival == e.dialect {
		w.rivalWay = way
	}
	if way.Interval == 0 {
		way.Interval = w.shown.Interval
	}
	if mine {
		w.dialled(way.Detail)
	}
	w.mu.Unlock()
	if mine {
		w.show(way)
		w.note(way)
	}
}

// dialled notes that a dialer shows something, and what it says that it reads.
// The caller holds w.mu.
func (w *worker) dialled(detail string) {
	if w.firstShown.IsZero() {
		w.firstShown = time.Now()
	}
	if detail != "" && detail != w.detail {
		w.detail = detail
		poke(w.detailed)
	}
}

// forgetShown begins anew with what dialers show.
func (w *worker) forgetShown() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.firstShown, w.detail = time.Time{}, ""
	drain(w.back)
	drain(w.failing)
	drain(w.detailed)
}
