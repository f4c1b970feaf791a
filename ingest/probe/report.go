package probe

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/ingest/poll/survey"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// Asked is one question to an engine and what came of it. It is a plain value.
type Asked struct {
	// Path is what was asked for, with its query.
	Path string
	// Status is the HTTP status; 0 without an answer.
	Status int
	// Bytes is the size of the body; 0 where it was not complete.
	Bytes int
	Took  time.Duration
	// Endpoint is the name of the row by which a load page was read; empty for
	// other pages.
	Endpoint string
	// Reason and Detail say what is wrong; empty for a page that could be
	// used.
	Reason store.Reason
	Detail string
}

// outcome says in a few words what came of the question.
func (a *Asked) outcome() string {
	switch {
	case a.Status != 0 && a.Status != 200:
		return fmt.Sprint(a.Status)
	case a.Detail != "":
		return a.Detail
	}
	return fmt.Sprint(a.Status)
}

func askedOf(p *survey.Page) Asked {
	a := Asked{Path: p.Path, Status: p.Status, Bytes: p.Bytes, Took: p.Took(), Reason: p.Reason}
	if p.Endpoint != nil {
		a.Endpoint = p.Endpoint.Name
	}
	if p.Err != nil {
		a.Detail = p.Err.Error()
	}
	return a
}

// Report is all that is learned of an engine by asking it. It is for one
// goroutine.
type Report struct {
	// URL is the engine's, without a trailing slash.
	URL string
	// Asked are the questions, in their order. The page that is read again for
	// rates stands there once.
	Asked []Asked
	// Facts are what the engine said of itself; Complete says that there is
	// nothing more to learn.
	Facts    registry.Facts
	Complete bool
	// Offers are the dialects, in the order of preference.
	Offers []registry.Offer
	// ReporterPort is the port that took a connection for monitor; 0 for none.
	ReporterPort int
	// Endpoint is the load page that would be polled; nil for none.
	Endpoint *sample.Endpoint
	// Reading is what stands on it, nil where there is none: the ranks, and by
	// which names the fields were found.
	Reading *sample.Reading
	// Rates says that the page was read twice, so that rates are known where
	// they can be. A page that is a queue is read once: reading may empty it.
	Rates bool
	// Unknown are the fields that some rank does not have, and that the plane
	// does not compute of its counters either.
	Unknown []store.Field
	// Dialect is the one that would be used; store.DialectUnspecified for
	// none. Why says why, with what speaks against those preferred to it.
	Dialect store.Dialect
	Why     string
}

// between is how long after the first reading of a page the second one is.
const between = time.Second

// Inspect asks what the engine is, which dialects it offers and what its load
// page says; values that come by monitor, push and loadstat are not waited for.
// It takes a second more than the questions do: rates are computed
// over two readings. When ctx ends, what is known until then is returned.
func (p *Prober) Inspect(ctx context.Context, t registry.Target) *Report {
	s := p.open(t)
	defer s.client.Close()
	s.safely(func() { s.probe(ctx) })
	r := &Report{
		URL: t.URL, Asked: s.asked, Facts: s.facts, Complete: !s.open, Offers: s.offers, ReporterPort: s.reporter,
	}
	if s.survey != nil && s.survey.Chosen != nil {
		r.Endpoint, r.Reading = s.survey.Chosen.Endpoint, s.survey.Chosen.Reading.Clone()
		if again := s.again(ctx); again != nil {
			r.Reading, r.Rates = again, true
		}
		r.Unknown = unknown(r.Reading)
	}
	r.Dialect, r.Why = choose(s.offers)
	return r
}

// again reads the load page a second time and returns what it says then, with
// rates; nil where the page is not to be read again, or cannot be.
func (s *session) again(ctx context.Context) *sample.Reading {
	first := s.survey.Chosen
	if first.Reading.Queue {
		return nil
	}
	wait := time.NewTimer(between)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-wait.C:
	}
	asked := survey.Survey{Client: s.client, Clock: s.prober.opts.Clock, Target: s.target, Timeout: s.prober.opts.Timeout}
	page := asked.Get(ctx, first.Endpoint, nil)
	if page.Reason != "" {
		return nil
	}
	page.Sampler = first.Sampler
	page.Safely(func() { page.Read(&s.target) })
	return page.Reading
}

// unknown returns the fields that not every rank has or will have.
func unknown(r *sample.Reading) (fields []store.Field) {
	for f := range store.NumFields {
		for i := range r.Ranks {
			if !r.Ranks[i].Rank.Has(f) && !derived(&r.Ranks[i], f) {
				fields = append(fields, f)
				break
			}
		}
	}
	return fields
}

// derived says that the store computes a field of a rank of its counters,
// while there are prefills.
func derived(r *ingest.RankReport, f store.Field) bool {
	switch f {
	case store.PrefillThroughput:
		return r.PrefillUncachedTokens.Known && r.PrefillBusyUs.Known
	case store.PrefillThroughputWall:
		return r.PrefillUncachedTokens.Known && r.TimeUnixMs.Known
	}
	return false
}

// choose returns the first dialect that is offered, and why it is that one, in
// the words in which a running plane says it of a worker.
func choose(offers []registry.Offer) (store.Dialect, string) {
	var why []string
	for _, o := range offers {
		why = append(why, fmt.Sprintf("%s: %s (%s)", o.Dialect, cmp.Or(string(o.Reason), o.Verdict.String()), o.Detail))
		if o.Verdict == registry.VerdictOffered {
			return o.Dialect, strings.Join(why, "; ")
		}
	}
	return store.DialectUnspecified, strings.Join(why, "; ")
}
