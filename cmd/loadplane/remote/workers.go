package remote

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/loadplane/loadplane/cmd/loadplane/document"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// Workers writes what is known of the way to each worker, in one of the
// formats table, wide, json and yaml.
func (c *Client) Workers(ctx context.Context, s Screen, format string) error {
	answer, err := c.List(ctx)
	if err != nil {
		return err
	}
	if format == "json" || format == "yaml" {
		return document.Write(s, answer, format)
	}
	return writeWorkers(s, answer, format == "wide")
}

// List returns what is known of the way to each worker.
func (c *Client) List(ctx context.Context) (*pb.ListWorkersResponse, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	answer, err := c.workers.ListWorkers(ctx, &pb.ListWorkersRequest{})
	if err != nil {
		return nil, c.explain(err)
	}
	return answer, nil
}

// writeWorkers writes a table and what is to be said below it.
func writeWorkers(s Screen, list *pb.ListWorkersResponse, wide bool) error {
	t := workersTable(list, wide)
	foot := ""
	if wide {
		foot = fitWide(t, s.Columns)
	} else {
		t.Narrow(cmp.Or(s.Columns, table.Columns), narrowSteps())
	}
	if err := t.Write(s); err != nil {
		return err
	}
	if _, err := s.Write([]byte(foot)); err != nil {
		return err
	}
	return writeSources(s, list)
}

// trouble is why a worker is not fresh, or that it drains. That its load is old
// says less than what came of the last call to the engine, or of its last
// reports.
func trouble(info *pb.WorkerInfo) string {
	w := info.GetWorker()
	switch reason := w.GetFreshnessReason(); {
	case w.GetFreshness() == pb.Freshness_FRESHNESS_FRESH && w.GetDraining():
		return "draining"
	case w.GetFreshness() == pb.Freshness_FRESHNESS_FRESH:
		return ""
	case reason != "" && reason != "age":
		return reason
	default:
		return cmp.Or(failure(info), info.GetLastRefusal(), reason)
	}
}

// failure says in a word or two why the last call to the engine failed; empty
// where it did not.
func failure(info *pb.WorkerInfo) string {
	text := errorWords(info)
	word, _, found := strings.Cut(text, ": ")
	switch tried := dialectTried.FindAllStringSubmatch(text, -1); {
	case text == "":
		return ""
	case tried != nil:
		return telling(tried)
	case found && (word == info.GetLastRefusal() || reasonWord.MatchString(word)):
		return word
	case info.GetRegistrationHttpStatus() >= 300:
		return fmt.Sprintf("HTTP %d", info.GetRegistrationHttpStatus())
	}
	return strings.TrimSpace(text[strings.LastIndex(text, ": ")+1:])
}

var (
	// dialectTried finds the word that says what came of a dialect.
	dialectTried = regexp.MustCompile(`(?:^|; )(?:monitor|push|loadstat|poll|native): ([a-z_]+)(?: \(|;|$)`)
	// reasonWord is a reason of two words or more: a single one may begin any
	// error.
	reasonWord = regexp.MustCompile(`^[a-z]+(_[a-z]+)+$`)
	// rpcError begins the text of a failed gRPC call.
	rpcError = regexp.MustCompile(`rpc error: code = (\S+) desc = `)
)

// telling returns what came of the dialects: the first word that says more
// than that the engine does not have one.
func telling(tried [][]string) (word string) {
	for _, t := range tried {
		if word = t[1]; word != "offered" && word != "unsupported" {
			return word
		}
	}
	return word
}

// errorWords is the text of the last failed call, a status of gRPC by its word.
func errorWords(info *pb.WorkerInfo) string {
	return strings.TrimSpace(rpcError.ReplaceAllString(info.GetRegistrationError(), "$1: "))
}

// narrowSteps make a line fit that has no further columns. The kind of an
// engine says more than the end of its version, the end of a worker's name more
// than its front.
func narrowSteps() []table.Step {
	return []table.Step{table.Front("WORKER", 21), table.Tail("ENGINE", 13), table.Tail("TROUBLE", longestReason), table.Front("WORKER", 15), table.Tail("TROUBLE", 16)}
}

// longestReason is the length of the longest reason word of a report.
const longestReason = len("unreachable_with_ranks")

// fitWide makes the lines of a wide table at most room characters long, if that
// is not 0, and says which columns there is no room for. The end of an error
// says more than the address in its front.
func fitWide(t *table.Table, room int) string {
	if room == 0 {
		return ""
	}
	steps := []table.Step{
		table.Tail("WHY", 12), table.Front("ERROR", 24), table.Front("WORKER", 21), table.Tail("ENGINE", 13), table.Front("PEER", 21),
		table.Tail("TROUBLE", longestReason), table.Front("WORKER", 15),
	}
	gone := t.Drop(room, steps, []string{
		"WHY", "SKEW", "LEASE", "NEXT", "REFUSED", "DRAINS", "PEER", "HTTP", "INTERVAL", "ENGINE", "FROM", "REGISTRATION", "AGE", "DIALECT",
	})
	t.Narrow(room, steps)
	if gone == nil {
		return ""
	}
	return "\n" + table.Wrap("", fmt.Sprintf("%d columns have no room for %s: see a wider terminal, or --output json", room, strings.Join(gone, ", ")))
}

// workersTable returns the narrow table, or one with everything that fits in a
// line.
func workersTable(list *pb.ListWorkersResponse, wide bool) *table.Table {
	t := &table.Table{Columns: []table.Column{
		table.Left("WORKER", 0), table.Left("ENGINE", 0), table.Left("DIALECT", 8), table.Left("STATE", 11),
		table.Right("AGE", 6), table.Left("TROUBLE", 0),
	}}
	if wide {
		t.Columns = append(t.Columns, []table.Column{
			table.Left("FROM", 0), table.Left("DRAINS", 0), table.Left("REGISTRATION", 0), table.Right("HTTP", 4), table.Right("INTERVAL", 0), table.Right("NEXT", 0), table.Right("LEASE", 0),
			table.Left("PEER", 0),
			table.Right("REFUSED", 0), table.Right("SKEW", 0), table.Left("ERROR", 0), table.Left("WHY", 0),
		}...)
	}
	for _, info := range list.GetWorkers() {
		w := info.GetWorker()
		heard := ""
		if info.AgeMs != nil {
			heard = Age(info.GetAgeMs())
		}
		row := []string{
			strings.TrimPrefix(w.GetWorkerId(), "http://"), engineWords(info), dialectWord(w.GetDialect()),
			freshnessWord(w.GetFreshness()), heard, trouble(info),
		}
		if wide {
			row = append(row, wideWay(info, list.GetServerClockMs())...)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// engineWords returns the engine's kind and version, as far as known.
func engineWords(info *pb.WorkerInfo) string {
	return strings.TrimSpace(info.GetEngine() + " " + info.GetEngineVersion())
}

// wideWay returns what else is known of the way to a worker, when the server's
// clock was at now.
func wideWay(info *pb.WorkerInfo, now uint64) []string {
	return []string{
		info.GetDiscoveredBy(), yesNo(info.GetWorker().GetDraining()), info.GetRegistration(), optional(info.RegistrationHttpStatus, "%d"),
		interval(info), until(now, info.NextRegistrationMs), until(now, info.LeaseExpiresMs),
		info.GetPeer(), strconv.FormatUint(info.GetRefused(), 10),
		optional(info.ClockSkewMs, "%dms"), errorWords(info), info.GetDialectWhy(),
	}
}

// interval shows the interval in force: that of the polls, else that of the
// reports; a dash where nothing is asked of the worker.
func interval(info *pb.WorkerInfo) string {
	ms := cmp.Or(info.GetPollIntervalMs(), info.GetWorker().GetReportIntervalMs())
	if ms == 0 || info.GetRegistration() == "off" {
		return "-"
	}
	return fmt.Sprintf("%dms", ms)
}

// until shows the time that is left until at; a dash where it is not known.
func until(now uint64, at *uint64) string {
	if now == 0 || at == nil {
		return "-"
	}
	return Age(*at - min(now, *at))
}
