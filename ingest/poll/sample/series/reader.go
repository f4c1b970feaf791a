package series

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/promtext"
	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
	"github.com/loadplane/loadplane/registry"
)

const (
	// maxPoints bounds the series of load of one page.
	maxPoints = 1 << 16
	// maxModels bounds the model names of one page: the bits of a set.
	maxModels = 64

	// maxOrder bounds a pipeline or tensor rank.
	maxOrder = 1<<31 - 1

	// noRank is the rank of a series without a rank label, badRank that of one
	// whose label is no rank number.
	noRank  = -1
	badRank = -2
	// noModel is the model of a series that names none.
	noModel = -1
)

// point is one series of one input. What tells series apart beside these is
// not known here: such series of one gauge are ambiguous.
type point struct {
	rank  int32
	model int8
	// src is the index of the source; of one input the lowest is preferred.
	src uint16
	// order is the pipeline rank and the tensor rank within it; below 0 for none.
	order int64
	// pid is the process that wrote the series; below 0 for none.
	pid   int64
	value float64
}

// startTime is the start of the process as the page says it.
type startTime struct {
	value    float64
	conflict bool
}

// Reader reads the pages of one engine. It remembers which processes moved. It
// is for one goroutine.
type Reader struct {
	family  *Family
	scanner *promtext.Scanner
	page    *cells.Page

	// Of this page.
	points   []point
	models   []string
	lastSeen []string // models of the page before; its strings are used again
	started  startTime

	// Of this page and the one before.
	traces traces
}

// NewReader returns a reader that has seen no page.
func NewReader(f *Family) *Reader {
	return &Reader{family: f, scanner: promtext.NewScanner(f.wanted)}
}

// Counts are those of the page that was read last.
func (s *Reader) Counts() promtext.Counts { return s.scanner.Counts }

// Read reads an exposition. The page has no ranks where it has no series of
// load. The reader is as before until Keep.
func (s *Reader) Read(page []byte, to *cells.Page) *registry.Refusal {
	s.page = to
	s.models, s.lastSeen = s.lastSeen[:0], s.models
	s.points, s.started = s.points[:0], startTime{}
	s.traces.begin()
	if refusal := s.scan(page); refusal != nil {
		return refusal
	}
	to.Start = s.started.get()
	if len(s.points) == 0 {
		return nil
	}
	s.assignRanks()
	slices.SortFunc(s.points, comparePoints)
	if refusal := s.chooseModels(); refusal != nil {
		return refusal
	}
	for group := range groups(s.points, byRank) {
		s.resolveRank(group)
	}
	s.showModels()
	return nil
}

// Keep makes the page that was read last the one before.
func (s *Reader) Keep() { s.traces.keep() }

// scan collects the points.
func (s *Reader) scan(page []byte) *registry.Refusal {
	s.scanner.Reset(page)
	for s.scanner.Next() {
		p, ok := s.identify(s.scanner.Sample.Labels)
		if !ok {
			continue // a part of another series
		}
		if len(s.points) > maxPoints {
			return ingest.Refuse(ReasonTooManySeries, "the page has too many series of load")
		}
		if p.model == maxModels {
			return ingest.Refuse(ReasonSeveralModels, "the page has too many models")
		}
		for _, src := range s.family.of[s.scanner.Sample.Name] {
			p.src, p.value = src, s.scanner.Sample.Value
			if !s.take(p) {
				return s.refuseRank()
			}
		}
	}
	s.page.Count(ReasonBadLine, s.scanner.Counts.Broken)
	s.page.Count(ReasonRepeatedType, s.scanner.Counts.RepeatedTypes)
	return nil
}

// refuseRank refuses a page with a rank that cannot be read: without it, what
// all ranks carry together is not known.
func (s *Reader) refuseRank() *registry.Refusal {
	return ingest.Refuse(ingest.ReasonBadRank,
		fmt.Sprintf("a series has no rank number from 0 to %d in its label %s", ingest.HardMaxRanks-1, s.family.Rank))
}

// identify reads the labels that say whose a series is. It is not used where
// ok is false.
func (s *Reader) identify(labels []promtext.Label) (p point, ok bool) {
	e := s.family
	p = point{rank: noRank, model: noModel, pid: -1}
	tp, pp := int64(-1), int64(-1)
	for i := range labels {
		name, value := labels[i].Name, labels[i].Value
		switch {
		case e.Rank != "" && string(name) == e.Rank:
			p.rank = rankOf(value)
		case string(name) == "tp_rank":
			tp = min(number(value), maxOrder)
		case string(name) == "pp_rank":
			pp = min(number(value), maxOrder)
		case string(name) == "pid":
			p.pid = number(value)
		case string(name) == "priority" && len(value) > 0:
			// A part of the series with an empty priority, in SGLang.
			return p, false
		default:
			for _, m := range e.Models {
				if string(name) == m {
					p.model = s.model(value)
				}
			}
		}
	}
	p.order = pp<<32 + tp
	return p, true
}

// rankOf reads a rank label; an empty one is none.
func rankOf(value []byte) int32 {
	if len(value) == 0 {
		return noRank
	}
	if n := number(value); n >= 0 && n < ingest.HardMaxRanks {
		return int32(n)
	}
	return badRank
}

// number reads a whole number of at most 15 digits, which is below the largest
// count; -1 for another text.
func number(value []byte) int64 {
	if len(value) == 0 || len(value) > 15 {
		return -1
	}
	var n int64
	for _, c := range value {
		if c < '0' || c > '9' {
			return -1
		}
		n = n*10 + int64(c-'0')
	}
	return n
}

// model returns the index of a model name on this page; maxModels when there
// are too many. What stands for an unknown name is none.
func (s *Reader) model(value []byte) int8 {
	value = bytes.TrimRight(value, "/")
	if len(value) == 0 || string(value) == "undefined" {
		return noModel
	}
	if i := find(s.models, value); i >= 0 {
		return int8(i)
	}
	if len(s.models) == maxModels {
		return maxModels
	}
	if i := find(s.lastSeen, value); i >= 0 {
		s.models = append(s.models, s.lastSeen[i])
	} else {
		s.models = append(s.models, string(value))
	}
	return int8(len(s.models) - 1)
}

func find(names []string, value []byte) int {
	for i, n := range names {
		if n == string(value) {
			return i
		}
	}
	return -1
}

// take adds a point for one source, or what a special kind makes of it. It is
// false for a point of a rank that cannot be read.
func (s *Reader) take(p point) bool {
	src := &s.family.sources[p.src]
	labels := s.scanner.Sample.Labels
	switch {
	case !src.matches(labels):
	case src.kind == cells.Start:
		s.started.add(p.value)
	case src.kind == cells.Sleep:
		s.sleeps(labelOf(labels, "sleep_state"), p.value)
	case src.kind == cells.Info:
		if p.value = capacityOf(labels); p.value > 0 {
			p.pid = -1
			return s.add(p)
		}
	default:
		return s.add(p)
	}
	return true
}

func (s *Reader) add(p point) bool {
	s.points = append(s.points, p)
	return p.rank != badRank
}

func (t *startTime) add(v float64) {
	if cells.Reject(cells.SampleTime, v) != "" || v == 0 {
		return
	}
	t.conflict = t.conflict || t.value != 0 && t.value != v
	t.value = v
}

// get returns the start time, 0 for unknown.
func (t startTime) get() float64 {
	if t.conflict {
		return 0
	}
	return t.value
}

func (s *Reader) sleeps(word []byte, v float64) {
	if v != 1 || len(word) == 0 || len(word) > cells.MaxWord || string(word) == "awake" {
		return
	}
	if string(word) > s.page.Asleep {
		s.page.Asleep = string(word)
	}
}

// capacityOf computes the capacity in tokens from the labels of vLLM's
// cache_config_info; 0 for unknown. Values may be the word None.
func capacityOf(labels []promtext.Label) float64 {
	if tokens := labelNumber(labels, "kv_cache_size_tokens"); tokens > 0 {
		return tokens
	}
	return labelNumber(labels, "block_size") * labelNumber(labels, "num_gpu_blocks")
}

// labelNumber returns a whole number; 0 for anything else.
func labelNumber(labels []promtext.Label, name string) float64 {
	return float64(max(0, number(labelOf(labels, name))))
}

// assignRanks gives the series without a rank label their rank: 0 where no
// series of the page has one. Where some have, those without belong to no
// single rank; counters, which SGLang keeps outside of the ranks, are kept where
// the engine has only one.
func (s *Reader) assignRanks() {
	one, labelled := int32(noRank), false
	several := false
	for i := range s.points {
		if r := s.points[i].rank; r != noRank {
			several = several || labelled && r != one
			one, labelled = r, true
		}
	}
	if !labelled {
		one = 0
		s.page.OneRank()
	}
	if labelled {
		s.dropUnlabelled(!several && s.page.DPSize == 1)
	}
	for i := range s.points {
		if s.points[i].rank == noRank {
			s.points[i].rank = one
		}
	}
}

// dropUnlabelled drops the series without a rank of a page that has ranks, but
// for counters where told so.
func (s *Reader) dropUnlabelled(keepCounters bool) {
	s.points = slices.DeleteFunc(s.points, func(p point) bool {
		counts := s.family.sources[p.src].kind == cells.Counter
		if p.rank != noRank || counts && keepCounters {
			return false
		}
		if !counts {
			s.page.Count(ReasonAmbiguous, 1)
		}
		return true
	})
}

// comparePoints orders points so that the order of lines does not matter.
// Within a rank and an input, what is preferred comes first.
func comparePoints(a, b point) int {
	switch {
	case a.rank != b.rank:
		return cmp.Compare(a.rank, b.rank)
	case a.src != b.src:
		return cmp.Compare(a.src, b.src)
	case a.order != b.order:
		return cmp.Compare(a.order, b.order)
	case a.pid != b.pid:
		return cmp.Compare(a.pid, b.pid)
	}
	return cmp.Compare(a.value, b.value)
}

// groups cuts sorted points into runs of one key.
func groups(points []point, key func(*point) int) iter.Seq[[]point] {
	return func(yield func([]point) bool) {
		for from := 0; from < len(points); {
			to := from + 1
			for to < len(points) && key(&points[to]) == key(&points[from]) {
				to++
			}
			if !yield(points[from:to]) {
				return
			}
			from = to
		}
	}
}

func byRank(p *point) int   { return int(p.rank) }
func bySource(p *point) int { return int(p.src) }

// chooseModels leaves series of one model for each rank.
func (s *Reader) chooseModels() *registry.Refusal {
	if len(s.models) < 2 {
		return nil
	}
	var drop [maxModels]bool
	kept := s.points[:0]
	for group := range groups(s.points, byRank) {
		if !s.judgeModels(group, &drop) {
			return ingest.Refuse(ReasonSeveralModels, "one rank has series of several models, of which discovery does not name exactly one")
		}
		for _, p := range group {
			if p.model == noModel || !drop[p.model] {
				kept = append(kept, p)
			}
		}
	}
	s.points = kept
	return nil
}

// judgeModels marks the models of a rank that are not to be read. It is false
// where it cannot tell which one is.
func (s *Reader) judgeModels(group []point, drop *[maxModels]bool) bool {
	var there [maxModels]bool
	for i := range group {
		if m := group[i].model; m != noModel {
			there[m] = true
		}
	}
	count, named := 0, 0
	for m, name := range s.models {
		wanted := slices.ContainsFunc(s.page.Served, func(h string) bool { return strings.TrimRight(h, "/") == name })
		drop[m] = there[m] && !wanted
		if there[m] {
			count++
		}
		if there[m] && wanted {
			named++
		}
	}
	if count < 2 {
		clear(drop[:])
		return true
	}
	return named == 1
}

// showModels lists the models of the page.
func (s *Reader) showModels() {
	if s.family.Backend {
		return
	}
	s.page.Models = append(s.page.Models, s.models...)
	slices.Sort(s.page.Models)
}

// resolveRank turns the points of one rank into its cells.
func (s *Reader) resolveRank(points []point) {
	r := s.page.Add(points[0].rank)
	traced := false
	for group := range groups(points, bySource) {
		src := &s.family.sources[group[0].src]
		if r.In[src.to].State != cells.Absent {
			continue // a preferred name is there
		}
		group = lowest(group)
		switch {
		case src.kind == cells.Counter:
			s.page.Set(r, src.to, src.name, sum(group))
		case len(group) == 1:
			s.page.Set(r, src.to, src.name, group[0].value)
		default:
			if !traced {
				s.trace(points)
				traced = true
			}
			s.setOneOf(r, src, group)
		}
	}
}

// lowest returns the points of the lowest pipeline and tensor rank.
func lowest(group []point) []point {
	n := 1
	for n < len(group) && group[n].order == group[0].order {
		n++
	}
	return group[:n]
}

// sum adds up a counter; below 0 where a part of it is.
func sum(group []point) float64 {
	total := 0.0
	for i := range group {
		if group[i].value < 0 {
			return group[i].value
		}
		total += group[i].value
	}
	return total
}

// setOneOf takes the series of the process that lives, where that is known.
func (s *Reader) setOneOf(r *cells.Rank, src *source, group []point) {
	if pid, ok := s.traces.alive(r.Number); ok && distinct(group) {
		for i := range group {
			if group[i].pid == pid {
				s.page.Frozen = true
				s.page.Set(r, src.to, src.name, group[i].value)
				return
			}
		}
	}
	s.page.Refuse(r, src.to, src.name, ReasonAmbiguous)
}

// distinct says that each series has a process of its own.
func distinct(group []point) bool {
	for i := 1; i < len(group); i++ {
		if group[i-1].pid == group[i].pid {
			return false
		}
	}
	return true
}
