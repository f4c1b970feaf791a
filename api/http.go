package api

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/loadplane/loadplane/api/feeds"
	"github.com/loadplane/loadplane/api/jsonview"
	"github.com/loadplane/loadplane/api/query"
	"github.com/loadplane/loadplane/store/snapshot"
)

// jitterShare is the share of the waiting time by which the end of a wait is
// spread at the most, so that readers that began together part.
const jitterShare = 16

// serveSnapshot answers with the view as JSON, or that it has not changed
// since the answer that the request names.
func (a *API) serveSnapshot(w http.ResponseWriter, r *http.Request) {
	q, err := query.OfSnapshot(r.URL.RawQuery)
	if err != nil {
		a.metrics.requests.of(class4xx).Inc()
		a.refuse(err).http(w)
		return
	}
	feed := a.feeds.Take(q.Filter)
	defer feed.Release()
	view, _ := feed.Fresh(r.Context())
	asked := reader{Query: q, feed: feed, held: newTags(r.Header.Values("If-None-Match"), tagOf(view, q))}
	view, refused := a.await(r.Context(), asked, view)
	if refused != nil {
		a.metrics.requests.of(class4xx).Inc()
		a.metrics.refused.of(refused.reason).Inc()
		refused.http(w)
		return
	}
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("Vary", "Accept, Accept-Encoding")
	w.Header().Set("ETag", tagOf(view, q))
	if a.unchanged(asked, view) {
		a.metrics.requests.of(class3xx).Inc()
		w.WriteHeader(http.StatusNotModified)
		return
	}
	a.metrics.requests.of(class2xx).Inc()
	answerJSON(w, http.StatusOK, a.json.Snapshot(view, jsonview.Shape{Upstream: q.Upstream, Brief: q.Brief}))
}

// reader is one request for the view. It is a plain value.
type reader struct {
	query.Query
	feed *feeds.Feed
	// held are the tags of the answers that it has.
	held tags
}

// unchanged says that a reader that holds some answers has this one, and that
// what was fresh in it still is.
func (a *API) unchanged(r reader, view *snapshot.View) bool {
	return r.held.has(tagOf(view, r.Query)) && !view.Overdue(a.clock.Now())
}

// await returns the view to answer a reader with: view, or, where it holds that
// and waits, one that it does not hold, if there is one in time. What is to be
// sent whole has a place among the whole answers, and is of the time at which it
// got it.
func (a *API) await(ctx context.Context, r reader, view *snapshot.View) (*snapshot.View, *refusal) {
	if r.Wait > 0 && a.unchanged(r, view) {
		var refused *refusal
		if view, refused = a.hold(ctx, r); refused != nil {
			return nil, refused
		}
	}
	if a.unchanged(r, view) {
		return view, nil
	}
	if refused := a.beginWhole(ctx); refused != nil {
		return nil, refused
	}
	view, _ = r.feed.Fresh(ctx)
	return view, nil
}

// hold waits until the reader does not hold the answer any more, or for as
// long as it asks, and a little longer. What concerns other workers does not
// end it.
func (a *API) hold(ctx context.Context, r reader) (*snapshot.View, *refusal) {
	if a.draining() {
		return nil, refuseDraining(a.drainWhy)
	}
	if !take(&a.held, a.opts.MaxHeld) {
		return nil, refuseTooMany(ReasonTooManyHeld, a.opts.MaxHeld)
	}
	defer a.held.Add(-1)
	writerOf(ctx).Stream(a.opts.WriteTimeout)
	timer := time.NewTimer(r.Wait + rand.N(r.Wait/jitterShare+1))
	defer timer.Stop()
	view, stale := r.feed.Fresh(ctx)
	for ; a.unchanged(r, view); view, stale = r.feed.Fresh(ctx) {
		for moved := false; !moved; {
			select {
			case <-stale:
				moved, stale = r.feed.Moved(view.Version)
			case <-timer.C:
				view, _ = r.feed.Fresh(ctx)
				return view, nil
			case <-ctx.Done():
				return view, nil
			case <-a.drain:
				return nil, refuseDraining(a.drainWhy)
			}
		}
	}
	return view, nil
}

// beginWhole gives the answer to a request a place among those that are sent
// whole, which it has until it is written, or refuses it. Each holds the bytes
// of a view, and a reader may take them slowly. Where there is no place it
// waits for one as long as the slowest reader may take for a part.
func (a *API) beginWhole(ctx context.Context) *refusal {
	timer := time.NewTimer(a.opts.WriteTimeout)
	defer timer.Stop()
	select {
	case a.whole <- struct{}{}:
	case <-timer.C:
		return refuseTooMany(ReasonTooManyAnswers, cap(a.whole))
	case <-ctx.Done():
		return refuseTooMany(ReasonTooManyAnswers, cap(a.whole))
	}
	w := writerOf(ctx)
	w.Roll(a.opts.WriteTimeout)
	w.AtFinish(func() { <-a.whole })
	return nil
}

// tagOf returns the weak entity tag of the answer to q: of what it shows that
// is content, never of the version.
func tagOf(view *snapshot.View, q query.Query) string {
	shape := []byte(view.Lineage)
	for _, flag := range []bool{view.Enabled, view.Warming, q.Upstream, q.Brief} {
		shape = strconv.AppendBool(append(shape, ' '), flag)
	}
	shape = strconv.AppendUint(append(shape, ' '), view.FilterHash, 16)
	tag := strconv.AppendUint([]byte(`W/"`), xxhash.Sum64(shape), 16)
	return string(append(strconv.AppendUint(append(tag, '-'), view.Digest, 16), '"'))
}

// tags are the entity tags of answers that a reader holds, without W/.
type tags []string

// newTags reads the values of If-None-Match; a "*" is the current tag.
func newTags(headers []string, current string) (held tags) {
	rest := strings.TrimSpace(strings.Join(headers, ","))
	if rest == "*" {
		return tags{strings.TrimPrefix(current, "W/")}
	}
	for {
		begin := strings.IndexByte(rest, '"')
		if begin < 0 {
			return held
		}
		end := strings.IndexByte(rest[begin+1:], '"')
		if end < 0 {
			return held
		}
		held = append(held, rest[begin:begin+end+2])
		rest = rest[begin+end+2:]
	}
}

func (t tags) has(tag string) bool { return slices.Contains(t, strings.TrimPrefix(tag, "W/")) }

// serveWatch sends the view and its changes, a JSON value a line.
func (a *API) serveWatch(w http.ResponseWriter, r *http.Request) {
	q, err := query.OfWatch(r.URL.RawQuery)
	if err != nil {
		a.refuse(err).http(w)
		return
	}
	leave, refused := a.admit(r.Context(), a.clientOf(r.Context(), ""))
	if refused != nil {
		refused.http(w)
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "application/x-ndjson")
	if r.Method == http.MethodHead {
		return
	}
	line := a.newWatch(r.Context(), q)
	defer line.feed.Release()
	line.encode = func(u update) error {
		_, _ = line.out.Write(a.line(u)) // out keeps the error
		line.out.Flush()
		return nil
	}
	// The last line says why the watch ends; a reader that is gone needs none.
	if err := line.run(r.Context()); errors.Is(err, errCut) {
		a.opts.Logger.Debug("watch cut", "remote", r.RemoteAddr)
	}
}

func (a *API) line(u update) []byte {
	return a.json.Line(jsonview.Line{
		Type: string(u.kind), View: u.view, Brief: u.brief, Since: u.since.Tick, Entered: u.since.Entered, Whole: u.kind == kindFull, Base: u.base,
		MinInterval: u.minInterval, Reason: u.why, ReconnectWithin: reconnectWithin,
	})
}
