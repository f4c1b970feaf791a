package monitor

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/loadreport"
	"github.com/loadplane/loadplane/ingest/monitor/frame"
	"github.com/loadplane/loadplane/ingest/monitor/link"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
)

const (
	// rateBurst is how many reports above twice the wanted rate are taken at
	// once.
	rateBurst = 5
	// An engine may send ten frames an interval for good, or 200 a second, and
	// floodBurst beyond that.
	floodPerInterval = 10
	floodPerSecond   = 200
	floodBurst       = 1000
)

// intake takes the frames of one session: it validates and admits the reports.
// The receiver brings frames, the session brings what waited; it is safe for
// concurrent use.
type intake struct {
	monitor *Monitor
	engine  *registry.Engine
	peer    netip.AddrPort

	// acks and opened bring the grant and the binding to the session, once
	// each; held says that a report waits, or that the first
	// one was admitted.
	acks   chan frame.Ack
	opened chan *registry.Binding
	held   chan struct{}

	mu      sync.Mutex
	message *loadreport.Message
	rate    *rate.Limiter
	flood   *rate.Limiter
	streak  ingest.Streak
	binding *registry.Binding
	// source is the instance that the session was bound by, and prefill says
	// that it has sent a prefill throughput.
	source  string
	prefill bool
	// acked is when the session was acknowledged, heard when a report came last,
	// admitted when one was admitted last; zero for never. A report whose
	// sequence is refused counts for neither; refused says that the last one was
	// such.
	acked, heard, admitted time.Time
	refused                bool
	waiting                waiting
	// over is what ended the session; closed says that it has ended.
	over   *fault
	closed bool
}

// waiting is a report above the rate. Newer ones take its place.
type waiting struct {
	bytes []byte
	at    receipt
	// due is when it is looked at; zero where none waits.
	due time.Time
}

// receipt is when a report was received.
type receipt struct {
	at     store.Instant
	unixMs int64
}

func (m *Monitor) newIntake(e *registry.Engine, peer netip.AddrPort) *intake {
	in := &intake{
		monitor: m, engine: e, peer: peer,
		acks: make(chan frame.Ack, 1), opened: make(chan *registry.Binding, 1), held: make(chan struct{}, 1),
		message: loadreport.New(m.opts.MaxRanks),
		rate:    rate.NewLimiter(0, rateBurst), flood: rate.NewLimiter(0, floodBurst),
	}
	return in
}

// pace sets the bounds for reports at an interval.
func (in *intake) pace(interval time.Duration) {
	in.mu.Lock()
	defer in.mu.Unlock()
	each := rate.Every(interval)
	in.rate.SetLimit(2 * each)
	in.flood.SetLimit(max(floodPerInterval*each, floodPerSecond))
}

// receive takes frames until the stream ends, and says why it did.
func (in *intake) receive(stream grpc.ClientStream) (why *fault) {
	defer func() {
		if p := recover(); p != nil {
			why = in.monitor.panicked(in.engine, p)
		}
	}()
	for {
		if err := stream.RecvMsg(in); err != nil {
			return in.broke(err)
		}
		if why := in.ended(); why != nil {
			return why
		}
	}
}

// panicked tells of a panic of what reads frames.
func (m *Monitor) panicked(e *registry.Engine, p any) *fault {
	m.crashes.Do(func() {
		m.opts.Logger.Error("frame reader panicked", "worker", e.Target().ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	})
	return faultf(ReasonSessionPanic, "the reader of frames panicked: %v", p)
}

// broke counts a frame that was too large to be read as a refused report. What
// the engine itself ends the session with is none.
func (in *intake) broke(err error) *fault {
	if !link.TooLarge(err) {
		return lost(err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.refuse(ingest.Refuse(ingest.ReasonMessageTooLarge, "the frame was not read"))
	return &fault{reason: ingest.ReasonMessageTooLarge, err: err}
}

func (in *intake) ended() *fault {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.over
}

// DecodeWire takes the bytes of a frame, which it does not keep. It returns no
// error, which would hide what is wrong.
func (in *intake) DecodeWire(b []byte) error {
	in.frame(b)
	return nil
}

func (in *intake) frame(b []byte) {
	now := time.Now()
	in.mu.Lock()
	defer in.mu.Unlock()
	in.monitor.metrics.bytes.Add(float64(len(b)))
	if in.closed || in.over != nil {
		return
	}
	var f frame.Frame
	ok := f.Parse(b)
	switch {
	case in.acked.IsZero():
		in.over = in.begin(ok, &f, now)
	case !in.flood.AllowN(now, 1):
		in.over = faultf(ReasonReportFlood, "more than %d frames came above the rate", floodBurst)
	case !ok:
		in.over = in.refuse(ingest.Refuse(ingest.ReasonMalformed, "the bytes are no frame"))
	case f.Kind == frame.Report:
		in.over = in.report(f.Report, now)
	default:
		in.over = unexpected(&f)
	}
}

// begin takes the first frame.
func (in *intake) begin(ok bool, f *frame.Frame, now time.Time) *fault {
	if !ok || f.Kind != frame.Registered {
		return unexpected(f)
	}
	in.acked, in.heard = now, now
	in.acks <- f.Ack
	return nil
}

func unexpected(f *frame.Frame) *fault {
	switch f.Kind {
	case frame.Error:
		return faultf(ReasonSessionRefused, "the engine refuses: %.64q: %.200q", f.Code, f.Message)
	case frame.Report:
		return faultf(ReasonUnexpectedFrame, "a report came before the registration was answered")
	case frame.Registered:
		return faultf(ReasonUnexpectedFrame, "the registration was answered twice")
	}
	return faultf(ReasonUnexpectedFrame, "a frame is empty or no frame")
}

// report takes a report, or has it wait where it is above the rate. One that
// waits is replaced.
func (in *intake) report(b []byte, now time.Time) *fault {
	at := receipt{in.monitor.opts.Clock.Now(), now.UnixMilli()}
	if in.waiting.due.IsZero() {
		delay := in.rate.ReserveN(now, 1).DelayFrom(now)
		if delay == 0 {
			return in.admit(b, at)
		}
		in.waiting.due = now.Add(delay)
		poke(in.held)
	}
	in.monitor.metrics.overRate.Inc()
	// More than that is refused without being looked at.
	in.waiting.bytes = append(in.waiting.bytes[:0], b[:min(len(b), ingest.MaxMessageBytes+1)]...)
	in.waiting.at = at
	return nil
}

func poke(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// flush takes the report that waits, where it is due. It is called outside of
// the receiver, which a panic would not end.
func (in *intake) flush(now time.Time) (why *fault) {
	in.mu.Lock()
	defer in.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			why = in.monitor.panicked(in.engine, p)
			in.over = why
		}
	}()
	w := &in.waiting
	if in.closed || in.over != nil || w.due.IsZero() || now.Before(w.due) {
		return nil
	}
	w.due = time.Time{}
	in.over = in.admit(w.bytes, w.at)
	return in.over
}

// admit decodes a report and leaves it in the store. It says why the session
// ends, nil while it goes on.
func (in *intake) admit(b []byte, at receipt) *fault {
	m := in.message
	if m.Decode(b); m.Fault != nil {
		return in.refuse(m.Fault)
	}
	sent := m.Report.FillPrefill(in.prefill || in.remembered())
	load, refused := ingest.Validate(in.stripped(at), ingest.Rules{MaxRanks: in.monitor.opts.MaxRanks})
	if refused != nil {
		return in.refuse(refused)
	}
	if in.binding != nil && load.Source != in.source {
		return in.refuse(&registry.Refusal{
			Reason: registry.ReasonClaimChanged, Message: "source_instance_id must stay that of the first report",
		})
	}
	if err := in.offer(load); err != nil {
		return in.object(err)
	}
	in.streak.Accept()
	if in.refused = in.binding.Heard() != load.Received; in.refused {
		return nil // its sequence is not above the last one
	}
	in.accepted(load)
	if sent && !in.prefill {
		in.prefill = true
		in.monitor.sources.Add(load.Source)
	}
	return nil
}

// remembered says whether the source has sent a prefill throughput in a
// session before this one.
func (in *intake) remembered() bool {
	return in.binding == nil && in.monitor.sources.Has(in.message.Report.Source)
}

// stripped returns the report without what it claims of its worker: the
// engine's own address may be that of all its interfaces.
func (in *intake) stripped(at receipt) *ingest.Report {
	r := in.message.Report
	r.Claimed, r.Addr, r.Role, r.Model, r.Zone = false, "", 0, "", ""
	r.Received, r.ReceivedUnixMs = at.at, at.unixMs
	return &r
}

// offer binds the session by its first valid report, and admits later ones.
func (in *intake) offer(load *store.Load) error {
	if in.binding != nil {
		return in.binding.Admit(load)
	}
	binding, err := in.engine.Open(load.Source, in.peer, load)
	if err != nil {
		return err
	}
	in.binding, in.source = binding, load.Source
	in.opened <- binding
	return nil
}

func (in *intake) accepted(load *store.Load) {
	if in.admitted.IsZero() {
		poke(in.held) // the session is to look
	}
	in.admitted = time.Now()
	in.heard = in.admitted
	metrics := in.monitor.metrics
	metrics.accepted.Inc()
	if age, ok := ingest.SampleAge(load); ok {
		metrics.sampleAge.Observe(age.Seconds())
	}
}

// refuse tells of a refusal that is not the registry's.
func (in *intake) refuse(r *registry.Refusal) *fault {
	in.engine.Refuse(r)
	return in.object(r)
}

// object counts a refusal. It returns what ends the session, nil where only the
// report is dropped.
func (in *intake) object(err error) *fault {
	why := refusal(err)
	if in.refused = why.reason == registry.ReasonSequenceJump; !in.refused {
		in.heard = time.Now()
	}
	count(in.monitor.metrics.refused, string(why.reason))
	var r *registry.Refusal
	if !errors.As(err, &r) {
		return why
	}
	if over := in.streak.Refuse(r); over != nil {
		return refusal(over)
	}
	return nil
}

// timing is what the session has to know of what came.
type timing struct {
	acked, heard, due, admitted time.Time
	refused                     bool
}

func (in *intake) timing() timing {
	in.mu.Lock()
	defer in.mu.Unlock()
	return timing{in.acked, in.heard, in.waiting.due, in.admitted, in.refused}
}

// close gives the right to speak back. Frames that come later are dropped.
func (in *intake) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	if in.binding != nil {
		in.binding.Close()
	}
}
