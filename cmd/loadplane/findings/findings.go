// Package findings prints what the plane explains of a worker, for people.
package findings

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/loadplane/loadplane/cmd/loadplane/document"
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

const (
	// maxShown bounds the happenings that are shown.
	maxShown = 12
	// maxName and maxWord bound the words of a check and of a happening, bytes.
	maxName = 13
	maxWord = 32
)

// Write writes what is explained of a worker, in one of the formats table, json
// and yaml.
func Write(w io.Writer, res *pb.ExplainWorkerResponse, format string) error {
	if format == "table" {
		return Table(w, res)
	}
	return document.Write(w, res, format)
}

// Table writes what is explained of a worker in lines of at most 80 characters.
// What comes from outside is made printable and stays in its line.
func Table(w io.Writer, res *pb.ExplainWorkerResponse) error {
	_, err := io.WriteString(w, heading(res)+"\n"+checks(res.GetChecks())+happenings(res))
	return err
}

// Failing says whether a check does not hold.
func Failing(res *pb.ExplainWorkerResponse) bool {
	return slices.ContainsFunc(res.GetChecks(), func(c *pb.Check) bool { return c.GetVerdict() == pb.Verdict_VERDICT_FAIL })
}

// heading says which worker it is, how it is, and what is wrong.
func heading(res *pb.ExplainWorkerResponse) string {
	w := res.GetWorker().GetWorker()
	state := word(w.GetFreshness().String(), "FRESHNESS_")
	if reason := w.GetFreshnessReason(); reason != "" {
		state += " (" + reason + ")"
	}
	role := word(w.GetRole().String(), "ROLE_")
	if w.GetRole() == pb.Role_ROLE_REGULAR {
		role = "plain"
	}
	return table.Wrap("worker   ", w.GetWorkerId()) +
		table.Wrap("state    ", state) +
		table.Wrap("serves   ", cmp.Or(strings.Join(w.GetModels(), " "), "-")+", role "+role) +
		table.Wrap("summary  ", cmp.Or(res.GetSummary(), "-"))
}

func word(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

// checks lists the checks, with the advice below those that do not hold well,
// once where it is the same for several in a row.
func checks(list []*pb.Check) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-4s %-*s SEEN\n", "", maxName, "CHECK")
	told := ""
	for _, c := range list {
		label := fmt.Sprintf("%-4s %-*s ", Mark(c.GetVerdict()), maxName, table.Printable(c.GetName(), maxName))
		text := cmp.Or(c.GetValue(), "-")
		if c.Limit != nil && c.GetVerdict() != pb.Verdict_VERDICT_OK {
			text += " (limit: " + c.GetLimit() + ")"
		}
		b.WriteString(table.Wrap(label, text))
		indent := strings.Repeat(" ", len(label))
		if c.Reason != nil {
			b.WriteString(table.Wrap(indent+"reason: ", c.GetReason()))
		}
		if c.Advice != nil && c.GetAdvice() != told {
			b.WriteString(table.Wrap(indent+"-> ", c.GetAdvice()))
			told = c.GetAdvice()
		}
	}
	return b.String()
}

// Mark is a verdict in at most four characters: OK, WARN, FAIL, "?" for what is
// not known, "-" for what is for information only.
func Mark(v pb.Verdict) string {
	switch v {
	case pb.Verdict_VERDICT_OK:
		return "OK"
	case pb.Verdict_VERDICT_WARN:
		return "WARN"
	case pb.Verdict_VERDICT_FAIL:
		return "FAIL"
	case pb.Verdict_VERDICT_INFO:
		return "-"
	}
	return "?"
}

// happenings lists what happened last, newest first.
func happenings(res *pb.ExplainWorkerResponse) string {
	list := res.GetDiagnostics()
	if len(list) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%6s %-6s WHAT HAPPENED\n", "AGO", "TIMES")
	for _, d := range list[:min(len(list), maxShown)] {
		now := res.GetServerClockMs()
		label := fmt.Sprintf("%6s %-6s ", remote.Age(now-min(now, d.GetAtMs())), times(d.GetCount()))
		b.WriteString(table.Wrap(label, sentence(d)))
	}
	if more := len(list) - maxShown; more > 0 {
		fmt.Fprintf(&b, "%d older with --output json\n", more)
	}
	return b.String()
}

// times shows a count in at most six characters; nothing for once.
func times(n uint32) string {
	if n < 2 {
		return ""
	}
	return "x" + remote.Short(int64(n))
}

func sentence(d *pb.Diagnostic) string {
	text := table.Printable(strings.ReplaceAll(d.GetEvent(), "_", " "), maxWord)
	if d.Reason != nil {
		text += " " + table.Printable(d.GetReason(), maxWord)
	}
	if d.Detail != nil {
		text += ": " + d.GetDetail()
	}
	return text
}
