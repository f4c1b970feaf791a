// Package report keeps measurements: it writes each as a line of JSON and all
// as one table, and says where the CPU time of a profile goes.
package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// Values are the measured numbers of a record, by their names.
type Values map[string]float64

// Names of values that are compared. A poll that succeeded is a report. The
// last two are microseconds: for the
// view and the bytes, as the first reader of a version waits, and for the
// bytes alone.
const (
	ReportRate  = "reports/s"
	ReportCPU   = "CPU us a report"
	ServerCores = "cores of the server"
	FirstUs     = "us, view and bytes"
	BytesUs     = "us, bytes"
)

// Names of values of the parts with intervals: how far the times between two
// polls or reports of one engine are off the wanted interval, milliseconds.
const (
	OffP50 = "off the interval p50 ms"
	OffP99 = "off the interval p99 ms"
)

// Names of values of the processes that are measured from outside.
const (
	CorePercent = "CPU % of a core"
	ResidentMiB = "resident MiB"
	PeakMiB     = "peak resident MiB"
)

// Names of what is measured in part cadence: the load reporter, a bare loop
// that sends to the same receiver, and the ticks of that loop.
const (
	Loadreporter = "loadreporter"
	BareSent     = "bare loop, sent"
	BareTicks    = "bare loop, ticks"
)

// Names of what engines do to a plane in part flood.
const (
	NoFlood  = "nothing"
	Frequent = "10 kHz"
	Deaf     = "never read"
	Giant    = "giant frames"
)

// Names of what is measured in the parts that poll.
const (
	Pushed   = "plane, pushed"
	Polled   = "plane, polled"
	Parser   = "prometheus/common"
	Transfer = "transfer"
	Stock    = "stock, pushed"
	SomeSlow = "some slow"
	NoneSlow = "none slow"
)

// Saturated begins the name of a case in which the server should have been.
const Saturated = "saturated"

// Record is one measurement, a line of the JSON file. It is a plain value.
type Record struct {
	// Part and Case are what was done.
	Part string `json:"part"`
	Case string `json:"case"`
	// Of is what was measured, in run Run from 0.
	Of     string `json:"of"`
	Run    int    `json:"run"`
	Values Values `json:"values"`
}

// Results collects the measurements. It is for one goroutine.
type Results struct {
	out      *json.Encoder
	where    Machine
	short    bool
	records  []Record
	profiles []string
}

// New returns results that are written to out as they come.
func New(out io.Writer) *Results { return &Results{out: json.NewEncoder(out)} }

// Machine writes the first line: where all of it was measured, and whether
// the run is a short one.
func (r *Results) Machine(m Machine, short bool) error {
	r.where, r.short = m, short
	return r.out.Encode(struct {
		Machine Machine `json:"machine"`
		Short   bool    `json:"short"`
	}{m, short})
}

// Add keeps and writes a measurement.
func (r *Results) Add(rec Record) error {
	r.records = append(r.records, rec)
	return r.out.Encode(rec)
}

// Profile keeps what a profile says for the end.
func (r *Results) Profile(path string) error {
	text, err := explain(path)
	r.profiles = append(r.profiles, text)
	return err
}

// row is a line of the table: a median with its spread.
type row struct{ part, name, of, unit, median, spread string }

// ratio compares two servers in one case, run by run: a value of one with the
// same or another value of the other.
type ratio struct{ part, of, value, to, with string }

var ratios = []ratio{
	{"line", "plane", ReportRate, "stock", ReportRate},
	{"line", "plane", ReportRate, "tuned", ReportRate},
	{"line", "plane", ReportCPU, "stock", ReportCPU},
	{"line", "plane", ReportCPU, "tuned", ReportCPU},
	{"views", "plane", FirstUs, "proto.Marshal", BytesUs},
	{"views", "plane", BytesUs, "proto.Marshal", BytesUs},
	{"poll", Parser, ReportCPU, Pushed, ReportCPU},
	{"poll", Polled, ReportCPU, Pushed, ReportCPU},
	{"poll", Transfer, ReportCPU, Pushed, ReportCPU},
	{"poll", Parser, ReportCPU, Polled, ReportCPU},
	{"poll", Polled, ReportCPU, Transfer, ReportCPU},
	{"poll", Pushed, ReportCPU, Stock, ReportCPU},
	{"slow", SomeSlow, OffP50, NoneSlow, OffP50},
	{"slow", SomeSlow, OffP99, NoneSlow, OffP99},
	{"cadence", Loadreporter, OffP50, BareSent, OffP50},
	{"cadence", Loadreporter, OffP99, BareSent, OffP99},
	{"cadence", Loadreporter, OffP50, BareTicks, OffP50},
	{"cadence", Loadreporter, OffP99, BareTicks, OffP99},
	{"flood", Frequent, OffP50, NoFlood, OffP50},
	{"flood", Frequent, OffP99, NoFlood, OffP99},
	{"flood", Frequent, ResidentMiB, NoFlood, ResidentMiB},
	{"flood", Deaf, OffP50, NoFlood, OffP50},
	{"flood", Deaf, OffP99, NoFlood, OffP99},
	{"flood", Deaf, ResidentMiB, NoFlood, ResidentMiB},
	{"flood", Giant, OffP50, NoFlood, OffP50},
	{"flood", Giant, OffP99, NoFlood, OffP99},
	{"flood", Giant, ResidentMiB, NoFlood, ResidentMiB},
}

// Table prints everything: ratios first, then numbers.
func (r *Results) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s, %d cores, Linux %s, %s", r.where.CPU, r.where.Cores, r.where.Kernel, r.where.Go)
	if r.where.Pinned {
		fmt.Fprint(w, "; server on core 0, load on core 1, but for part latency\n")
	} else {
		fmt.Fprint(w, "; NOT PINNED: server and load share the cores\n")
	}
	if r.short {
		fmt.Fprint(w, "A SHORT RUN: the numbers mean nothing.\n")
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "\nPART\tCASE\tRATIO\tOF\tMEDIAN\tSPREAD\n")
	for _, row := range r.ratioRows() {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", row.part, row.name, row.of, row.unit, row.median, row.spread)
	}
	for _, note := range r.idle() {
		fmt.Fprint(t, note)
	}
	fmt.Fprint(t, "\nPART\tCASE\tSERVER\tVALUE\tMEDIAN\tSPREAD\n")
	for _, row := range r.valueRows() {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", row.part, row.name, row.of, row.unit, row.median, row.spread)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, text := range r.profiles {
		fmt.Fprint(w, "\n", text)
	}
	return nil
}

// fullCore is the use of a core at which a server counts as saturated.
const fullCore = 0.9

// idle names the servers that should have been saturated and were not: there
// the load was the limit, or something else used the machine.
func (r *Results) idle() (notes []string) {
	for _, rec := range r.firsts() {
		if !strings.HasPrefix(rec.Case, Saturated) {
			continue
		}
		if least := slices.Min(r.series(rec, ServerCores)); least < fullCore {
			notes = append(notes, fmt.Sprintf("NOT SATURATED: %s, %s used %s cores; do not compare its reports/s.\n", rec.Case, rec.Of, number(least)))
		}
	}
	return notes
}

// series returns a value of a case over its runs.
func (r *Results) series(like Record, value string) (runs []float64) {
	for _, rec := range r.records {
		if v, ok := rec.Values[value]; ok && rec.Part == like.Part && rec.Case == like.Case && rec.Of == like.Of {
			runs = append(runs, v)
		}
	}
	return runs
}

// firsts returns one record of each case.
func (r *Results) firsts() (all []Record) {
	for _, rec := range r.records {
		same := func(o Record) bool { return o.Part == rec.Part && o.Case == rec.Case && o.Of == rec.Of }
		if !slices.ContainsFunc(all, same) {
			all = append(all, rec)
		}
	}
	return all
}

func (r *Results) ratioRows() (rows []row) {
	for _, rec := range r.firsts() {
		for _, q := range ratios {
			if q.part != rec.Part || q.of != rec.Of {
				continue
			}
			other := rec
			other.Of = q.to
			if runs := divide(r.series(rec, q.value), r.series(other, q.with)); len(runs) > 0 {
				rows = append(rows, newRow(rec, q.value, runs))
				rows[len(rows)-1].of = q.of + " / " + q.to
			}
		}
	}
	return rows
}

func divide(a, b []float64) (q []float64) {
	for i := range min(len(a), len(b)) {
		if b[i] != 0 {
			q = append(q, a[i]/b[i])
		}
	}
	return q
}

func (r *Results) valueRows() (rows []row) {
	for _, rec := range r.firsts() {
		for _, value := range slices.Sorted(maps.Keys(rec.Values)) {
			rows = append(rows, newRow(rec, value, r.series(rec, value)))
			rows[len(rows)-1].of = rec.Of
		}
	}
	return rows
}

// newRow makes a row of at least one run.
func newRow(rec Record, value string, runs []float64) row {
	runs = slices.Sorted(slices.Values(runs))
	return row{
		part: rec.Part, name: rec.Case, unit: value, median: number(runs[len(runs)/2]),
		spread: number(runs[0]) + " to " + number(runs[len(runs)-1]),
	}
}

// number writes three or four digits.
func number(v float64) string {
	switch size := max(v, -v); cmp.Compare(size, 100) + cmp.Compare(size, 10) {
	case 2:
		return fmt.Sprintf("%.0f", v)
	case 0, 1:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
