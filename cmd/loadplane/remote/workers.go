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
	if err := writeTable(w, columns, rows); err != nil || answer.DiscoveryError == nil {
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

func workersTable(list *pb.ListWorkersResponse, wide bool) ([]column, [][]string) {
	columns := []column{
		{"WORKER", 21, false}, {"FROM", 5, false}, {"STATE", 11, false},
		{"REGISTRATION", 12, false}, {"AGE", 6, true}, {"TROUBLE", 20, false},
	}
	if wide {
		columns[0].width, columns[5].width = 0, 0
		columns = append(columns, []column{
			{"HTTP", 4, true}, {"PEER", 0, false}, {"REFUSED", 0, true}, {"SKEW", 0, true}, {"ERROR", 0, false},
		}...)
	}
	var rows [][]string
	for _, info := range list.GetWorkers() {
		w := info.GetWorker()
		heard := ""
		if info.AgeMs != nil {
			heard = age(info.GetAgeMs())
		}
		row := []string{
			strings.TrimPrefix(w.GetWorkerId(), "http://"), info.GetDiscoveredBy(), freshnessWord(w.GetFreshness()),
			info.GetRegistration(), heard, trouble(info),
		}
		if wide {
			row = append(row, optional(info.RegistrationHttpStatus, "%d"), info.GetPeer(),
				strconv.FormatUint(info.GetRefused(), 10), optional(info.ClockSkewMs, "%dms"), info.GetRegistrationError())
		}
		rows = append(rows, row)
	}
	return columns, rows
}
