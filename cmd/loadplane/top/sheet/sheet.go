package sheet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/cmd/loadplane/findings"
	"github.com/loadplane/loadplane/cmd/loadplane/top/board"
	"github.com/loadplane/loadplane/cmd/loadplane/top/paint"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// ChecksHead begins the part of the worker page with the checks.
const ChecksHead = "CHECKS"

// Answer is what came of asking for the checks of a worker. It is a plain value.
type Answer struct {
	// worker is the worker_id that was asked for.
	Worker string
	// checks are the answer; nil where there is none yet, and beside an error.
	Checks *pb.ExplainWorkerResponse
	// Err is why there are none.
	Err error
	// at is when the answer came.
	At time.Time
}

// Worker is the screen of one worker, but for its checks.
func Worker(v *client.View, r board.Row, now time.Time, width int) []paint.Line {
	out := append([]paint.Line{nil}, identity(v, r, now, width)...)
	out = append(out, loads(r, width)...)
	out = append(out, heatLines(r, width)...)
	return append(out, rankLines(r, width)...)
}

// identity says who the worker is, and how it is heard.
func identity(v *client.View, r board.Row, now time.Time, width int) []paint.Line {
	out := []paint.Line{paint.Say(paint.Strong, paint.Fit("worker "+r.GetWorkerId(), width, paint.Left))}
	state := r.State()
	if reason := r.Reason(); reason != "" {
		state += " (" + paint.Clean(reason) + ")"
	}
	heard := "never heard"
	if r.Heard {
		heard = "heard " + paint.Span(r.Age) + " ago"
		if at, ok := v.ValidUntil(r.Worker); ok && at.After(now) {
			heard += ", valid for " + paint.Span(at.Sub(now))
		}
		if at, ok := v.SampledAt(r.Worker); ok {
			heard += ", sampled " + paint.Span(now.Sub(at)) + " ago"
		}
	}
	out = append(out, paint.Say(r.Tone(), state).Add(paint.Plain, "  "+heard))
	facts := []string{
		"role " + board.RoleWord(r.GetRole()), "dialect " + board.DialectWord(r.GetDialect()), fmt.Sprintf("interval %dms", r.GetReportIntervalMs()),
		"models " + cmp.Or(strings.Join(r.GetModels(), ","), paint.Unknown), "zone " + cmp.Or(r.GetZone(), paint.Unknown),
		"instance " + cmp.Or(r.GetSourceInstanceId(), paint.Unknown),
	}
	for _, key := range slices.Sorted(keys(r.GetLabels())) {
		facts = append(facts, key+"="+r.GetLabels()[key])
	}
	if r.GetPartial() {
		facts = append(facts, "partial")
	}
	for _, f := range r.GetFlags() {
		facts = append(facts, "flag "+f)
	}
	return append(out, packed("", facts, width)...)
}

func keys(labels map[string]string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range labels {
			if !yield(k) {
				return
			}
		}
	}
}

// packed returns parts as lines.
func packed(label string, parts []string, width int) (out []paint.Line) {
	for _, s := range paint.Pack(label, parts, width) {
		out = append(out, paint.Say(paint.Plain, s))
	}
	return out
}

// wrapped returns text as lines of a tone.
func wrapped(t paint.Tone, label, text string, width int) (out []paint.Line) {
	for _, s := range paint.Wrap(label, text, width, 6) {
		out = append(out, paint.Say(t, s))
	}
	return out
}

// loads shows what the worker does over all its ranks.
func loads(r board.Row, width int) []paint.Line {
	g := r.Load
	slots, hottest := paint.Unknown, paint.Unknown
	if g.MaxRunningRequests != nil {
		slots = paint.Count(g.AvailableSlots) + "/" + paint.Count(g.MaxRunningRequests)
	}
	if g.HottestRank != nil {
		hottest = fmt.Sprintf("dp%d by %s", g.GetHottestRank(), g.GetHottestRankReason())
	}
	return packed("load    ", []string{
		"run " + paint.Count(g.NumRunningReqs), "wait " + paint.Count(g.NumWaitingReqs), "waiting tokens " + paint.Count(g.NumWaitingUncachedTokens),
		"KV " + paint.Percent(g.WeightedTokenUsage), "max " + paint.Percent(g.MaxRankTokenUsage), "free tokens " + paint.Count(g.FreeTokens), "free slots " + slots,
		"gen/s " + paint.Rate(g.GenThroughput), "prefill/s " + paint.Rate(g.PrefillThroughput), "prefill wait " + seconds(g.PrefillWaitSeconds),
		"imbalance " + paint.Ratio(g.TokenUsageImbalance), "hottest " + hottest,
	}, width)
}

func seconds(v *float64) string {
	if v == nil {
		return paint.Unknown
	}
	return paint.Span(time.Duration(min(*v, 1e9) * float64(time.Second)))
}

// heatLines shows every rank in a cell, tens apart.
func heatLines(r board.Row, width int) (out []paint.Line) {
	ranks := r.GetRanks()
	each := max(10, (width-len("heat    "))/11*10)
	for i := 0; i < len(ranks); i += each {
		label := "        "
		if i == 0 {
			label = "heat    "
		}
		l := paint.Say(paint.Plain, label)
		for j, k := range ranks[i:min(len(ranks), i+each)] {
			if j > 0 && j%10 == 0 {
				l = l.Add(paint.Plain, " ")
			}
			l = append(l, board.Strip(board.Row{Worker: &pb.Worker{Ranks: []*pb.RankLoad{k}}, Freshness: r.Freshness}, 1)...)
		}
		out = append(out, l)
	}
	return out
}

// rankLines is the table of the ranks.
func rankLines(r board.Row, width int) []paint.Line {
	if len(r.GetRanks()) == 0 {
		return []paint.Line{nil, paint.Say(paint.Dim, "no ranks are known")}
	}
	wide := board.BarWidth + min(40, max(0, width-80))
	out := []paint.Line{nil, paint.Say(paint.Strong, rankText([]string{"RANK", "RUN", "WAIT", "KV", paint.Fit("", wide, paint.Left), "USED", "TOKENS", "GEN/S", "PREF/S", "CACHE", "QUEUES"}))}
	for _, k := range r.GetRanks() {
		t := paint.Heat(k.TokenUsage)
		if r.Freshness != pb.Freshness_FRESHNESS_FRESH {
			t = paint.Dim
		}
		out = append(out, paint.Say(t, rankText([]string{
			fmt.Sprintf("dp%d", k.GetDpRank()), paint.Count(k.NumRunningReqs), paint.Count(k.NumWaitingReqs), paint.Percent(k.TokenUsage), paint.Bar(k.TokenUsage, wide),
			paint.Count(k.NumUsedTokens), paint.Count(k.MaxTotalNumTokens), paint.Rate(k.GenThroughput), paint.Rate(k.PrefillThroughput), paint.Percent(k.CacheHitRate), queues(k),
		})))
	}
	return out
}

// rankText lays a line of the ranks out.
func rankText(cells []string) string {
	var parts []string
	for i, w := range []int{6, 5, 5, 4, 0, 6, 6, 6, 6, 5, 0} {
		switch {
		case i == 0:
			parts = append(parts, paint.Fit(cells[i], w, paint.Left))
		case w == 0:
			parts = append(parts, cells[i])
		default:
			parts = append(parts, paint.Fit(cells[i], w, paint.Right))
		}
	}
	return strings.TrimRight(strings.Join(parts, " "), " ")
}

// queues shows the queues of a rank that serves one part of a request's life.
func queues(k *pb.RankLoad) string {
	var parts []string
	for _, q := range []struct {
		name string
		v    *int64
	}{
		{"boot", k.PrefillBootstrapReqs}, {"inflight", k.PrefillInflightReqs}, {"prealloc", k.DecodePreallocReqs},
		{"transfer", k.DecodeTransferReqs}, {"retracted", k.DecodeRetractedReqs},
	} {
		if q.v != nil && *q.v > 0 {
			parts = append(parts, q.name+" "+paint.Count(q.v))
		}
	}
	return strings.Join(parts, " ")
}

// Checks shows what the plane explains of the worker.
func Checks(a *Answer, now time.Time, width int) []paint.Line {
	switch {
	case a == nil:
		return []paint.Line{paint.Say(paint.Dim, ChecksHead+"  asked, no answer yet")}
	case connect.CodeOf(a.Err) == connect.CodeUnimplemented && a.Err != nil:
		return []paint.Line{paint.Say(paint.Dim, ChecksHead+"  this plane does not explain workers")}
	case a.Err != nil:
		return wrapped(paint.Warn, ChecksHead+"  ", "could not be had: "+a.Err.Error(), width)
	}
	out := []paint.Line{paint.Say(paint.Strong, ChecksHead).Add(paint.Dim, "  asked "+paint.Span(now.Sub(a.At))+" ago")}
	out = append(out, wrapped(paint.Strong, "", a.Checks.GetSummary(), width)...)
	for _, c := range a.Checks.GetChecks() {
		out = append(out, checkLine(c, width)...)
	}
	if len(a.Checks.GetDiagnostics()) > 0 {
		out = append(out, nil, paint.Say(paint.Strong, "LATELY"))
	}
	for _, d := range a.Checks.GetDiagnostics() {
		out = append(out, paint.Say(paint.Plain, diagnostic(a.Checks.GetServerClockMs(), d, width)))
	}
	return out
}

// checkLine shows a check: the verdict, what was seen, what it is held against,
// and what to do.
func checkLine(c *pb.Check, width int) []paint.Line {
	verdict, t := findings.Mark(c.GetVerdict()), verdictTone(c.GetVerdict())
	text := c.GetValue()
	if c.Limit != nil && c.GetVerdict() != pb.Verdict_VERDICT_OK {
		text += "  (limit " + c.GetLimit() + ")"
	}
	if c.GetReason() != "" {
		text += "  [" + c.GetReason() + "]"
	}
	out := wrapped(t, paint.Fit(verdict, 5, paint.Left)+paint.Fit(c.GetName(), 14, paint.Left)+" ", text, width)
	if c.GetAdvice() != "" {
		out = append(out, wrapped(paint.Strong, strings.Repeat(" ", 20)+"-> ", c.GetAdvice(), width)...)
	}
	return out
}

// verdictTone is how a verdict looks.
func verdictTone(v pb.Verdict) paint.Tone {
	switch v {
	case pb.Verdict_VERDICT_OK:
		return paint.Good
	case pb.Verdict_VERDICT_INFO:
		return paint.Plain
	case pb.Verdict_VERDICT_WARN:
		return paint.Warn
	case pb.Verdict_VERDICT_FAIL:
		return paint.Bad
	}
	return paint.Dim
}

// diagnostic shows what happened to the worker, as one line.
func diagnostic(now uint64, d *pb.Diagnostic, width int) string {
	ago := paint.Span(time.Duration(now-min(now, d.GetAtMs())) * time.Millisecond)
	text := strings.Join([]string{d.GetEvent(), d.GetReason(), d.GetDetail()}, " ")
	if d.GetCount() > 1 {
		text = fmt.Sprintf("%dx %s", d.GetCount(), text)
	}
	return paint.Fit(ago, 5, paint.Right) + " ago  " + paint.Cut(paint.Clean(text), width-11, paint.Left)
}

// Help explains the keys and the signs.
func Help() (out []paint.Line) {
	out = []paint.Line{nil, paint.Say(paint.Strong, "KEYS")}
	for _, k := range [][2]string{
		{"j k, arrows", "down, up"}, {"PgUp PgDn, g G", "by a page, to the first and the last"},
		{"Enter", "open the worker: its ranks and checks"}, {"Esc", "back; in the table: no filter"},
		{"/", "filter by typing: words of id, model, role, zone, state,"},
		{"", "dialect, reason, label (key=value), flag; all must be there"},
		{"s, r", "sort by the next column, reverse"}, {"u", "in a worker: ask for the checks again"}, {"q, Ctrl-C", "quit"},
	} {
		out = append(out, paint.Say(paint.Strong, paint.Fit(k[0], 16, paint.Left)).Add(paint.Plain, k[1]))
	}
	var letters []string
	for _, f := range board.Sortable() {
		letters = append(letters, f.Key+" "+f.Name)
	}
	for i, s := range paint.Wrap("", strings.Join(letters, ", "), 64, 4) {
		label := ""
		if i == 0 {
			label = "sort by letter"
		}
		out = append(out, paint.Say(paint.Strong, paint.Fit(label, 16, paint.Left)).Add(paint.Plain, s))
	}
	out = append(out, nil, paint.Say(paint.Strong, "SIGNS"))
	for _, k := range [][2]string{
		{"LIVE OLD LOST", "the watch brings messages; is silent; has ended"},
		{"USAGE, MAX", "KV cache in use: of all ranks, of the fullest one"},
		{"heat, strip", "tenths of the KV cache of each rank; F full, ? unknown"},
		{"DP", "data-parallel ranks"}, {"F/H/E", "workers fresh, ever heard, expected; COVER is F over E"},
		{"IMBAL", "KV cache in use, largest over mean of the fresh workers"},
		{paint.Unknown, "unknown, which is not 0"},
	} {
		out = append(out, paint.Say(paint.Strong, paint.Fit(k[0], 16, paint.Left)).Add(paint.Plain, k[1]))
	}
	return out
}
