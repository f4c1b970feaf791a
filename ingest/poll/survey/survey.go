// Package survey asks engines for the pages of the table in package sample,
// says what is wrong with an answer, and chooses the page that says most.
package survey

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
)

// MaxPageBytes bounds a page.
const MaxPageBytes = 8 << 20

// Paths with rules of their own.
const (
	loadsPath      = "/v1/loads"
	metricsPath    = "/metrics"
	prometheusPath = "/prometheus/metrics"
)

// maxTimeouts is how many pages of one survey may time out before it ends.
const maxTimeouts = 2

// Page is a page that was asked for, and what came of it. It is for one
// goroutine.
type Page struct {
	// Path is what was asked for, with its query.
	Path string
	// Status is 0 without an answer; Bytes is the size of a complete body.
	Status, Bytes int
	// Began and Received are the request's beginning and its end.
	Began, Received store.Instant
	// Endpoint is the row of the table by which the page was read; nil where
	// none fits.
	Endpoint *sample.Endpoint
	// Reading is what the page says; nil where it could not be read.
	Reading *sample.Reading
	// Reason and Err say why; empty where it could.
	Reason store.Reason
	Err    error

	// Answer is nil without one; Sampler is nil where the page was not read.
	Answer  *egress.Answer
	Sampler *sample.Sampler

	// family is whose page it is by its looks; empty for unknown.
	family sample.Family
}

// Took is how long the request lasted.
func (p *Page) Took() time.Duration { return p.Received.Sub(p.Began) }

// Says tells people what a page is that was read.
func (p *Page) Says() string {
	unit := "ranks"
	if len(p.Reading.Ranks) == 1 {
		unit = "rank"
	}
	return fmt.Sprintf("GET %s: %s, %d %s", p.Path, p.Endpoint.Name, len(p.Reading.Ranks), unit)
}

// Definite says that what came of the page settles whether load can be read
// from it.
func (p *Page) Definite() bool { return p.Reading != nil || RulesOut(p.Reason) }

// Lasting says that what came of the page is not of the kind that passes soon.
func (p *Page) Lasting() bool { return p.Reading != nil || !Passing(p.Reason) && !waiting(p.Reason) }

// Fail notes why a page could not be read.
func (p *Page) Fail(reason store.Reason, err error) { p.Reading, p.Reason, p.Err = nil, reason, err }

// Survey asks an engine for the pages from which load can be read. The fields
// are required. It is for one goroutine.
type Survey struct {
	Client *egress.Client
	Clock  *store.Clock
	// Target is the engine.
	Target registry.Target
	// Timeout bounds each request.
	Timeout time.Duration
	// Behind is the page of the table behind which the search begins; empty for
	// its top. It is the one that timed out last, so that in the end every page
	// has its turn.
	Behind string

	// Known is the endpoint that was read before, with its sampler.
	Known Choice
	// Only are the paths to ask for; nil for all.
	Only []string
}

// Choice is an endpoint that is read, with what its pages said so far. It is
// for one goroutine.
type Choice struct {
	Endpoint *sample.Endpoint
	Sampler  *sample.Sampler
}

// Finding is what came of a survey. It is for one goroutine.
type Finding struct {
	// Pages are in the order in which they were asked for.
	Pages []*Page
	// Chosen is the one to read; nil for none.
	Chosen *Page
	// Telling is the page that says best why there is none.
	Telling *Page
	// Complete says that no answer was open: every page that could be better
	// was ruled out.
	Complete bool
	// Behind is what Survey.Behind is to be for the next search.
	Behind string

	// Open are the paths for which Complete does not hold.
	Open []string
	// Spared is the path that was left alone as asking may do harm; empty for
	// none.
	Spared string
}

// Run asks for each page once. The page with most ranks is chosen, then the
// one with most known values, then the first of the table; /v1/loads, which is
// asked for first, ends the search where it can be read. A page that times out
// ends it where there is another to read, and the second one in any case.
//
// TensorRT-LLM's JSON page is a queue that a reader may empty. It stands under
// a path of others, which is left alone while TensorRT-LLM's own metrics page
// is there or may be, unless the engine is known to be another.
func (s *Survey) Run(ctx context.Context) *Finding {
	f := &Finding{Behind: s.Behind}
	timeouts := 0
	paths := s.paths()
	for i, path := range paths {
		if path == metricsPath && f.guarded(s.Target.Facts.Family) {
			f.Spared = path
			f.left(path)
			continue
		}
		page := s.ask(ctx, path)
		f.add(page)
		if page.Reason == ReasonTimeout {
			timeouts++
			f.Behind = path
		}
		late := timeouts == maxTimeouts || timeouts > 0 && f.Chosen != nil
		if ctx.Err() != nil || Unreached(page.Reason) || late || page.preferred() {
			f.left(paths[i+1:]...)
			break
		}
	}
	if f.Chosen != nil && f.Chosen.preferred() {
		f.Open = nil
	}
	f.Complete = len(f.Open) == 0
	return f
}

// paths returns what to ask for, in order: that of the table, from behind the
// page that timed out last. /metrics had its turn together with TensorRT-LLM's
// page.
func (s *Survey) paths() []string {
	paths := surveyOrder(sample.Endpoints())
	behind := s.Behind
	if behind == prometheusPath {
		behind = metricsPath
	}
	if i := slices.Index(paths, behind); i >= 0 {
		paths = slices.Concat(paths[i+1:], paths[:i+1])
	}
	if s.Only == nil {
		return paths
	}
	return slices.DeleteFunc(paths, func(p string) bool { return !slices.Contains(s.Only, p) })
}

// surveyOrder returns each path of the table once, in its order but for
// TensorRT-LLM's metrics page, which is asked for before /metrics.
func surveyOrder(table []*sample.Endpoint) (paths []string) {
	for _, e := range table {
		if !slices.Contains(paths, e.Path) {
			paths = append(paths, e.Path)
		}
	}
	from, to := slices.Index(paths, prometheusPath), slices.Index(paths, metricsPath)
	if to >= 0 && from > to {
		paths = slices.Insert(slices.Delete(paths, from, from+1), to, prometheusPath)
	}
	return paths
}

// preferred says that no other page can say more.
func (p *Page) preferred() bool { return p.Reading != nil && p.is(loadsPath) }

// is compares the path without the query.
func (p *Page) is(path string) bool {
	return p.Path == path || len(p.Path) > len(path) && p.Path[:len(path)] == path && p.Path[len(path)] == '?'
}

// Refused says that the engine wants a credential.
func (f *Finding) Refused() bool {
	return slices.ContainsFunc(f.Pages, func(p *Page) bool { return p.Reason == registry.ReasonAuth })
}

// guarded says that /metrics must not be asked for, of an engine that says that
// it is of a family; empty for unknown.
func (f *Finding) guarded(family string) bool {
	i := slices.IndexFunc(f.Pages, func(p *Page) bool { return p.is(prometheusPath) })
	if i < 0 {
		return false
	}
	p := f.Pages[i]
	if family != "" && family != string(sample.TensorRTLLM) {
		return p.family == sample.TensorRTLLM
	}
	return !p.Lasting() || p.family == sample.TensorRTLLM
}

// left notes paths that were not asked for. One that is left out for a page
// that was read is not open.
func (f *Finding) left(paths ...string) {
	for _, path := range paths {
		if path != metricsPath || !slices.ContainsFunc(f.Pages, func(p *Page) bool { return p.is(prometheusPath) && p.Reading != nil }) {
			f.Open = append(f.Open, path)
		}
	}
}

// add keeps a page, and chooses it where it is better than those before.
func (f *Finding) add(p *Page) {
	f.Pages = append(f.Pages, p)
	if !p.Definite() {
		f.Open = append(f.Open, p.Path)
	}
	if p.Reading != nil && (f.Chosen == nil || Better(p, f.Chosen)) {
		f.Chosen = p
	}
	if p.Reading == nil && (f.Telling == nil || telling(p) > telling(f.Telling)) {
		f.Telling = p
	}
}

// Better says which of two pages that were read says more.
func Better(a, b *Page) bool {
	ranks, known := weigh(a.Reading)
	otherRanks, otherKnown := weigh(b.Reading)
	switch {
	case ranks != otherRanks:
		return ranks > otherRanks
	case known != otherKnown:
		return known > otherKnown
	}
	return place(a.Endpoint) < place(b.Endpoint)
}

func weigh(r *sample.Reading) (ranks, known int) {
	for i := range r.Ranks {
		known += r.Ranks[i].Rank.Known()
	}
	return len(r.Ranks), known
}

func place(e *sample.Endpoint) int { return slices.Index(sample.Endpoints(), e) }

// telling ranks the failures of one survey: what an engine may still become,
// then what it refuses, then what it has, then what it lacks.
func telling(p *Page) int {
	switch {
	case p.Status == 200 && !p.Lasting():
		return 5
	case !p.Lasting():
		return 4
	case p.Reason == registry.ReasonAuth:
		return 3
	case p.Status == 200:
		return 2
	case p.Reason != registry.ReasonUnsupported:
		return 1
	}
	return 0
}

// ask gets a page and reads it.
func (s *Survey) ask(ctx context.Context, path string) *Page {
	rows := rowsOf(path)
	p := s.Get(ctx, rows[0], nil)
	if p.Reason != "" {
		return p
	}
	p.Safely(func() { s.interpret(p, rows) })
	return p
}

// interpret reads a page by the row of its path that fits.
func (s *Survey) interpret(p *Page, rows []*sample.Endpoint) {
	body := p.Answer.Body
	if family, ok := sample.Recognize(body); ok {
		p.family = family
	}
	if p.Endpoint = fitting(rows, p.family); p.Endpoint == nil {
		// The first row says what is wrong with the page.
		_, refusal := sample.NewSampler(rows[0]).Read(body, p.Received, hints(&s.Target))
		p.refuse(refusal)
		return
	}
	if p.Sampler = s.Known.Sampler; p.Sampler == nil || s.Known.Endpoint != p.Endpoint {
		p.Sampler = sample.NewSampler(p.Endpoint)
	}
	p.Read(&s.Target)
}

// rowsOf returns the rows of the table with a path.
func rowsOf(path string) []*sample.Endpoint {
	return slices.DeleteFunc(slices.Clone(sample.Endpoints()), func(e *sample.Endpoint) bool { return e.Path != path })
}

// fitting returns the row by which a page of a family is read, nil for none:
// the only row there is, or the family's.
func fitting(rows []*sample.Endpoint, family sample.Family) *sample.Endpoint {
	if len(rows) == 1 {
		return rows[0]
	}
	i := slices.IndexFunc(rows, func(e *sample.Endpoint) bool { return e.Family == family })
	if i < 0 {
		return nil
	}
	return rows[i]
}

// Get asks for the page of an endpoint.
func (s *Survey) Get(ctx context.Context, e *sample.Endpoint, buffer []byte) *Page {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	p := &Page{Path: e.Path, Began: s.Clock.Now()}
	a, err := s.Client.Get(ctx, egress.Request{
		URL: s.Target.URL + e.Path, Accept: e.Accept, MaxBytes: MaxPageBytes, Buffer: buffer,
	})
	p.Received = s.Clock.Now()
	if a != nil {
		p.Answer, p.Status, p.Bytes = a, a.Status, len(a.Body)
	}
	p.Reason, p.Err = Judge(a, err)
	return p
}

// Read reads the body of a page by its sampler.
func (p *Page) Read(t *registry.Target) {
	reading, refusal := p.Sampler.Read(p.Answer.Body, p.Received, hints(t))
	if refusal != nil {
		p.refuse(refusal)
		return
	}
	p.Reading = reading
}

func (p *Page) refuse(r *registry.Refusal) {
	if r == nil {
		// A page that no family claims and that can be read is nobody's.
		p.Fail(sample.ReasonNotRecognised, errors.New("the page is of no engine that is known"))
		return
	}
	p.Fail(r.Reason, r)
}

// hints are what a sampler is told of an engine.
func hints(t *registry.Target) sample.Hints {
	h := sample.Hints{
		Models: t.Models, DPSize: t.Facts.DPSize, CapacityTokens: t.Facts.CapacityTokens, MaxRunning: t.MaxRunning,
	}
	if h.MaxRunning == 0 {
		h.MaxRunning = t.Facts.MaxRunning
	}
	return h
}
