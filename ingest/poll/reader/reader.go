package reader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"syscall"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/fields"
	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/ingest/poll/survey"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"golang.org/x/time/rate"
)

const (
	// askAgain is after how long an engine is asked once more for pages that
	// could not be had when another one was chosen.
	askAgain = 30 * time.Second
	// healthBytes bounds the health page, which is not read.
	healthBytes = 64 << 10
	healthPath  = "/health"
	// enoughAuths is how many answers in a row have to want a credential before
	// an engine that was read counts as one that refuses.
	enoughAuths = 2
	// logEach and logBurst bound the lines about one engine.
	logEach  = 2 * time.Minute
	logBurst = 4
)

// Options configure a Reader. It is a plain value.
type Options struct {
	// Clock is the one of the instants of pages. Required.
	Clock *store.Clock
	// Timeout bounds each request. Required.
	Timeout time.Duration
	// StaleAfter is the age at which a report stops being fresh. An engine that
	// could not be reached for as long may be another one. Required.
	StaleAfter time.Duration
	// Prefix begins the names of instances.
	Prefix string
	// Derived has an instance named after the URL and the start of its process,
	// where the page tells that, so that the next reader of the same process
	// names it alike. Other names are random.
	Derived bool
	// Behind is the page behind which the first search begins; empty for the
	// first of the table.
	Behind string
	// Dial connects to the engine; nil for egress.DefaultDial.
	Dial egress.Dial
	// Buffers are shared with other readers; nil for the reader's own.
	Buffers *Buffers
	// Logger takes a few lines about the engine. Required.
	Logger *slog.Logger
}

// Reader reads the load of one engine. It is for one goroutine.
type Reader struct {
	opts   Options
	target registry.Target
	client *egress.Client
	creds  [2]string

	// known is the endpoint that was read last; chosen says that it is still
	// the one to read.
	known  survey.Choice
	chosen bool
	// detail says of the page for people what it is.
	detail string
	// open are the pages that may be better, asking is when to ask for them,
	// and behind the page that timed out last.
	open   []string
	asking time.Time
	behind string
	// auths counts the answers in a row that want a credential.
	auths int
	// fields are watched on the pages of the instance.
	fields fields.Watch
	identity

	// lines bounds the log lines about the engine, losses those about fields
	// that vanished.
	lines, losses *rate.Limiter

	result Result
	report ingest.Report
}

// New returns a reader that knows nothing of its engine. It starts nothing.
func New(opts Options) *Reader {
	if opts.Buffers == nil {
		opts.Buffers = new(Buffers)
	}
	limit := func() *rate.Limiter { return rate.NewLimiter(rate.Every(logEach), logBurst) }
	return &Reader{opts: opts, behind: opts.Behind, lines: limit(), losses: limit()}
}

// Close ends the kept connection. What is known of the engine stays, and the
// reader can be used again.
func (r *Reader) Close() {
	if r.client != nil {
		r.client.Close()
		r.client = nil
	}
}

// Forget has the next process that answers taken for another than before,
// without a word.
func (r *Reader) Forget() { r.source = "" }

// Reconsider has the engine asked for all pages at the next round.
func (r *Reader) Reconsider() { r.chosen = false }

// Read makes one round: it asks for the chosen page, or for all pages to
// choose one. At most one request is in flight, each within its own time. The
// target is the engine, as it is at the time; its URL is always the same. Read
// returns nil where ctx ended. A panic of what reads answers is a failed page.
func (r *Reader) Read(ctx context.Context, t registry.Target) *Result {
	r.target = t
	r.connect()
	res := &r.result
	*res = Result{}
	crashed := r.alone(ctx, &res.Tally, func() {
		res.Began = time.Now()
		r.round(ctx)
	})
	if ctx.Err() != nil {
		return nil
	}
	if crashed != nil {
		res.Page, res.Report, res.Over = crashed, nil, ""
	}
	r.reached(res.Page, res.Began)
	res.Over = r.insist(res.Over)
	res.Source, res.Detail, res.Gone = r.source, r.detail, r.fields.Gone()
	return res
}

// Improve asks, once in a while, for pages that could not be had when the one
// that was just read was chosen. It takes as long as it is given at most, and
// asks for nothing where that is not positive or the page was of no use. It
// returns what is to be counted.
func (r *Reader) Improve(ctx context.Context, read *Result, within time.Duration) *Tally {
	counts := new(Tally)
	if read.Page.Reading == nil || !r.chosen || len(r.open) == 0 || time.Now().Before(r.asking) || within <= 0 {
		return counts
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	r.alone(ctx, counts, func() {
		s := r.survey()
		s.Only = r.open
		if best := r.search(ctx, s, counts).Chosen; best != nil && survey.Better(best, read.Page) {
			r.settleOn(best)
			r.fields = fields.Watch{} // they are another page's
		}
	})
	return counts
}

// alone does what asks the engine while nobody else does. It returns the page
// that stands for a panic of it, nil for none.
func (r *Reader) alone(ctx context.Context, counts *Tally, do func()) (crashed *survey.Page) {
	leave, err := r.target.Line.Join(ctx)
	if err != nil {
		return nil
	}
	defer leave()
	defer func() {
		if v := recover(); v != nil {
			crashed = new(survey.Page)
			crashed.Fail(survey.ReasonReaderPanic, survey.NewPanic(v))
			r.crashed(crashed, counts)
			r.Close()
		}
	}()
	do()
	return nil
}

// crashed notes a page whose reader panicked, and begins anew with what it may
// have left in disorder.
func (r *Reader) crashed(p *survey.Page, counts *Tally) {
	var why *survey.Panic
	if !errors.As(p.Err, &why) {
		return
	}
	if p.Endpoint == nil || p.Endpoint == r.known.Endpoint {
		r.known, r.chosen = survey.Choice{}, false
	}
	counts.Panics = append(counts.Panics, Panic{p.Path, why})
}

// reached notes whether a round reached the engine. Where one does again after
// connections were refused, or failed for long, another process may answer.
func (r *Reader) reached(p *survey.Page, began time.Time) {
	if errors.Is(p.Err, syscall.ECONNREFUSED) {
		r.replaced = true
	}
	switch {
	case p.Reason != registry.ReasonConnectFailed && p.Reason != registry.ReasonEgressDenied:
		r.replaced = r.replaced || r.longAway(p)
		r.unreached = time.Time{}
	case r.unreached.IsZero():
		r.unreached = began
	}
}

// insist returns why there is nothing more to expect. One answer that wants a
// credential is not enough of an engine that was read before.
func (r *Reader) insist(over store.Reason) store.Reason {
	if over != registry.ReasonAuth {
		r.auths = 0
		return over
	}
	if r.auths++; r.source != "" && r.auths < enoughAuths {
		return ""
	}
	r.auths = 0
	return over
}

// connect makes a client with the credentials that are in force.
func (r *Reader) connect() {
	creds := [2]string{r.target.TokenFile, r.target.CAFile}
	if r.client != nil && creds == r.creds {
		return
	}
	r.Close()
	r.creds = creds
	r.client = egress.New(egress.Options{Dial: r.opts.Dial, TokenFile: creds[0], CAFile: creds[1]})
}

func (r *Reader) survey() *survey.Survey {
	return &survey.Survey{
		Client: r.client, Clock: r.opts.Clock, Target: r.target, Timeout: r.opts.Timeout,
		Behind: r.behind, Known: r.known,
	}
}

// round reads the load.
func (r *Reader) round(ctx context.Context) {
	if r.chosen {
		r.reread(ctx)
		return
	}
	r.choose(ctx)
}

// reread asks for the chosen page.
func (r *Reader) reread(ctx context.Context) {
	res := &r.result
	buffer := r.opts.Buffers.take()
	page := r.survey().Get(ctx, r.known.Endpoint, buffer)
	page.Endpoint, page.Sampler = r.known.Endpoint, r.known.Sampler
	res.Page = page
	res.Tally.Bytes += page.Bytes
	if page.Reason == "" {
		page.Safely(func() { page.Read(&r.target) })
		r.crashed(page, &res.Tally)
		// A reading shares no memory with the body.
		buffer, page.Answer.Body = page.Answer.Body, nil
		r.opts.Buffers.give(buffer)
	}
	switch {
	case page.Reading != nil:
		r.take(ctx, page)
	case page.Reason == registry.ReasonAuth:
		res.Over = registry.ReasonAuth
	case survey.Gone(page.Reason):
		// What is there instead is looked for at the next round.
		r.chosen = false
	}
}

// choose asks for all pages and takes the best.
func (r *Reader) choose(ctx context.Context) {
	res := &r.result
	found := r.search(ctx, r.survey(), &res.Tally)
	if found.Chosen == nil {
		res.Page = found.Telling
		r.without(found)
		return
	}
	res.Page = found.Chosen
	r.settleOn(found.Chosen)
	r.take(ctx, found.Chosen)
}

// search asks for pages, and notes for which it is to be done again.
func (r *Reader) search(ctx context.Context, s *survey.Survey, counts *Tally) *survey.Finding {
	counts.Surveys++
	found := s.Run(ctx)
	for _, p := range found.Pages {
		counts.Bytes += p.Bytes
		r.crashed(p, counts)
	}
	r.open, r.asking, r.behind = found.Open, time.Now().Add(askAgain), found.Behind
	return found
}

// settleOn has a page read from now on.
func (r *Reader) settleOn(best *survey.Page) {
	if r.known.Endpoint != best.Endpoint && r.lines.Allow() {
		r.opts.Logger.Info("poll endpoint chosen", slog.String("worker", r.target.ID),
			slog.String("endpoint", best.Endpoint.Name), slog.Int("ranks", len(best.Reading.Ranks)))
	}
	r.known, r.chosen = survey.Choice{Endpoint: best.Endpoint, Sampler: best.Sampler}, true
	r.detail = best.Says()
}

// without notes what follows from a survey that found nothing to read. Where
// the engine does not have a page, the next one at its address is another.
func (r *Reader) without(found *survey.Finding) {
	res := &r.result
	r.chosen = false
	switch {
	case found.Complete && found.Refused():
		res.Over = registry.ReasonAuth
	case found.Complete:
		res.Over = registry.ReasonUnsupported
		r.Forget()
	default:
		res.Useless = !slices.ContainsFunc(found.Pages, func(p *survey.Page) bool { return !p.Lasting() })
	}
}

// take takes over what a page says, where it may be believed.
func (r *Reader) take(ctx context.Context, page *survey.Page) {
	res := &r.result
	res.Found, res.Tally.Unusable = true, page.Reading.Unusable
	res.Changed = r.identify(page)
	r.watch(page.Reading)
	if r.ready(ctx, page) {
		res.Report = r.fill(page)
	}
}

// watch tells by which names the fields of the page were found, and which are
// there no more.
func (r *Reader) watch(reading *sample.Reading) {
	if reading.Asleep != "" {
		return
	}
	changed, vanished := r.fields.See(reading.Matches)
	if changed && r.lines.Allow() {
		r.opts.Logger.Info("poll fields matched", slog.String("worker", r.target.ID), slog.String("fields", r.fields.Names()))
	}
	r.result.Tally.Vanished = vanished
	if len(vanished) > 0 && r.losses.Allow() {
		r.opts.Logger.Warn("poll fields vanished", slog.String("worker", r.target.ID), slog.String("fields", r.fields.Gone()))
	}
}

// ready says whether the page may be believed: some engines answer while they
// load, with zeros, and say so on their health page only. It is asked once for
// each process, for its 503 alone: with any other status the page is believed,
// whatever the text says.
func (r *Reader) ready(ctx context.Context, page *survey.Page) bool {
	if r.healthy || !hasHealth(page.Endpoint.Family) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	a, _ := r.client.Get(ctx, egress.Request{URL: r.target.URL + healthPath, MaxBytes: healthBytes})
	if a != nil && a.Status == 503 {
		page.Fail(ReasonNotReady, fmt.Errorf("%s answers 503", healthPath))
		page.Status = a.Status
		return false
	}
	r.healthy = true
	return true
}

func hasHealth(f sample.Family) bool {
	return f == sample.VLLM || f == sample.TGI || f == sample.LlamaCPP
}

// fill fills in the report of what a page says, as every dialect reports it.
func (r *Reader) fill(page *survey.Page) *ingest.Report {
	r.report = ingest.Report{
		Source: r.source, Status: int32(store.StatusHealthy),
		TimeUnixMs: page.Reading.TimeUnixMs, Ranks: page.Reading.Ranks,
		Received: page.Received, ReceivedUnixMs: time.Now().UnixMilli(),
	}
	if asleep := page.Reading.Asleep; asleep != "" {
		r.report.Status, r.report.Ranks, r.report.LastError = int32(store.StatusUnreachable), nil, "the engine sleeps: "+asleep
	}
	return &r.report
}
