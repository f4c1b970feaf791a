package inspect

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/ingest/probe"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// maxShown bounds the ranks in a table.
const maxShown = 32

// Table writes a report in lines of at most 80 characters. What comes from the
// engine is made printable and stays in its line.
func Table(w io.Writer, r *probe.Report) error {
	if _, err := io.WriteString(w, heading(r)); err != nil {
		return err
	}
	if err := pages(w, r.Asked); err != nil {
		return err
	}
	if r.Reading == nil {
		return nil
	}
	if err := fields(w, r); err != nil {
		return err
	}
	return ranks(w, r.Reading)
}

// heading says what the engine is and which dialect would be used. A dash
// stands for unknown.
func heading(r *probe.Report) string {
	f := r.Facts
	dialect := r.Dialect.String()
	if r.Dialect == store.DialectUnspecified {
		dialect = "none can be used"
	}
	text := table.Wrap("url      ", r.URL) +
		table.Wrap("engine   ", cmp.Or(strings.TrimSpace(f.Family+" "+f.Version), "-")) +
		table.Wrap("models   ", cmp.Or(strings.Join(f.Models, " "), "-")) +
		table.Wrap("role     ", role(f)) +
		table.Wrap("DP size  ", number(int64(f.DPSize))) +
		table.Wrap("a rank   ", "capacity "+number(f.CapacityTokens)+" tokens, maximum "+number(f.MaxRunning)+" running requests") +
		ways(r) +
		table.Wrap("dialect  ", dialect) +
		table.Wrap("why      ", cmp.Or(r.Why, "-"))
	if !r.Complete {
		text += table.Wrap("note     ", "some questions about the engine had no definite answer")
	}
	return text
}

// ways says where the engine gives its load by itself; empty for nowhere.
func ways(r *probe.Report) (text string) {
	if r.ReporterPort != 0 {
		text += table.Wrap("reporter ", "port "+number(int64(r.ReporterPort)))
	}
	if l := r.Facts.LoadStat; l.Port != 0 {
		where := probe.Sockets(l)
		if l.Topic != "" {
			where += ", topic " + l.Topic
		}
		text += table.Wrap("sockets  ", where)
	}
	return text
}

func role(f registry.Facts) string {
	if f.Role == store.RoleUnspecified {
		return "-"
	}
	return f.Role.String()
}

// number shows a number, or a dash for 0, which stands for unknown.
func number(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

// pages lists the questions and what came of each.
func pages(w io.Writer, asked []probe.Asked) error {
	columns := []table.Column{
		{Head: "PAGE", Width: 38}, {Head: "STATUS", Width: 6, Right: true}, {Head: "BYTES", Width: 7, Right: true},
		{Head: "TOOK", Width: 6, Right: true}, {Head: "RESULT", Width: 19},
	}
	var rows [][]string
	for _, a := range asked {
		rows = append(rows, []string{
			a.Path, number(int64(a.Status)), number(int64(a.Bytes)), remote.Age(uint64(max(0, a.Took.Milliseconds()))), result(a),
		})
	}
	return section(w, columns, rows)
}

// result says what the answer was good for, or what is wrong with it. A push
// reporter, which takes POST requests only, shows by that that it is there.
func result(a probe.Asked) string {
	switch {
	case a.Path == "/v1/start_reporting" && a.Status == http.StatusMethodNotAllowed:
		return "push"
	case a.Reason != "":
		return string(a.Reason)
	case a.Endpoint != "":
		return "load"
	}
	return "read"
}

// fields lists which name was found for which field, and what is unknown.
func fields(w io.Writer, r *probe.Report) error {
	var text strings.Builder
	fmt.Fprintf(&text, "\n%-27s READ FROM\n", "FIELD")
	for _, m := range r.Reading.Matches {
		text.WriteString(table.Wrap(fmt.Sprintf("%-27s ", store.Fields[m.Field].Name), m.Name))
	}
	text.WriteString("\n" + table.Wrap("page     ", r.Endpoint.Name))
	text.WriteString(table.Wrap("unknown  ", cmp.Or(strings.Join(names(r.Unknown), ", "), "nothing")))
	for _, line := range notes(r) {
		text.WriteString(table.Wrap("note     ", line))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// rate says whether a field may be the rate of a counter.
func rate(f store.Field) bool {
	return f == store.GenThroughput || f == store.CacheHitRate || f == store.PrefillThroughput || f == store.PrefillThroughputWall
}

func names(fields []store.Field) []string {
	words := make([]string, len(fields))
	for i, f := range fields {
		words[i] = store.Fields[f].Name
	}
	return words
}

// notes says what else there is to know of the page that was read.
func notes(r *probe.Report) (lines []string) {
	if !r.Rates && slices.ContainsFunc(r.Unknown, rate) {
		lines = append(lines, "rates of counters need two readings, and one was made")
	}
	if r.Dialect != store.DialectPoll && r.Dialect != store.DialectUnspecified {
		lines = append(lines, "the values are those of the load page; "+r.Dialect.String()+" has its own")
	}
	if named := r.Reading.Models; len(r.Facts.Models) == 0 && len(named) > 0 {
		lines = append(lines, "the engine itself names no model, the page names "+strings.Join(named, ", "))
	}
	return append(lines, oddities(r.Reading)...)
}

// oddities says what is strange about a page.
func oddities(r *sample.Reading) (lines []string) {
	if words := r.Flags.Words(); len(words) > 0 {
		lines = append(lines, "flags "+strings.Join(words, ", "))
	}
	if r.Asleep != "" {
		lines = append(lines, "the engine sleeps: "+r.Asleep)
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Unusable)) {
		lines = append(lines, fmt.Sprintf("%d values cannot be used: %s", r.Unusable[reason], reason))
	}
	return lines
}

// shownFields are the columns of the table of ranks.
var shownFields = []struct {
	field store.Field
	head  string
}{
	{store.NumRunningReqs, "RUN"}, {store.NumWaitingReqs, "WAIT"}, {store.NumWaitingUncachedTokens, "UNCACHED"},
	{store.NumUsedTokens, "USED"}, {store.NumTotalTokens, "DEMAND"}, {store.MaxTotalNumTokens, "TOKENS"},
	{store.MaxRunningRequests, "MAX"}, {store.TokenUsage, "KV"}, {store.GenThroughput, "GEN/S"},
	{store.CacheHitRate, "HIT"}, {store.Utilization, "UTIL"},
}

// ranks lists the values of the first ranks.
func ranks(w io.Writer, r *sample.Reading) error {
	columns := []table.Column{{Head: "RANK", Width: 4, Right: true}}
	for _, f := range shownFields {
		columns = append(columns, table.Column{Head: f.head, Width: max(5, len(f.head)), Right: true})
	}
	shown := r.Ranks[:min(len(r.Ranks), maxShown)]
	var rows [][]string
	for i := range shown {
		rank := &shown[i].Rank
		row := []string{strconv.Itoa(int(rank.DPRank))}
		for _, f := range shownFields {
			row = append(row, cell(rank, f.field))
		}
		rows = append(rows, row)
	}
	if err := section(w, columns, rows); err != nil || len(shown) == len(r.Ranks) {
		return err
	}
	more, things := len(r.Ranks)-len(shown), "ranks"
	if more == 1 {
		things = "rank"
	}
	_, err := fmt.Fprintf(w, "%d more %s with --output json\n", more, things)
	return err
}

// cell shows a value in at most five characters; a dash is unknown.
func cell(r *store.Rank, f store.Field) string {
	if !store.Fields[f].Float {
		v, ok := r.Count(f)
		if !ok {
			return "-"
		}
		return remote.Short(v)
	}
	v, ok := r.Float(f)
	switch {
	case !ok:
		return "-"
	case f == store.GenThroughput:
		return remote.Short(int64(v + 0.5))
	}
	return fmt.Sprintf("%.0f%%", 100*v)
}

// section writes a table after an empty line.
func section(w io.Writer, columns []table.Column, rows [][]string) error {
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	return table.Write(w, columns, rows)
}
