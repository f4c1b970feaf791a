package explain

import (
	"fmt"
	"strings"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/protobuf/proto"
)

// maxText bounds a value, bytes.
const maxText = 1024

// Facts are what is known of one worker and of the plane, at one moment. They
// are a plain value, and nothing in them is changed.
type Facts struct {
	// Entry is the worker's content. Required.
	Entry *store.Entry
	// Live is its receipt; nil until heard.
	Live *store.Live
	// Stream and Diagnostics are the rows of the way to it.
	Stream      store.Stream
	Diagnostics store.Diagnostics
	// Plane is how the plane itself is.
	Plane Plane
}

// Plane is how the plane is. It is a plain value.
type Plane struct {
	// Now is the moment of the answer.
	Now store.Instant
	// StaleAfter is the age at which a report stops being fresh.
	StaleAfter time.Duration
	// Warming says that the plane has not yet heard the workers it expects.
	Warming bool
	// Sources are those of discovery.
	Sources []store.SourceStatus
}

// Checks returns what has to hold for the worker to be seen as it is, in the
// order in which load comes: found, reached, admitted, heard, valid, fresh,
// shown. What cannot apply to the worker is left out.
func Checks(f Facts) []*pb.Check {
	x := &explainer{Facts: f, w: f.Entry.Worker, g: &f.Diagnostics}
	x.plane()
	x.discovered()
	x.draining()
	x.engine()
	x.dialect()
	if x.w.Hearable() {
		x.reached()
		x.admitted()
		x.heard()
	}
	x.freshness()
	x.ranks()
	return x.checks
}

// explainer collects the checks of one worker. It is for one goroutine.
type explainer struct {
	Facts
	w      *store.Worker
	g      *store.Diagnostics
	checks []*pb.Check
}

// check is one check in the making. Empty texts are absent.
type check struct {
	name, value, limit, advice string
	verdict                    pb.Verdict
	reason                     store.Reason
}

const (
	ok      = pb.Verdict_VERDICT_OK
	info    = pb.Verdict_VERDICT_INFO
	warn    = pb.Verdict_VERDICT_WARN
	fail    = pb.Verdict_VERDICT_FAIL
	unknown = pb.Verdict_VERDICT_UNKNOWN
)

func (x *explainer) add(c check) {
	if c.advice == "" && (c.verdict == fail || c.verdict == warn) {
		c.advice = adviceFor(c.reason)
	}
	x.checks = append(x.checks, &pb.Check{
		Name: c.name, Value: Text(c.value), Limit: optional(c.limit), Verdict: c.verdict,
		Advice: optional(c.advice), Reason: optional(string(c.reason)),
	})
}

// fresh says that the worker is fresh now.
func (x *explainer) fresh() bool { return x.Entry.Freshness == store.Fresh && x.left() > 0 }

// left is for how long the last report is still valid; 0 or less when it is
// not, or nothing was heard.
func (x *explainer) left() time.Duration {
	if x.Live == nil {
		return 0
	}
	return x.Live.ValidUntil.Sub(x.Plane.Now)
}

// failing is the verdict on trouble: as long as reports come it costs nothing
// yet.
func (x *explainer) failing() pb.Verdict {
	if x.fresh() {
		return warn
	}
	return fail
}

// last returns the newest happening of an event.
func (x *explainer) last(e store.Event) (store.Happening, bool) {
	for i := len(x.g.Happenings) - 1; i >= 0; i-- {
		if h := x.g.Happenings[i]; h.Event == e {
			return h, true
		}
	}
	return store.Happening{}, false
}

// ago shows the time since an instant.
func (x *explainer) ago(at store.Instant) string {
	return span(x.Plane.Now.Sub(at)) + " ago"
}

// span shows a time with three digits or so, never negative.
func span(d time.Duration) string {
	d = max(0, d)
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Hour:
		d = d.Round(time.Minute)
	}
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}

// Text makes a text from outside valid UTF-8 of at most 1 KiB.
func Text(s string) string {
	if len(s) > maxText {
		s = s[:maxText-3] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return proto.String(Text(s))
}

// Happenings returns what happened last, newest first.
func Happenings(list []store.Happening) []*pb.Diagnostic {
	out := make([]*pb.Diagnostic, 0, len(list))
	for i := len(list) - 1; i >= 0; i-- {
		h := list[i]
		out = append(out, &pb.Diagnostic{
			AtMs: h.At.Milliseconds(), Event: string(h.Event), Reason: optional(string(h.Reason)),
			Detail: optional(h.Detail), Count: h.Count,
		})
	}
	return out
}

// Summary says in a sentence or two what is wrong and what to do, out of the
// checks of a worker: the first that fails decides, else the first that warns.
func Summary(checks []*pb.Check) string {
	worst, n := worstOf(checks)
	if worst == nil {
		return "Nothing is wrong: " + standing(checks) + "."
	}
	if worst.GetVerdict() == warn {
		text := fmt.Sprintf("Nothing fails (%s), but %s: %s", standing(checks), title(worst), said(worst))
		return text + advised(worst) + more(n, "warn")
	}
	text := fmt.Sprintf("%s; %s: %s", capital(standing(checks)), title(worst), said(worst))
	return text + advised(worst) + more(n, "fail")
}

// worstOf returns the check that decides, and how many are as bad.
func worstOf(checks []*pb.Check) (worst *pb.Check, n int) {
	for _, c := range checks {
		v := c.GetVerdict()
		switch {
		case v != fail && v != warn:
		case worst == nil || v > worst.GetVerdict():
			worst, n = c, 1
		case v == worst.GetVerdict():
			n++
		}
	}
	return worst, n
}

// standing is the value of the check of freshness.
func standing(checks []*pb.Check) string {
	for _, c := range checks {
		if c.GetName() == "freshness" {
			return c.GetValue()
		}
	}
	return "not known"
}

func title(c *pb.Check) string { return strings.ReplaceAll(c.GetName(), "_", " ") }

// said is the value of a check, short enough for a sentence: what is too long
// ends after a whole item, or a whole word, and says that it goes on. It has a
// stop.
func said(c *pb.Check) string {
	const most = 160
	s := c.GetValue()
	if len(s) <= most {
		return strings.TrimRight(s, ".") + "."
	}
	s = strings.ToValidUTF8(s[:most], "")
	for _, end := range []string{"; ", ", ", " "} {
		if i := strings.LastIndex(s, end); i > most/2 {
			s = s[:i]
			break
		}
	}
	return strings.TrimRight(s, " ,;:.") + " and so on."
}

func advised(c *pb.Check) string {
	if c.Advice == nil {
		return ""
	}
	return " " + capital(strings.TrimRight(c.GetAdvice(), ".")) + "."
}

// more says that there are further checks as bad as the first.
func more(n int, does string) string {
	switch n {
	case 1:
		return ""
	case 2:
		return " One more check " + does + "s, which may follow from it."
	}
	return fmt.Sprintf(" %d more checks %s, which may follow from it.", n-1, does)
}

// capital begins a sentence of our own words with a capital.
func capital(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}
