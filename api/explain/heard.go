package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
)

// maxSkew is the least skew of an engine's clock that is told. Clocks that are
// kept by NTP differ by milliseconds; a second is a whole report at the default
// interval, so that samples look one report older or newer than they are.
const maxSkew = time.Second

const (
	// restartWindow and manyRestarts say when an engine restarts too often.
	restartWindow = 10 * time.Minute
	manyRestarts  = 3
	// refusedLately is how long a refusal is told as a warning.
	refusedLately = time.Minute
)

// reached says how the engine is asked for its load, and whether it answers.
func (x *explainer) reached() {
	x.registration()
	x.lease()
	if next := x.g.NextRegistration; next != 0 {
		x.add(check{name: "next_call", value: "in " + span(next.Sub(x.Plane.Now)), verdict: info})
	}
	x.interval()
}

// registration is the state of the way to the engine.
func (x *explainer) registration() {
	g := x.g
	c := check{name: "registration", value: g.Registration, verdict: ok}
	switch g.Registration {
	case "":
		c.value, c.verdict = "not begun", unknown
	case "pending", "probing":
		c.verdict = unknown
	case "retrying", "failing", "parked", "conflict":
		c.verdict, c.reason = x.failing(), x.callReason()
	}
	if g.RegistrationStatus != 0 {
		c.value += fmt.Sprintf(", HTTP %d", g.RegistrationStatus)
	}
	if g.RegistrationError != "" {
		c.value += ": " + g.RegistrationError
	}
	x.add(c)
}

// undecided is the verdict where no dialect is in force yet.
func (x *explainer) undecided() pb.Verdict {
	if slices.Contains([]string{"", "pending", "probing"}, x.g.Registration) {
		return unknown
	}
	return x.failing()
}

// callReason is why the last call that failed did.
func (x *explainer) callReason() store.Reason {
	h, _ := x.last(store.EventCallFailed)
	return h.Reason
}

// lease is that of a reporter that registers itself.
func (x *explainer) lease() {
	left := x.g.LeaseExpires.Sub(x.Plane.Now)
	c := check{name: "lease", value: "ends in " + span(left), verdict: ok, limit: "renewed before it ends"}
	switch {
	case x.g.LeaseExpires == 0 && x.w.Dialect != store.DialectNative:
		return
	case x.g.LeaseExpires == 0:
		c.value, c.verdict = "no reporter holds one", x.failing()
		c.advice = "start the reporter of the engine, and let it register at this plane's ingest listener"
	case left <= 0:
		c.value, c.verdict = "ended "+span(-left)+" ago", x.failing()
		c.advice = "see why the reporter does not renew it: its log, and the way to this plane"
	}
	x.add(c)
}

// interval is the one in force against the one that is asked for.
func (x *explainer) interval() {
	asked := x.w.Interval
	c := check{name: "interval", value: span(asked), verdict: info}
	if x.g.PollInterval != 0 {
		c.value, c.limit, c.verdict = span(x.g.PollInterval)+" in force", span(asked)+" as asked for", ok
		if x.g.PollInterval > asked {
			c.verdict = warn
			c.advice = "the engine answers slowly: read its load page by hand, or ask for a longer interval"
		}
	}
	x.add(c)
}

// admitted says what was refused and who speaks for the worker.
func (x *explainer) admitted() {
	x.refusals()
	x.stream()
	x.instances()
}

func (x *explainer) refusals() {
	g := x.g
	if g.Refused == 0 {
		x.add(check{name: "refusals", value: "0", verdict: ok})
		return
	}
	c := check{name: "refusals", value: fmt.Sprintf("%d, last %s", g.Refused, g.LastRefusal), verdict: info}
	h, kept := x.last(store.EventRefused)
	if kept {
		c.value += ", " + x.ago(h.At)
	}
	if g.LastRefusalDetail != "" {
		c.value += ": " + g.LastRefusalDetail
	}
	switch {
	case !x.fresh() && !x.heardSince(h.At):
		c.verdict, c.reason = fail, g.LastRefusal
	case kept && x.Plane.Now.Sub(h.At) < refusedLately:
		c.verdict, c.reason = warn, g.LastRefusal
	}
	x.add(c)
}

// heardSince says that a report was accepted after an instant.
func (x *explainer) heardSince(at store.Instant) bool { return x.Live != nil && x.Live.Received > at }

// stream says which instance of the engine speaks, and from where.
func (x *explainer) stream() {
	st := x.Stream
	source := "source " + cmp.Or(st.Source, "unknown")
	switch {
	case st.Peer != "":
		x.add(check{name: "stream", value: source + ", peer " + st.Peer, verdict: ok})
	case st.Source == "":
		x.add(check{name: "stream", value: "none was bound yet", verdict: unknown})
	default:
		x.add(check{
			name: "stream", value: "none is bound; the last was of " + source, verdict: x.failing(),
			advice: "see whether the engine runs and can reach this plane; it is asked again by itself",
		})
	}
}

// instances says how often the engine was another process.
func (x *explainer) instances() {
	c := check{name: "instances", value: "no other instance was heard", verdict: ok}
	if n := len(x.Stream.Retired); n > 0 {
		c.value, c.verdict = fmt.Sprintf("%d earlier, last %s", n, x.Stream.Retired[n-1]), info
	}
	changes := uint32(0)
	for _, h := range x.g.Happenings {
		if h.Event == store.EventSourceChanged && x.Plane.Now.Sub(h.At) < restartWindow {
			changes += h.Count
		}
	}
	if changes >= manyRestarts {
		c.value += fmt.Sprintf("; %d changes in %s", changes, span(restartWindow))
		c.limit, c.verdict = fmt.Sprintf("below %d in %s", manyRestarts, span(restartWindow)), warn
		c.advice = "see whether the engine restarts again and again, or two engines share the address"
	}
	x.add(c)
}

// heard says what the last report is worth.
func (x *explainer) heard() {
	x.lastReport()
	x.validity()
	if x.Live == nil {
		return
	}
	x.status()
	x.skew()
	x.sampleAge()
}

func (x *explainer) lastReport() {
	limit := "below " + span(x.Plane.StaleAfter)
	if x.Live == nil {
		c := check{name: "last_report", value: "none was accepted yet", limit: limit, verdict: fail, reason: x.Entry.Reason}
		if x.Plane.Warming {
			c.verdict = unknown
		}
		x.add(c)
		return
	}
	age := x.Plane.Now.Sub(x.Live.Received)
	c := check{
		name: "last_report", value: fmt.Sprintf("sequence %d, %s ago", x.Live.Sequence, span(age)),
		limit: limit, verdict: ok,
	}
	switch {
	case age >= x.Plane.StaleAfter:
		c.verdict, c.reason = fail, store.ReasonAge
	case age > 2*x.w.Interval && age > x.Plane.StaleAfter/2:
		c.verdict, c.advice = warn, "two reports are overdue: see the last happenings"
	}
	x.add(c)
}

func (x *explainer) validity() {
	c := check{name: "validity", limit: "above 0"}
	switch left := x.left(); {
	case x.Live == nil:
		c.value, c.verdict = "nothing was heard", unknown
	case x.Entry.Reason == store.ReasonSuspended:
		c.value, c.verdict, c.reason = "the machine slept since the last report", fail, store.ReasonSuspended
	case left <= 0:
		c.value, c.verdict, c.reason = "ended "+span(-left)+" ago", fail, store.ReasonAge
	default:
		c.value, c.verdict = "another "+span(left), ok
	}
	x.add(c)
}

// status is what the engine says of its own report.
func (x *explainer) status() {
	c := check{name: "status", value: x.Entry.Load.Status.String(), limit: "healthy", verdict: ok}
	if x.Live.LastError != "" {
		c.value += ", last error: " + x.Live.LastError
	}
	switch x.Entry.Load.Status {
	case store.StatusStale:
		c.verdict, c.reason = fail, store.ReasonEngineStale
	case store.StatusUnreachable:
		c.verdict, c.reason = fail, store.ReasonEngineUnreachable
	}
	x.add(c)
}

// skew is the engine's wall clock less the plane's, the way of the report
// included.
func (x *explainer) skew() {
	limit := max(maxSkew, x.w.Interval)
	if x.Live.ReportUnixMs < 0 {
		x.add(check{name: "clock_skew", value: "the engine's clock is not told", limit: "within " + span(limit), verdict: unknown})
		return
	}
	ms := x.Live.ReportUnixMs - x.Live.ReceivedUnixMs
	c := check{name: "clock_skew", value: fmt.Sprintf("%+d ms", ms), limit: "within " + span(limit), verdict: ok}
	if most := limit.Milliseconds(); ms > most || ms < -most {
		c.verdict = warn
		c.advice = "set the clocks by NTP; freshness does not depend on them, the sample times that are shown do"
	}
	x.add(c)
}

// sampleAge is how old the oldest rank's sample was when the engine reported,
// both by the engine's clock.
func (x *explainer) sampleAge() {
	c := check{name: "sample_age", limit: "below " + span(x.Plane.StaleAfter)}
	if x.Live.OldestSampleUnixMs < 0 || x.Live.ReportUnixMs < 0 {
		c.value, c.verdict = "the time of the samples is not told", unknown
		x.add(c)
		return
	}
	ms := max(0, x.Live.ReportUnixMs-x.Live.OldestSampleUnixMs)
	c.verdict = ok
	if ms >= x.Plane.StaleAfter.Milliseconds() {
		c.verdict, c.advice = warn, "the engine reports old samples: see whether a scheduler of it hangs"
	}
	const day = 24 * 60 * 60 * 1000
	c.value = "above a day"
	if ms < day {
		c.value = span(time.Duration(ms)*time.Millisecond) + " at the report"
	}
	x.add(c)
}

// freshness is what readers are told.
func (x *explainer) freshness() {
	e := x.Entry
	word, reason := e.Freshness.String(), e.Reason
	if e.Freshness == store.Fresh && x.left() <= 0 {
		word, reason = store.Stale.String(), store.ReasonAge
	}
	c := check{name: "freshness", value: word, limit: store.Fresh.String(), verdict: ok, reason: reason}
	switch {
	case word == store.Fresh.String():
	case x.w.Dialect == store.DialectNone:
		c.verdict = info
	case x.Plane.Warming && e.Freshness == store.Missing:
		c.verdict = unknown
	default:
		c.verdict = fail
	}
	if reason != "" {
		c.value += ", " + strings.ReplaceAll(string(reason), "_", " ")
	}
	x.add(c)
}
