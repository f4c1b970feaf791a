package inspect

import (
	"fmt"
	"io"

	"github.com/loadplane/loadplane/cmd/loadplane/table"
	"github.com/loadplane/loadplane/ingest/probe"
	"github.com/loadplane/loadplane/store"
)

// Write writes a report as a table, or as JSON where the format is "json". It
// returns an error too where no dialect can be used.
func Write(w io.Writer, r *probe.Report, format string) error {
	write := Table
	if format == "json" {
		write = JSON
	}
	if err := write(w, r); err != nil {
		return err
	}
	if r.Dialect == store.DialectUnspecified {
		return fmt.Errorf("no dialect can be used with %s: %s", r.URL, table.Printable(r.Why, 1024))
	}
	return nil
}
