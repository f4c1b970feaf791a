package board

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/cmd/loadplane/top/paint"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// Row is a worker at a moment. It is immutable.
type Row struct {
	*pb.Worker
	// Load is that of all its ranks; never nil.
	Load *pb.Aggregate
	// Freshness is the reader's judgement at the moment.
	Freshness pb.Freshness
	// Age is the time since its last report; Heard says that there was one.
	Age   time.Duration
	Heard bool
}

// RowOf returns a worker of a view as it is at now.
func RowOf(v *client.View, w *pb.Worker, now time.Time) Row {
	r := Row{Worker: w, Load: cmp.Or(w.GetAggregate(), &pb.Aggregate{}), Freshness: v.Freshness(w, now)}
	r.Age, r.Heard = v.ReportAge(w, now)
	return r
}

// name is the worker's name as it is shown.
func (r Row) name() string { return shortID(r.GetWorkerId()) }

func shortID(id string) string { return strings.TrimPrefix(id, "http://") }

// State says how fresh a worker is, and whether it drains.
func (r Row) State() string {
	if r.Freshness == pb.Freshness_FRESHNESS_FRESH && r.GetDraining() {
		return "draining"
	}
	return word(r.Freshness.String())
}

// Tone is that of the state.
func (r Row) Tone() paint.Tone {
	switch {
	case r.Freshness == pb.Freshness_FRESHNESS_UNREACHABLE:
		return paint.Bad
	case r.Freshness != pb.Freshness_FRESHNESS_FRESH || r.GetDraining():
		return paint.Warn
	}
	return paint.Good
}

// severity orders states, the worst last.
func (r Row) severity() float64 {
	switch {
	case r.Freshness == pb.Freshness_FRESHNESS_UNREACHABLE:
		return 4
	case r.Freshness == pb.Freshness_FRESHNESS_STALE:
		return 3
	case r.Freshness == pb.Freshness_FRESHNESS_MISSING:
		return 2
	case r.GetDraining():
		return 1
	}
	return 0
}

// Reason is why the worker is not fresh. A reader that judges it old knows no
// other reason than its age.
func (r Row) Reason() string {
	if r.Freshness == pb.Freshness_FRESHNESS_STALE && r.GetFreshness() == pb.Freshness_FRESHNESS_FRESH {
		return "age"
	}
	return r.GetFreshnessReason()
}

// words are what a filter looks at, in lower case.
func (r Row) words() string {
	parts := append([]string{r.GetWorkerId(), r.GetZone(), RoleWord(r.GetRole()), r.State(), DialectWord(r.GetDialect()), r.Reason()}, r.GetModels()...)
	for key, value := range r.GetLabels() {
		parts = append(parts, key+"="+value)
	}
	return strings.ToLower(strings.Join(append(parts, r.GetFlags()...), "\n"))
}

// matches says whether every word of a filter, in lower case, stands in what is
// known of the worker.
func (r Row) matches(filter []string) bool {
	if len(filter) == 0 {
		return true
	}
	words := r.words()
	return !slices.ContainsFunc(filter, func(f string) bool { return !strings.Contains(words, f) })
}

// FilterWords returns the words of a filter.
func FilterWords(filter string) []string { return strings.Fields(strings.ToLower(filter)) }

// word is the word of a value of an enum: its last part, in lower case.
func word(name string) string { return strings.ToLower(name[strings.LastIndex(name, "_")+1:]) }

// RoleWord is the word of a role.
func RoleWord(r pb.Role) string {
	if r == pb.Role_ROLE_REGULAR {
		return "plain"
	}
	return word(r.String())
}

// DialectWord is the word of a dialect; "auto" while none is in force.
func DialectWord(d pb.Dialect) string {
	if d == pb.Dialect_DIALECT_UNSPECIFIED {
		return "auto"
	}
	return word(d.String())
}

// Field is a column of the table of workers. It is a plain value.
type Field struct {
	// name is its word for --sort, key the letter that sorts by it.
	Name, Key, head string
	width           int
	align           paint.Align
	// from is the least width of a screen that shows it.
	from int
	// down says that the largest comes first.
	down bool
	// number is what is sorted by; a field without one is not sorted by, or by
	// its text.
	number func(r Row) (v float64, known bool)
	text   func(r Row) string
	tone   func(r Row) paint.Tone
}

// fields are the columns, from left to right. The first has the name of the
// worker and takes what the others leave.
func fields() []Field {
	return []Field{
		{Name: "name", Key: "N", head: "WORKER", align: paint.Front, text: Row.name},
		{Name: "state", Key: "S", head: "STATE", width: 5, down: true, text: Row.State, tone: Row.Tone, number: func(r Row) (float64, bool) { return r.severity(), true }},
		{Name: "role", Key: "L", head: "ROLE", width: 7, from: 60, text: func(r Row) string { return RoleWord(r.GetRole()) }},
		{Name: "ranks", Key: "D", head: "DP", width: 4, align: paint.Right, from: 64, down: true, text: rankCount, number: func(r Row) (float64, bool) { return float64(r.Load.GetRankCount()), r.Load.RankCount != nil }},
		{Name: "running", Key: "R", head: "RUN", width: 5, align: paint.Right, down: true, text: func(r Row) string { return paint.Count(r.Load.NumRunningReqs) }, number: func(r Row) (float64, bool) { return integer(r.Load.NumRunningReqs) }},
		{Name: "waiting", Key: "W", head: "WAIT", width: 5, align: paint.Right, from: 44, down: true, text: func(r Row) string { return paint.Count(r.Load.NumWaitingReqs) }, number: func(r Row) (float64, bool) { return integer(r.Load.NumWaitingReqs) }},
		{Name: "usage", Key: "U", head: "USAGE", width: 4 + 1 + BarWidth, down: true, text: usage, tone: func(r Row) paint.Tone { return paint.Heat(r.Load.WeightedTokenUsage) }, number: func(r Row) (float64, bool) { return known(r.Load.WeightedTokenUsage) }},
		{Name: "max", Key: "M", head: "MAX", width: 4, align: paint.Right, from: 48, down: true, text: func(r Row) string { return paint.Percent(r.Load.MaxRankTokenUsage) }, tone: func(r Row) paint.Tone { return paint.Heat(r.Load.MaxRankTokenUsage) }, number: func(r Row) (float64, bool) { return known(r.Load.MaxRankTokenUsage) }},
		{Name: "throughput", Key: "T", head: "GEN/S", width: 5, align: paint.Right, from: 72, down: true, text: func(r Row) string { return paint.Rate(r.Load.GenThroughput) }, number: func(r Row) (float64, bool) { return known(r.Load.GenThroughput) }},
		{Name: "age", Key: "A", head: "AGE", width: 5, align: paint.Right, down: true, text: age, number: func(r Row) (float64, bool) { return float64(r.Age), r.Heard }},
		{Name: "dialect", head: "DIALECT", width: 8, from: 100, text: func(r Row) string { return DialectWord(r.GetDialect()) }},
		{Name: "reason", head: "REASON", width: 16, from: 116, text: Row.Reason, tone: Row.Tone},
		{Name: "zone", head: "ZONE", width: 8, from: 128, text: func(r Row) string { return r.GetZone() }},
		{Name: "models", head: "MODELS", width: 20, from: 140, text: func(r Row) string { return strings.Join(r.GetModels(), ",") }},
	}
}

// BarWidth is the width of the bar of a worker, cells.
const BarWidth = 6

func usage(r Row) string {
	u := r.Load.WeightedTokenUsage
	return paint.Fit(paint.Percent(u), 4, paint.Right) + " " + paint.Bar(u, BarWidth)
}

func rankCount(r Row) string {
	if r.Load.RankCount == nil {
		return paint.Unknown
	}
	return paint.Count(new(int64(r.Load.GetRankCount())))
}

func age(r Row) string {
	if !r.Heard {
		return paint.Unknown
	}
	return paint.Span(r.Age)
}

func integer(v *int64) (float64, bool) {
	if v == nil {
		return 0, false
	}
	return float64(*v), true
}

func known(v *float64) (float64, bool) {
	if v == nil {
		return 0, false
	}
	return *v, true
}

// Sortable are the fields that can be sorted by.
func Sortable() []Field {
	return slices.DeleteFunc(fields(), func(f Field) bool { return f.Key == "" })
}

// order sorts rows by a field, those without a value last, equal ones by name.
func order(rows []Row, by Field, reverse bool) {
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(by.compare(a, b, reverse != by.down), strings.Compare(a.GetWorkerId(), b.GetWorkerId()))
	})
}

func (f Field) compare(a, b Row, down bool) (c int) {
	if f.number == nil {
		c = strings.Compare(f.text(a), f.text(b))
	} else {
		x, known := f.number(a)
		y, also := f.number(b)
		if !known || !also {
			return cmp.Compare(side(known), side(also))
		}
		c = cmp.Compare(x, y)
	}
	if down {
		return -c
	}
	return c
}

// side orders what is known before what is not.
func side(known bool) int {
	if known {
		return 0
	}
	return 1
}
