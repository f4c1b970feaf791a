package poll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"syscall"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/fields"
	"github.com/loadplane/loadplane/ingest/poll/pace"
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
	// tellEach is the shortest time between two instances that a caller is
	// told of.
	tellEach = 10 * time.Second
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

// loop polls one worker. It is for one goroutine.
type loop struct {
	*memory
	poller  *Poller
	engine  *registry.Engine
	target  registry.Target
	client  *egress.Client
	creds   [2]string
	binding *registry.Binding
	// changed says that the process is another than when the caller was last
	// told.
	changed bool
	// ended says that the engine does not have the dialect: the next one at its
	// address is another.
	ended bool

	// useless says that no page of the engine could be read, and that waiting
	// alone is not likely to help.
	useless   bool
	stretched bool
}

func (p *Poller) begin(e *registry.Engine) *loop {
	l := &loop{poller: p, engine: e, target: e.Target()}
	if l.memory = p.kept.take(l.name()); l.memory == nil {
		l.memory = &memory{pace: pace.Pace{StaleAfter: p.opts.StaleAfter}, behind: l.target.Behind}
	}
	if l.lines == nil {
		limit := func() *rate.Limiter { return rate.NewLimiter(rate.Every(logEach), logBurst) }
		l.lines, l.losses = limit(), limit()
	}
	if l.due.IsZero() {
		l.wanted = l.target.Interval
		l.due = l.pace.First(l.wanted, time.Now())
	}
	l.hurry()
	return l
}

func (l *loop) name() string { return l.target.ID + " " + l.target.URL }

func (l *loop) end() {
	l.poller.metrics.engines.Dec()
	l.stretch(false)
	if l.ended || l.lost() != "" {
		l.source = ""
	}
	if l.useless {
		l.due = time.Time{}
		l.pace.Rested()
	}
	if l.binding != nil {
		l.binding.Close()
	}
	if l.client != nil {
		l.client.Close()
	}
	l.poller.kept.put(l.name(), l.memory)
}

// wait waits until the next poll is due; false says that ctx or the binding
// ended.
func (l *loop) wait(ctx context.Context) bool {
	timer := time.NewTimer(time.Until(l.due))
	defer timer.Stop()
	var ended <-chan struct{}
	if l.binding != nil {
		ended = l.binding.Ended()
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-ended:
			return false
		case <-timer.C:
			return ctx.Err() == nil
		case <-l.engine.Changed():
			l.target = l.engine.Target()
			l.hurry()
			timer.Reset(time.Until(l.due))
		}
	}
}

// hurry takes up another interval than the one that was wanted before.
func (l *loop) hurry() {
	if l.target.Interval == l.wanted {
		return
	}
	l.wanted = l.target.Interval
	l.due = l.pace.Change(l.wanted, l.due)
	l.stretch(false)
}

// lost returns why the binding ended, empty where it did not.
func (l *loop) lost() store.Reason {
	if l.binding == nil {
		return ""
	}
	return reasonOf(l.binding.Err())
}

// reasonOf returns the reason of the refusal that err is; empty for none.
func reasonOf(err error) store.Reason {
	var why *registry.Refusal
	if !errors.As(err, &why) {
		return ""
	}
	return why.Reason
}

// step makes one poll. It returns why there will be no further one, empty
// while they go on.
func (l *loop) step(ctx context.Context) store.Reason {
	l.refresh()
	var began time.Time
	var page *survey.Page
	var over store.Reason
	crashed := l.alone(ctx, func() {
		began = time.Now()
		page, over = l.poll(ctx)
	})
	if ctx.Err() != nil {
		return ""
	}
	if crashed != nil {
		page, over = crashed, ""
	}
	l.reached(page, began)
	took := time.Since(began)
	l.due = l.pace.Next(l.target.Interval, took, page.Status != 0)
	if l.useless {
		l.due = l.pace.Rest(began, l.due)
	}
	l.stretch(l.pace.Stretched(l.target.Interval))
	l.poller.metrics.polled(page.Reason, took)
	l.show(page)
	if over = l.insist(over); over != "" {
		return over
	}
	l.improve(ctx, page)
	if l.changed && l.sequence > 0 && time.Since(l.told) >= tellEach {
		// What the new process serves is looked at anew.
		l.told, l.chosen = time.Now(), false
		return registry.ReasonInstanceChanged
	}
	return ""
}

// alone does what asks the engine while nobody else does. It returns the page
// that stands for a panic of it, nil for none.
func (l *loop) alone(ctx context.Context, do func()) (crashed *survey.Page) {
	leave, err := l.target.Line.Join(ctx)
	if err != nil {
		return nil
	}
	defer leave()
	defer func() {
		if v := recover(); v != nil {
			crashed = new(survey.Page)
			crashed.Fail(survey.ReasonReaderPanic, survey.NewPanic(v))
			l.crashed(crashed)
			l.client.Close()
			l.client = nil
		}
	}()
	do()
	return nil
}

// crashed tells of a page whose reader panicked, and begins anew with what it
// may have left in disorder.
func (l *loop) crashed(p *survey.Page) {
	var why *survey.Panic
	if !errors.As(p.Err, &why) {
		return
	}
	if p.Endpoint == nil || p.Endpoint == l.known.Endpoint {
		l.known, l.chosen = survey.Choice{}, false
	}
	l.poller.metrics.panics.Inc()
	l.poller.panicked.Do(func() {
		l.poller.opts.Logger.Error("page reader panicked", slog.String("worker", l.target.ID),
			slog.String("path", p.Path), slog.String("panic", why.Value), slog.String("stack", why.Stack))
	})
}

// reached notes whether a poll reached the engine. Where it does again after
// connections were refused, or failed for long, another process may answer.
func (l *loop) reached(p *survey.Page, began time.Time) {
	if errors.Is(p.Err, syscall.ECONNREFUSED) {
		l.replaced = true
	}
	switch {
	case p.Reason != registry.ReasonConnectFailed:
		l.replaced = l.replaced || l.longAway(p)
		l.unreached = time.Time{}
	case l.unreached.IsZero():
		l.unreached = began
	}
}

// longAway says that no connection came about for so long that the engine's
// last report is not fresh any more.
func (l *loop) longAway(p *survey.Page) bool {
	return !l.unreached.IsZero() && time.Since(l.unreached)-p.Took() >= l.poller.opts.StaleAfter
}

// insist returns why the polling is over. One answer that wants a credential
// is not enough of an engine that was read before.
func (l *loop) insist(over store.Reason) store.Reason {
	if over != registry.ReasonAuth {
		l.auths = 0
		return over
	}
	if l.auths++; l.source != "" && l.auths < enoughAuths {
		return ""
	}
	l.auths = 0
	return over
}

// refresh takes over what discovery says now.
func (l *loop) refresh() {
	l.target = l.engine.Target()
	l.hurry()
	l.connect()
}

// connect makes a client with the credentials that are in force.
func (l *loop) connect() {
	creds := [2]string{l.target.TokenFile, l.target.CAFile}
	if l.client != nil && creds == l.creds {
		return
	}
	if l.client != nil {
		l.client.Close()
	}
	l.creds = creds
	l.client = egress.New(egress.Options{Dial: l.poller.opts.Dial, TokenFile: creds[0], CAFile: creds[1]})
}

func (l *loop) survey() *survey.Survey {
	return &survey.Survey{
		Client: l.client, Clock: l.poller.opts.Clock, Target: l.target, Timeout: l.poller.opts.Timeout,
		Behind: l.behind, Known: l.known,
	}
}

// poll reads the load and delivers it. It returns the page that decided, and
// why the polling is over, empty where it is not.
func (l *loop) poll(ctx context.Context) (*survey.Page, store.Reason) {
	l.useless = false
	if l.chosen {
		return l.reread(ctx)
	}
	return l.choose(ctx)
}

// reread polls the chosen endpoint.
func (l *loop) reread(ctx context.Context) (*survey.Page, store.Reason) {
	buffer := l.poller.buffer()
	page := l.survey().Get(ctx, l.known.Endpoint, buffer)
	page.Endpoint, page.Sampler = l.known.Endpoint, l.known.Sampler
	l.poller.metrics.bytes.Add(float64(page.Bytes))
	if page.Reason == "" {
		page.Safely(func() { page.Read(&l.target) })
		l.crashed(page)
		buffer = page.Answer.Body
		defer func() { l.poller.recycle(buffer) }()
	}
	switch {
	case page.Reading != nil:
		return page, l.deliver(ctx, page)
	case page.Reason == registry.ReasonAuth:
		return page, registry.ReasonAuth
	case survey.Gone(page.Reason):
		// What is there instead is looked for at the next poll.
		l.chosen = false
	}
	return page, ""
}

// choose asks for all pages and delivers the best.
func (l *loop) choose(ctx context.Context) (*survey.Page, store.Reason) {
	found := l.search(ctx, l.survey())
	if found.Chosen == nil {
		return found.Telling, l.without(found)
	}
	l.pace.Rested()
	l.settleOn(found.Chosen)
	return found.Chosen, l.deliver(ctx, found.Chosen)
}

// search asks for pages, and notes for which it is to be done again.
func (l *loop) search(ctx context.Context, s *survey.Survey) *survey.Finding {
	l.poller.metrics.surveys.Inc()
	found := s.Run(ctx)
	for _, p := range found.Pages {
		l.poller.metrics.bytes.Add(float64(p.Bytes))
		l.crashed(p)
	}
	l.open, l.asking, l.behind = found.Open, time.Now().Add(askAgain), found.Behind
	return found
}

// settleOn has a page read from now on.
func (l *loop) settleOn(best *survey.Page) {
	if l.known.Endpoint != best.Endpoint && l.lines.Allow() {
		l.poller.opts.Logger.Info("poll endpoint chosen", slog.String("worker", l.target.ID),
			slog.String("endpoint", best.Endpoint.Name), slog.Int("ranks", len(best.Reading.Ranks)))
	}
	l.known, l.chosen = survey.Choice{Endpoint: best.Endpoint, Sampler: best.Sampler}, true
	l.detail = best.Says()
}

// improve asks, once in a while and before the next poll is near, for pages
// that could not be had when the one that was just read was chosen.
func (l *loop) improve(ctx context.Context, read *survey.Page) {
	spare := l.pace.Spare(l.due)
	if read.Reading == nil || !l.chosen || len(l.open) == 0 || time.Now().Before(l.asking) || spare <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, spare)
	defer cancel()
	l.alone(ctx, func() {
		s := l.survey()
		s.Only = l.open
		if best := l.search(ctx, s).Chosen; best != nil && survey.Better(best, read) {
			l.settleOn(best)
			l.fields = fields.Watch{} // they are another page's
		}
	})
}

// without says what follows from a survey that found nothing to read.
func (l *loop) without(found *survey.Finding) store.Reason {
	l.chosen = false
	switch {
	case found.Complete && found.Refused():
		return registry.ReasonAuth
	case found.Complete:
		l.ended = true
		return registry.ReasonUnsupported
	}
	l.useless = !slices.ContainsFunc(found.Pages, func(p *survey.Page) bool { return !p.Lasting() })
	return ""
}

// deliver turns what a page says into a report and offers it. It notes on the
// page what became of it, and returns why the polling is over.
func (l *loop) deliver(ctx context.Context, page *survey.Page) store.Reason {
	l.poller.metrics.dropped(page.Reading.Unusable)
	l.identify(page)
	l.watch(page.Reading)
	if !l.ready(ctx, page) {
		return ""
	}
	load, refusal := ingest.Validate(l.report(page), ingest.Rules{MaxRanks: l.poller.opts.MaxRanks})
	if refusal != nil {
		l.engine.Refuse(refusal)
		page.Fail(refusal.Reason, refusal)
		return ""
	}
	load.Begun = page.Began
	load.Flags |= page.Reading.Flags
	return l.offer(page, load)
}

// identify notes where another process answers than before. Where its page
// does not tell one process from the next, that is one that could not be
// reached before, or answers from another address. An engine whose answers come
// from several by turns is taken for one.
func (l *loop) identify(page *survey.Page) {
	r := page.Reading
	other, another := l.elsewhere(page), l.another(page)
	if r.Process != 0 {
		other = l.process != 0 && r.Process != l.process
	}
	switch {
	case l.source == "":
		l.renew(r.Process)
	case another:
		l.renew(r.Process)
		l.changed = true
	case (r.Restarted || other) && r.Flags&store.FlagUnstableSource == 0:
		l.renew(r.Process)
		l.changed = true
	case r.Process != 0:
		l.process = r.Process
	}
}

// elsewhere says whether another process is likely to be behind the address
// than at the last reading. A name that leads to several addresses by turns
// does not make a process of each answer.
func (l *loop) elsewhere(page *survey.Page) bool {
	other := l.replaced || l.longAway(page)
	l.replaced, l.unreached = false, time.Time{}
	before := l.peer
	l.peer = page.Answer.Peer.Addr()
	if before.IsValid() && before != l.peer && time.Since(l.moved) >= askAgain {
		l.moved, other = time.Now(), true
	}
	return other
}

// another says that the page, or what the engine says of itself, is that of
// another engine than before. What it says of itself comes late: shortly after
// another process was found, it is of that one.
func (l *loop) another(page *survey.Page) bool {
	before, now := l.kind, l.target.Facts
	l.kind = kind{page.Endpoint.Family, cmp.Or(now.Family, before.engine), cmp.Or(now.Version, before.version)}
	if before.page != "" && before.page != l.kind.page {
		return true
	}
	differs := func(a, b string) bool { return a != "" && a != b }
	return time.Since(l.renewed) >= askAgain && page.Reading.Process == 0 &&
		(differs(before.engine, l.kind.engine) || differs(before.version, l.kind.version))
}

// watch tells by which names the fields of the page were found, and which are
// there no more.
func (l *loop) watch(r *sample.Reading) {
	if r.Asleep != "" {
		return
	}
	changed, vanished := l.fields.See(r.Matches)
	if changed && l.lines.Allow() {
		l.poller.opts.Logger.Info("poll fields matched", slog.String("worker", l.target.ID), slog.String("fields", l.fields.Names()))
	}
	for _, f := range vanished {
		l.poller.metrics.lost(f)
	}
	if len(vanished) > 0 && l.losses.Allow() {
		l.poller.opts.Logger.Warn("poll fields vanished", slog.String("worker", l.target.ID), slog.String("fields", l.fields.Gone()))
	}
}

// ready says whether the page may be believed: some engines answer while they
// load, with zeros, and say so on their health page only. It is asked once for
// each process, for its 503 alone: with any other status the page is believed,
// whatever the text says.
func (l *loop) ready(ctx context.Context, page *survey.Page) bool {
	if l.healthy || !hasHealth(page.Endpoint.Family) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, l.poller.opts.Timeout)
	defer cancel()
	a, _ := l.client.Get(ctx, egress.Request{URL: l.target.URL + healthPath, MaxBytes: healthBytes})
	if a != nil && a.Status == 503 {
		page.Fail(ReasonNotReady, fmt.Errorf("%s answers 503", healthPath))
		page.Status = a.Status
		return false
	}
	l.healthy = true
	return true
}

func hasHealth(f sample.Family) bool {
	return f == sample.VLLM || f == sample.TGI || f == sample.LlamaCPP
}

// report is what a page says, as every dialect reports it.
func (l *loop) report(page *survey.Page) *ingest.Report {
	r := &ingest.Report{
		Source: l.source, Sequence: l.sequence + 1, Status: int32(store.StatusHealthy),
		TimeUnixMs: page.Reading.TimeUnixMs, Ranks: page.Reading.Ranks,
		Received: page.Received, ReceivedUnixMs: time.Now().UnixMilli(),
	}
	if asleep := page.Reading.Asleep; asleep != "" {
		r.Status, r.Ranks, r.LastError = int32(store.StatusUnreachable), nil, "the engine sleeps: "+asleep
	}
	return r
}

// offer hands a load to the registry.
func (l *loop) offer(page *survey.Page, load *store.Load) store.Reason {
	if l.binding != nil && l.sequence == 0 {
		// A binding is of one process.
		l.binding.Close()
		l.binding = nil
	}
	var err error
	if l.binding == nil {
		l.binding, err = l.engine.Open(l.source, page.Answer.Peer, load)
	} else {
		err = l.binding.Admit(load)
	}
	if err == nil {
		l.sequence++
		return ""
	}
	reason := reasonOf(err)
	page.Fail(reason, err)
	if why := (*registry.Refusal)(nil); errors.As(err, &why) && why.Drop {
		return ""
	}
	return reason
}

// stretch keeps the gauge of stretched engines.
func (l *loop) stretch(now bool) {
	switch {
	case now && !l.stretched:
		l.poller.metrics.stretched.Inc()
	case !now && l.stretched:
		l.poller.metrics.stretched.Dec()
	}
	l.stretched = now
}

// show tells operators what came of a poll; the registry logs what changed.
func (l *loop) show(page *survey.Page) {
	way := registry.Way{
		State: registry.StatePolling, Reason: page.Reason, Err: page.Err, Status: page.Status, Interval: l.pace.Interval,
	}
	if page.Reason != "" {
		way.State = registry.StateFailing
		l.engine.Show(way)
		return
	}
	way.Detail = l.detail
	if gone := l.fields.Gone(); gone != "" {
		way.Err = errors.New("fields vanished from the page: " + gone)
	}
	l.engine.Show(way)
}
