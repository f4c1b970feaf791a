package remote

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// Workers writes what is known of the way to each worker, in one of the
// formats table, wide, json and yaml.
func (c *Client) Workers(ctx context.Context, w io.Writer, format string) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	answer, err := c.workers.ListWorkers(ctx, &pb.ListWorkersRequest{})
	if err != nil {
		return c.explain(err)
	}
	if format == "json" || format == "yaml" {
		return writeMessage(w, answer, format)
	}
	columns, rows := workersTable(answer, format == "wide")
	if err := WriteTable(w, columns, rows); err != nil || answer.DiscoveryError == nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\nThe last list stays in force; a new one cannot be had:\n%s\n", Printable(answer.GetDiscoveryError(), 1024))
	return err
}

// trouble is why a worker is not fresh, or else what was refused of it.
func trouble(info *pb.WorkerInfo) string {
	if info.GetWorker().GetFreshness() == pb.Freshness_FRESHNESS_FRESH {
		return ""
	}
	return cmp.Or(info.GetWorker().GetFreshnessReason(), info.GetLastRefusal())
}

// engineWidth is that of the column of engines in the narrow table.
const engineWidth = 13

// workersTable returns a table that is 80 columns wide at most, or one with
// everything that fits in a line.
func workersTable(list *pb.ListWorkersResponse, wide bool) ([]Column, [][]string) {
	columns := []Column{
		{"WORKER", 21, false}, {"ENGINE", engineWidth, false}, {"DIALECT", 8, false}, {"STATE", 11, false},
		{"AGE", 6, true}, {"TROUBLE", 16, false},
	}
	if wide {
		columns[0].Width, columns[1].Width, columns[5].Width = 0, 0, 0
		columns = append(columns, []Column{
			{"FROM", 0, false}, {"REGISTRATION", 0, false}, {"HTTP", 4, true}, {"INTERVAL", 0, true}, {"NEXT", 0, true}, {"LEASE", 0, true},
			{"PEER", 0, false},
			{"REFUSED", 0, true}, {"SKEW", 0, true}, {"WHY", 0, false}, {"ERROR", 0, false},
		}...)
	}
	var rows [][]string
	for _, info := range list.GetWorkers() {
		w := info.GetWorker()
		heard := ""
		if info.AgeMs != nil {
			heard = Age(info.GetAgeMs())
		}
		engine := engineWords(info)
		if runes := []rune(Printable(engine, 256)); !wide && len(runes) > engineWidth {
			engine = string(runes[:engineWidth-1]) + "…" // the kind says more than the end of the version
		}
		row := []string{
			strings.TrimPrefix(w.GetWorkerId(), "http://"), engine, dialectWord(w.GetDialect()),
			freshnessWord(w.GetFreshness()), heard, trouble(info),
		}
		if wide {
			row = append(row, wideWay(info, list.GetServerClockMs())...)
		}
		rows = append(rows, row)
	}
	return columns, rows
}

// engineWords returns the engine's kind and version, as far as known.
func engineWords(info *pb.WorkerInfo) string {
	return strings.TrimSpace(info.GetEngine() + " " + info.GetEngineVersion())
}

// wideWay returns what else is known of the way to a worker, when the server's
// clock was at now.
func wideWay(info *pb.WorkerInfo, now uint64) []string {
	return []string{
		info.GetDiscoveredBy(), info.GetRegistration(), optional(info.RegistrationHttpStatus, "%d"),
		optional(info.PollIntervalMs, "%dms"), until(now, info.NextRegistrationMs), until(now, info.LeaseExpiresMs),
		info.GetPeer(), strconv.FormatUint(info.GetRefused(), 10),
		optional(info.ClockSkewMs, "%dms"), info.GetDialectWhy(), info.GetRegistrationError(),
	}
}

// until shows the time that is left until at; a dash where it is not known.
func until(now uint64, at *uint64) string {
	if now == 0 || at == nil {
		return "-"
	}
	return Age(*at - min(now, *at))
}
