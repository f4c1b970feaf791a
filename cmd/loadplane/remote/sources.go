package remote

import (
	"fmt"
	"io"

	"github.com/loadplane/loadplane/cmd/loadplane/table"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// sourceWidth is that of the names of sources in the narrow table.
const sourceWidth = 20

// writeSources writes how each source of discovery is, and why those that fail
// do. A plane that does not tell of its sources may still tell why they fail.
func writeSources(w io.Writer, list *pb.ListWorkersResponse) error {
	if len(list.GetSources()) == 0 {
		return writeDiscoveryError(w, list)
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	columns, rows := sourcesTable(list.GetSources())
	if err := table.Write(w, columns, rows); err != nil {
		return err
	}
	for _, src := range list.GetSources() {
		if src.Error == nil {
			continue
		}
		if _, err := io.WriteString(w, table.Wrap(table.Printable(src.GetName(), sourceWidth)+": ", src.GetError())); err != nil {
			return err
		}
	}
	return nil
}

func writeDiscoveryError(w io.Writer, list *pb.ListWorkersResponse) error {
	if list.DiscoveryError == nil {
		return nil
	}
	_, err := fmt.Fprintf(w, "\nThe last list stays in force; a new one cannot be had:\n%s\n", table.Printable(list.GetDiscoveryError(), 1024))
	return err
}

// sourcesTable returns a table that is 80 columns wide at most.
func sourcesTable(sources []*pb.DiscoverySource) ([]table.Column, [][]string) {
	columns := []table.Column{table.Left("SOURCE", sourceWidth), table.Left("SYNCED", 0), table.Right("WORKERS", 0), table.Right("LISTED", 0), table.Left("STATUS", 0)}
	var rows [][]string
	for _, src := range sources {
		rows = append(rows, []string{src.GetName(), yesNo(src.GetSynced()), optional(src.Workers, "%d"), listedAge(src), sourceStatus(src)})
	}
	return columns, rows
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// listedAge is the age of the list in force; a dash without one.
func listedAge(src *pb.DiscoverySource) string {
	if src.ListedAgeMs == nil {
		return "-"
	}
	return Age(src.GetListedAgeMs())
}

// sourceStatus is what becomes of the list in force.
func sourceStatus(src *pb.DiscoverySource) string {
	switch {
	case src.Error == nil && src.GetSynced():
		return "ok"
	case src.GetSynced():
		return "error, last list kept"
	case src.Error != nil:
		return "no list yet"
	}
	return "waited for"
}
