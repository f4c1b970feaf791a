package sample

import (
	"maps"
	"slices"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/promtext"
	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
	"github.com/loadplane/loadplane/ingest/poll/sample/document"
	"github.com/loadplane/loadplane/ingest/poll/sample/series"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// Family is a kind of engine.
type Family string

// The families.
const (
	SGLang      Family = "sglang"
	VLLM        Family = "vllm"
	TensorRTLLM Family = "tensorrt-llm"
	Triton      Family = "triton"
	TGI         Family = "tgi"
	LlamaCPP    Family = "llama.cpp"
)

// Endpoint is one page of engines from which load can be read: a row of the
// table. It must not be changed.
type Endpoint struct {
	// Name says which it is in logs and diagnostics, such as
	// "sglang /v1/loads".
	Name   string
	Family Family
	// Path is asked for as it is, with its query.
	Path string
	// Accept is the content type to ask for.
	Accept string

	text  *series.Family  // nil where no exposition is read
	json  document.Reader // nil where no JSON is read
	rules rules
}

// Endpoints returns the table. Within a family the endpoints are in the order
// in which they should be tried. The slice is the caller's.
func Endpoints() []*Endpoint { return slices.Clone(endpoints) }

// Hints are what a sampler is told of the engine beside its pages. It is a
// plain value.
type Hints struct {
	// Models are the names that discovery gives the worker; nil for none.
	Models []string
	// DPSize is the number of DP ranks, 0 for unknown.
	DPSize int
	// CapacityTokens and MaxRunning are those of a rank, 0 for unknown. They
	// fill what the page does not say, where it tells the ranks apart.
	CapacityTokens, MaxRunning int64
}

// Match says by which name a field was found. It is a plain value.
type Match struct {
	Field store.Field
	// Name is the metric or JSON key; several joined by " * ", " - ", " + " or
	// " / " where the field is computed, in "rate(...)" where it is the rate of a
	// counter, and "hint" where it is the caller's.
	Name string
}

// Reading is what a page says. It is for one goroutine and valid until the
// next Read, whether that refuses the page or not.
//
// A field that the engine does not say is computed where that is exact: token
// usage is used / capacity, and utilization is the larger of token usage and
// running / maximum, only where both are known. Used tokens that were computed
// from a usage are clamped to the capacity.
type Reading struct {
	// Ranks are what the page says of each rank, sorted, with rates filled in.
	// There is at least one, and ingest.Validate accepts them.
	Ranks []ingest.RankReport
	// TimeUnixMs is the engine's wall clock at the page, where it says it.
	TimeUnixMs ingest.Int
	// Process is when the engine process started, Unix seconds; 0 unknown.
	Process float64
	// Restarted says that another process answered than at the read before:
	// its start time changed, or a counter went back. It is false for an unstable
	// source.
	Restarted bool
	// Flags are what is odd about the page: store.FlagFrozenSeries;
	// store.FlagRanksUnknown where it shows fewer ranks than the engine has;
	// store.FlagUnstableSource where several processes answer by turns: a start
	// time of the last ten pages came back, or three of these pages were of
	// another process than the one before.
	Flags store.Flag
	// Asleep says that the engine sleeps, in its own word; empty when awake. An
	// engine of several ranks sleeps when one of them does.
	Asleep string
	// Models are those that the page names, sorted, without duplicates; nil for
	// none.
	Models []string
	// Queue says that the page is a queue, which reading may empty.
	Queue bool
	// Matches say which names were found, by field. The slice and its strings
	// stay the same from page to page while they hold.
	Matches []Match
	// Unusable counts what was there and not usable, such as NaN or negative
	// values, by reason; empty for nothing.
	Unusable map[store.Reason]int
}

// Clone returns a reading that stays valid.
func (r *Reading) Clone() *Reading {
	c := *r
	c.Ranks, c.Models, c.Unusable = slices.Clone(r.Ranks), slices.Clone(r.Models), maps.Clone(r.Unusable)
	return &c
}

// Sampler reads the pages of one endpoint of one worker. It keeps the page
// before for rates. It is for one goroutine.
type Sampler struct {
	endpoint *Endpoint
	text     *series.Reader
	hints    Hints

	// Of this page.
	page    cells.Page
	reading Reading
	how     [store.NumFields]how

	// Of the pages before.
	history history
	shown   [store.NumFields]how
}

// NewSampler returns a sampler that has seen no page.
func NewSampler(e *Endpoint) *Sampler {
	s := &Sampler{endpoint: e}
	if e.text != nil {
		s.text = series.NewReader(e.text)
	}
	return s
}

// Read reads a page of status 200 that was received at an instant. The refusal
// says what is wrong with a page that cannot be read; the sampler is then as
// before. Its reason is one of this package or one of ingest for what
// ingest.Validate would refuse.
func (s *Sampler) Read(page []byte, at store.Instant, h Hints) (*Reading, *registry.Refusal) {
	s.begin(h)
	refusal := s.parse(page)
	if refusal == nil {
		refusal = s.check()
	}
	if refusal != nil {
		return nil, refusal
	}
	s.finish(at)
	return &s.reading, nil
}

// begin forgets the page before, but for its buffers and the history.
func (s *Sampler) begin(h Hints) {
	s.hints = h
	s.page.Begin(h.Models, h.DPSize)
	s.how = [store.NumFields]how{}
	s.reading = Reading{Ranks: s.reading.Ranks[:0], Matches: s.reading.Matches}
}

// parse fills the cells from a page of whatever format.
func (s *Sampler) parse(page []byte) *registry.Refusal {
	switch promtext.FormatOf(page) {
	case promtext.FormatEmpty:
		return ingest.Refuse(ReasonNoData, "the page is empty")
	case promtext.FormatHTML:
		return ingest.Refuse(ReasonHTMLPage, "the page is HTML")
	case promtext.FormatJSON:
		if s.endpoint.json == nil {
			return ingest.Refuse(ReasonJSONPage, "the page is JSON, an exposition was expected")
		}
		s.reading.Queue = s.endpoint.rules.queue
		return s.endpoint.json(page, &s.page)
	}
	if s.text == nil {
		return ingest.Refuse(ReasonTextPage, "the page is text, JSON was expected")
	}
	if refusal := s.text.Read(page, &s.page); refusal != nil || len(s.page.Ranks) > 0 {
		return refusal
	}
	return s.refuseText(page)
}

// check refuses a page that tells no load.
func (s *Sampler) check() *registry.Refusal {
	if len(s.page.Ranks) == 0 {
		return ingest.Refuse(ReasonNoData, "the page lists no rank")
	}
	for i := range s.page.Ranks {
		if s.page.Ranks[i].Load() {
			return nil
		}
	}
	return ingest.Refuse(ReasonNoLoad, "the page has no usable number of requests or tokens")
}
