package board

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/cmd/loadplane/top/paint"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// Board is the view at a moment, as it is shown. It is immutable.
type Board struct {
	view *client.View
	now  time.Time
	// rows are the workers that the filter lets through, sorted.
	Rows []Row
	// all counts all workers, states those of each freshness.
	All    int
	states map[pb.Freshness]int
	// running and waiting are sums over the fresh workers.
	running, waiting sum
	Pools            []Pool
}

// Pool is a pool, with those of its workers that are fresh at the moment. It is
// immutable.
type Pool struct {
	*pb.Pool
	load  *pb.Aggregate // never nil
	fresh int
}

// Choice says which workers are shown, and in which order. It is a plain value.
type Choice struct {
	// By is the column that is sorted by.
	By Field
	// Reverse turns the order round.
	Reverse bool
	// Filter are the words of a filter, as FilterWords has them.
	Filter []string
}

// New returns the board of a view, nil for none yet, as it is at now.
func New(v *client.View, now time.Time, c Choice) *Board {
	b := &Board{view: v, now: now, states: map[pb.Freshness]int{}}
	if v == nil {
		return b
	}
	fresh := map[string]int{}
	for _, w := range v.Workers() {
		r := RowOf(v, w, now)
		b.All++
		b.states[r.Freshness]++
		if r.matches(c.Filter) {
			b.Rows = append(b.Rows, r)
		}
		b.countFresh(fresh, r)
	}
	order(b.Rows, c.By, c.Reverse)
	for _, p := range v.Pools() {
		b.Pools = append(b.Pools, newPool(p, fresh[poolKey(p.GetKey().GetModel(), p.GetKey().GetRole())]))
	}
	return b
}

// newPool drops the sums of a pool once none of its workers is fresh.
func newPool(p *pb.Pool, fresh int) Pool {
	if fresh == 0 {
		return Pool{p, &pb.Aggregate{}, 0}
	}
	return Pool{p, cmp.Or(p.GetAggregate(), &pb.Aggregate{}), fresh}
}

// sum adds counts; one that is unknown makes it unknown, as does none at all.
type sum struct {
	total         int64
	some, unknown bool
}

func (s *sum) add(v *int64) {
	if s.some = true; v == nil {
		s.unknown = true
		return
	}
	s.total += *v
}

// String returns the sum, or that it is unknown.
func (s sum) String() string {
	if !s.some || s.unknown {
		return paint.Unknown
	}
	return paint.Count(&s.total)
}

// countFresh counts a worker in the sums and in each of its pools, if it is
// fresh.
func (b *Board) countFresh(fresh map[string]int, r Row) {
	if r.Freshness != pb.Freshness_FRESHNESS_FRESH {
		return
	}
	b.running.add(r.Load.NumRunningReqs)
	b.waiting.add(r.Load.NumWaitingReqs)
	models := r.GetModels()
	if len(models) == 0 {
		models = []string{""}
	}
	for _, m := range models {
		fresh[poolKey(m, r.GetRole())]++
	}
}

func poolKey(model string, role pb.Role) string { return fmt.Sprint(int32(role), " ", model) }

// Totals says how many workers there are of each state, and what they do
// together.
func (b *Board) Totals() paint.Line {
	l := paint.Say(paint.Plain, fmt.Sprintf("%d workers: ", b.All))
	for _, s := range []struct {
		freshness pb.Freshness
		tone      paint.Tone
	}{
		{pb.Freshness_FRESHNESS_FRESH, paint.Good}, {pb.Freshness_FRESHNESS_STALE, paint.Warn},
		{pb.Freshness_FRESHNESS_MISSING, paint.Warn}, {pb.Freshness_FRESHNESS_UNREACHABLE, paint.Bad},
	} {
		t := s.tone
		if b.states[s.freshness] == 0 {
			t = paint.Dim
		}
		l = l.Add(t, fmt.Sprintf("%d %s ", b.states[s.freshness], word(s.freshness.String())))
	}
	return l.Add(paint.Plain, fmt.Sprintf(" fresh: run %s wait %s", b.running, b.waiting))
}

// PoolLines shows the pools in at most most lines; none where there is no room.
func (b *Board) PoolLines(width, most int) []paint.Line {
	if len(b.Pools) == 0 || most < 2 {
		return nil
	}
	shown := b.Pools
	if room := most - 1; len(shown) > room {
		shown = shown[:max(0, room-1)]
	}
	texts := [][]string{{"POOL", "ROLE", "F/H/E", "COVER", "RUN", "WAIT", "KV", "GEN/S", "IMBAL", "HOTTEST"}}
	for _, p := range shown {
		texts = append(texts, p.cells())
	}
	widths := poolWidths(texts, width)
	lines := []paint.Line{paint.Say(paint.Strong, poolText(texts[0], widths))}
	for i, p := range shown {
		lines = append(lines, paint.Say(p.tone(), poolText(texts[i+1], widths)))
	}
	if left := len(b.Pools) - len(shown); left > 0 {
		lines = append(lines, paint.Say(paint.Dim, fmt.Sprintf("and %d more pools", left)))
	}
	return lines
}

// coverage is the share of the expected workers that are fresh.
func (p Pool) coverage() *float64 {
	if p.GetExpected() == 0 {
		return nil
	}
	return new(float64(p.fresh) / float64(p.GetExpected()))
}

func (p Pool) tone() paint.Tone {
	switch c := p.coverage(); {
	case c != nil && *c >= 1:
		return paint.Good
	case p.fresh == 0:
		return paint.Bad
	}
	return paint.Warn
}

// cells are the texts of a pool's line.
func (p Pool) cells() []string {
	hottest, imbalance := paint.Unknown, p.TokenUsageImbalance
	if p.HottestWorkerId != nil {
		hottest = shortID(p.GetHottestWorkerId())
	}
	if p.HottestWorkerId != nil && p.HottestRank != nil {
		hottest += fmt.Sprintf(" dp%d", p.GetHottestRank())
	}
	if p.fresh == 0 {
		hottest, imbalance = paint.Unknown, nil
	}
	return []string{
		cmp.Or(p.GetKey().GetModel(), "(no model)"), RoleWord(p.GetKey().GetRole()),
		fmt.Sprintf("%d/%s/%s", p.fresh, small(p.Heard), small(p.Expected)), paint.Percent(p.coverage()),
		paint.Count(p.load.NumRunningReqs), paint.Count(p.load.NumWaitingReqs), paint.Percent(p.load.WeightedTokenUsage), paint.Rate(p.load.GenThroughput),
		paint.Ratio(imbalance), hottest,
	}
}

// poolWidths returns the widths of the columns of the pools: what they need, but
// of the name at most a quarter, and of the hottest worker what is left.
func poolWidths(texts [][]string, width int) []int {
	widths := make([]int, len(texts[0]))
	left, last := width, len(widths)-1
	for i := range last {
		for _, cells := range texts {
			widths[i] = max(widths[i], paint.Width(paint.Clean(cells[i])))
		}
		if i == 0 {
			widths[i] = min(widths[i], max(8, width/4))
		}
		left -= widths[i] + 1
	}
	widths[last] = max(0, left)
	return widths
}

// poolText lays a line of the pools out.
func poolText(cells []string, widths []int) string {
	var parts []string
	for i, width := range widths {
		a := paint.Right
		switch i {
		case 0, 1:
			a = paint.Left
		case len(widths) - 1:
			a = paint.Front
		}
		parts = append(parts, paint.Fit(cells[i], width, a))
	}
	return strings.Join(parts, " ")
}

func small(v *uint32) string {
	if v == nil {
		return paint.Unknown
	}
	return paint.Count(new(int64(*v)))
}

// At returns the row of a worker; -1 where it is not shown.
func (b *Board) At(id string) int {
	return slices.IndexFunc(b.Rows, func(r Row) bool { return r.GetWorkerId() == id })
}

// nameWidth returns the cells that the names of the shown workers take.
func nameWidth(rows []Row) int {
	n := len("WORKER")
	for _, r := range rows {
		n = max(n, paint.Width(paint.Clean(r.name())))
	}
	return n
}

// Layout says which fields a screen has room for. It is immutable.
type Layout struct {
	fields []Field
	// strip is the room for a cell for each rank; 0 for none.
	strip int
}

// widest is the most ranks of a worker in the strip of its line.
const widest = 64

// extra is the least width at which columns are shown that may be empty.
const extra = 100

// NewLayout fills a line of width cells, of which mark are taken, for the rows
// that are shown, of all.
func NewLayout(width, mark int, rows, all []Row) Layout {
	var l Layout
	taken := mark
	for _, f := range fields() {
		if f.from > width || f.from >= extra && !slices.ContainsFunc(all, func(r Row) bool { return f.text(r) != "" }) {
			continue
		}
		if f.Name == "state" && width >= extra {
			f.width = len("unreachable")
		}
		l.fields = append(l.fields, f)
		if f.Name != "name" {
			taken += 1 + f.width
		}
	}
	room := max(4, width-taken)
	l.fields[0].width = room
	if need := max(12, nameWidth(rows)); need < room {
		l.fields[0].width = need
		if spare := room - need - 1; spare >= 8 && width >= 150 {
			l.strip = min(spare, widest)
		} else {
			l.fields[0].width = room
		}
	}
	return l
}

// Head returns the heads of the columns; the one that is sorted by has an arrow.
func (l Layout) Head(c Choice) paint.Line {
	arrow := "↑"
	if c.By.down != c.Reverse {
		arrow = "↓"
	}
	var out paint.Line
	for i, f := range l.fields {
		if i > 0 {
			out = out.Add(paint.Plain, " ")
		}
		head := f.head
		if f.Name == c.By.Name && len(head) < f.width {
			head += arrow
		} else if f.Name == c.By.Name {
			head = head[:f.width-1] + arrow
		}
		out = out.Add(paint.Strong, paint.Fit(head, f.width, f.align))
	}
	if l.strip > 0 {
		out = out.Add(paint.Strong, " "+paint.Fit("TENTHS OF EACH RANK'S KV CACHE", l.strip, paint.Left))
	}
	return out
}

// Row returns a worker's line.
func (l Layout) Row(r Row) paint.Line {
	var out paint.Line
	for i, f := range l.fields {
		if i > 0 {
			out = out.Add(paint.Plain, " ")
		}
		t := paint.Plain
		if f.tone != nil {
			t = f.tone(r)
		}
		if r.Freshness != pb.Freshness_FRESHNESS_FRESH && f.Name != "state" && f.Name != "reason" {
			t = paint.Dim
		}
		out = out.Add(t, paint.Fit(f.text(r), f.width, f.align))
	}
	if l.strip > 0 {
		out = append(out.Add(paint.Plain, " "), Strip(r, l.strip)...)
	}
	return out
}

// Strip shows the usage of each rank in a cell, and how many there is no room
// for.
func Strip(r Row, width int) (out paint.Line) {
	ranks, more := r.GetRanks(), ""
	if len(ranks) > width {
		more = fmt.Sprintf(" +%d", len(ranks))
		shown := max(0, width-len(more))
		more = fmt.Sprintf(" +%d", len(ranks)-shown)
		ranks = ranks[:shown]
	}
	for _, k := range ranks {
		t := paint.Heat(k.TokenUsage)
		if r.Freshness != pb.Freshness_FRESHNESS_FRESH {
			t = paint.Dim
		}
		out = out.Add(t, paint.Digit(k.TokenUsage))
	}
	if more != "" {
		out = out.Add(paint.Dim, more)
	}
	return out
}
