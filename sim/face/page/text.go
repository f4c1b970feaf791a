package page

import (
	"bytes"
	"math"
	"net/http"
	"sort"
	"strconv"
	"strings"
)

// Text is a metrics page in the Prometheus text format, version 0.0.4, as the
// Python client writes it: labels sorted by name, whole numbers with a
// fraction. A plain page has whole numbers without one, as engines in other
// languages write it. The zero value is an empty page. It is for one goroutine.
type Text struct {
	bytes.Buffer
	// Plain is set before anything is written.
	Plain bool
}

// The types of families.
const (
	Gauge   = "gauge"
	Counter = "counter"
)

// Answer sends the page.
func (p *Text) Answer(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(p.Bytes()) // the caller has left
}

// Family begins a family; an empty help is left out.
func (p *Text) Family(name, kind, help string) {
	if help != "" {
		p.WriteString("# HELP " + name + " " + help + "\n")
	}
	p.WriteString("# TYPE " + name + " " + kind + "\n")
}

// Put writes a sample; labels are names and values by turns.
func (p *Text) Put(name string, v float64, labels ...string) {
	p.WriteString(name)
	if len(labels) > 0 {
		p.WriteByte('{')
		p.WriteString(joined(labels))
		p.WriteByte('}')
	}
	p.WriteString(" " + p.text(v) + "\n")
}

// One writes a family of one sample.
func (p *Text) One(name, kind, help string, v float64) {
	p.Family(name, kind, help)
	p.Put(name, v)
}

func joined(labels []string) string {
	pairs := make([]string, 0, len(labels)/2)
	for i := 0; i+1 < len(labels); i += 2 {
		pairs = append(pairs, labels[i]+`="`+escaped(labels[i+1])+`"`)
	}
	sort.Strings(pairs)
	return strings.Join(pairs, ",")
}

// escaped writes a label value as the format demands.
func escaped(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(s)
}

// text is a value as the page writes it.
func (p *Text) text(v float64) string {
	switch {
	case math.IsNaN(v):
		return "NaN"
	case p.Plain:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return pythonFloat(v)
}

// pythonFloat is the text of a finite float as the Python client writes it:
// from a million on with an exponent.
func pythonFloat(v float64) string {
	text := Decimal(v)
	whole, rest, _ := strings.Cut(text, ".")
	if v <= 0 || len(whole) <= 6 {
		return text
	}
	mantissa := strings.TrimRight(whole[:1]+"."+whole[1:]+rest, "0.")
	return mantissa + "e+0" + strconv.Itoa(len(whole)-1)
}

// Histogram is a family of the type histogram. Its values spread about their
// mean as the times between the events of a Poisson process do; a mean of 0
// puts all into the first bucket. It must not be changed.
type Histogram struct {
	Name, Help string
	Mean       float64
	Buckets    []float64
}

// Family begins the family.
func (h Histogram) Family(p *Text) { p.Family(h.Name, "histogram", h.Help) }

// Put writes the samples of n observations.
func (h Histogram) Put(p *Text, n int64, labels ...string) {
	for _, b := range h.Buckets {
		share := 1 - math.Exp(-b/h.Mean)
		p.Put(h.Name+"_bucket", math.Floor(share*float64(n)), With(labels, "le", p.text(b))...)
	}
	p.Put(h.Name+"_bucket", float64(n), With(labels, "le", "+Inf")...)
	p.Put(h.Name+"_count", float64(n), labels...)
	p.Put(h.Name+"_sum", math.Round(h.Mean*float64(n)*1e6)/1e6, labels...)
}

// With returns labels and more in a slice of their own.
func With(labels []string, more ...string) []string {
	return append(append(make([]string, 0, len(labels)+len(more)), labels...), more...)
}
