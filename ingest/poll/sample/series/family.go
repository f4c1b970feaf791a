package series

import (
	"slices"
	"strings"

	"github.com/loadplane/loadplane/ingest/poll/promtext"
	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
)

// Family says how the pages of a family of engines are read. Once compiled it
// is immutable and safe for concurrent use.
type Family struct {
	// Prefixes are those of all names.
	Prefixes []string
	// Rank is the label that has the rank number; empty for none.
	Rank string
	// Models are the labels that have the model name, of different releases.
	Models []string
	Rows   []cells.Row
	// Backend says that the model names are not those that clients use.
	Backend bool

	// sources are the rows, taken apart; of one input the preferred comes first.
	sources []source
	// of has the sources by the index of the metric in wanted.
	of     [][]uint16
	wanted *promtext.Wanted
}

// source is one name of a row with one prefix.
type source struct {
	to           cells.Input
	kind         cells.Kind
	name         string
	label, value string // selector; empty for none
}

// Compile takes the rows apart and returns a family that can be read.
func Compile(f Family) *Family {
	for _, r := range f.Rows {
		for _, n := range r.Names {
			for _, p := range f.Prefixes {
				f.sources = append(f.sources, newSource(r, p+n))
			}
		}
	}
	f.sources = append(f.sources, source{kind: cells.Start, name: "process_start_time_seconds"})
	var metrics []string
	for i, s := range f.sources {
		metric, _, _ := strings.Cut(s.name, "{")
		at := slices.Index(metrics, metric)
		if at < 0 {
			at = len(metrics)
			metrics, f.of = append(metrics, metric), append(f.of, nil)
		}
		f.of[at] = append(f.of[at], uint16(i))
	}
	f.wanted = promtext.NewWanted(metrics)
	return &f
}

func newSource(r cells.Row, name string) source {
	_, selector, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
	label, value, _ := strings.Cut(selector, "=")
	return source{to: r.To, kind: r.Kind, name: name, label: label, value: value}
}

// matches says whether the selector of a source takes a sample.
func (s *source) matches(labels []promtext.Label) bool {
	return s.label == "" || string(labelOf(labels, s.label)) == s.value
}

func labelOf(labels []promtext.Label, name string) []byte {
	for i := range labels {
		if string(labels[i].Name) == name {
			return labels[i].Value
		}
	}
	return nil
}

// Has says whether a metric name begins with a prefix of the family.
func (f *Family) Has(name []byte) bool {
	for _, p := range f.Prefixes {
		if len(name) > len(p) && string(name[:len(p)]) == p {
			return true
		}
	}
	return false
}

// Names returns all names with their prefixes and selectors, of one input in
// the order of preference.
func (f *Family) Names() []string {
	names := make([]string, len(f.sources))
	for i := range f.sources {
		names[i] = f.sources[i].name
	}
	return names
}
