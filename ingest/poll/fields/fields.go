// Package fields watches by which names the fields of an engine are found, so
// that a name that is there no more does not pass unseen.
package fields

import (
	"slices"
	"strings"

	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/store"
)

// vanishedAfter is on how many pages in a row a field is missing that vanished.
// A rate may be missing on one of them by itself.
const vanishedAfter = 2

// nameHint is the name of a field that no page says.
const nameHint = "hint"

// Watch compares the pages of one engine process. The zero Watch has seen
// none. It is for one goroutine.
type Watch struct {
	matches []sample.Match
	// names are those by which fields were found last, empty for never;
	// missing counts the pages since.
	names   [store.NumFields]string
	missing [store.NumFields]int
}

// See takes the matches of a page. changed says that a field has another name
// than before, or has one at last; vanished are the fields that have none any
// more, each once.
func (w *Watch) See(matches []sample.Match) (changed bool, vanished []store.Field) {
	same := slices.Equal(matches, w.matches)
	w.matches = matches
	var found [store.NumFields]bool
	for _, m := range matches {
		if m.Name == nameHint {
			continue
		}
		found[m.Field] = true
		changed = changed || !same && w.names[m.Field] != m.Name
		w.names[m.Field] = m.Name
	}
	for f := range store.NumFields {
		switch {
		case found[f]:
			w.missing[f] = 0
		case w.names[f] != "":
			if w.missing[f]++; w.missing[f] == vanishedAfter {
				vanished = append(vanished, f)
			}
		}
	}
	return changed, vanished
}

// Names lists for people by which names fields are found.
func (w *Watch) Names() string { return w.list(func(f store.Field) bool { return w.missing[f] == 0 }) }

// Gone lists the fields that vanished, by the names that they had; empty for
// none.
func (w *Watch) Gone() string {
	return w.list(func(f store.Field) bool { return w.missing[f] >= vanishedAfter })
}

func (w *Watch) list(wanted func(store.Field) bool) string {
	var texts []string
	for f := range store.NumFields {
		if w.names[f] != "" && wanted(f) {
			texts = append(texts, store.Fields[f].Name+" ("+w.names[f]+")")
		}
	}
	return strings.Join(texts, ", ")
}
