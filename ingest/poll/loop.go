package poll

import (
	"context"
	"errors"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/pace"
	"github.com/loadplane/loadplane/ingest/poll/reader"
	"github.com/loadplane/loadplane/ingest/poll/survey"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// tellEach is the shortest time between two instances that a caller is told
// of.
const tellEach = 10 * time.Second

// instancePrefix begins the names of instances of engines that are polled.
const instancePrefix = "poll-"

// loop polls one worker. It is for one goroutine.
type loop struct {
	*memory
	poller  *Poller
	engine  *registry.Engine
	target  registry.Target
	binding *registry.Binding
	// changed says that the process is another than when the caller was last
	// told.
	changed bool
	// useless says that no page of the engine could be read, and that waiting
	// alone is not likely to help.
	useless   bool
	stretched bool
}

func (p *Poller) begin(e *registry.Engine) *loop {
	l := &loop{poller: p, engine: e, target: e.Target()}
	if l.memory = p.kept.Take(l.name()); l.memory == nil {
		l.memory = &memory{pace: pace.Pace{StaleAfter: p.opts.StaleAfter}, reader: p.reader(l.target.Behind)}
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
	if l.lost() != "" {
		l.reader.Forget()
	}
	if l.useless {
		l.due = time.Time{}
		l.pace.Rested()
	}
	if l.binding != nil {
		l.binding.Close()
	}
	l.reader.Close()
	l.poller.kept.Put(l.name(), l.memory)
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
	l.target = l.engine.Target()
	l.hurry()
	read := l.reader.Read(ctx, l.target)
	if read == nil {
		return ""
	}
	l.poller.count(&l.target, &read.Tally)
	over := l.take(read)
	if ctx.Err() != nil {
		return ""
	}
	l.after(read)
	if over != "" {
		return over
	}
	l.poller.count(&l.target, l.reader.Improve(ctx, read, l.pace.Spare(l.due)))
	if l.changed && l.sequence > 0 && time.Since(l.told) >= tellEach {
		// What the new process serves is looked at anew.
		l.told = time.Now()
		l.reader.Reconsider()
		return registry.ReasonInstanceChanged
	}
	return ""
}

// after says when the next poll is due, and shows and counts what came of one.
func (l *loop) after(read *reader.Result) {
	took := time.Since(read.Began)
	l.due = l.pace.Next(l.target.Interval, took, read.Page.Status != 0)
	if l.useless {
		l.due = l.pace.Rest(read.Began, l.due)
	}
	l.stretch(l.pace.Stretched(l.target.Interval))
	l.poller.metrics.polled(read.Page.Reason, took)
	l.show(read)
}

// take delivers what was read. It returns why the polling is over.
func (l *loop) take(read *reader.Result) (over store.Reason) {
	l.useless = read.Useless
	l.changed = l.changed || read.Changed
	if read.Source != l.source {
		l.source, l.sequence = read.Source, 0
	}
	if read.Found {
		l.pace.Rested()
	}
	if over = read.Over; read.Report == nil {
		return over
	}
	read.Page.Safely(func() { over = l.deliver(read) })
	if why := (*survey.Panic)(nil); errors.As(read.Page.Err, &why) {
		l.poller.panicked(&l.target, reader.Panic{Path: read.Page.Path, Why: why})
	}
	return over
}

// deliver offers a report. It notes on the page what became of it, and returns
// why the polling is over.
func (l *loop) deliver(read *reader.Result) store.Reason {
	page := read.Page
	read.Report.Sequence = l.sequence + 1
	load, refusal := ingest.Validate(read.Report, ingest.Rules{MaxRanks: l.poller.opts.MaxRanks})
	if refusal != nil {
		l.engine.Refuse(refusal)
		page.Fail(refusal.Reason, refusal)
		return ""
	}
	load.Begun = page.Began
	load.Flags |= page.Reading.Flags
	return l.offer(page, load)
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
func (l *loop) show(read *reader.Result) {
	page := read.Page
	way := registry.Way{
		State: registry.StatePolling, Reason: page.Reason, Err: page.Err, Status: page.Status, Interval: l.pace.Interval,
	}
	if page.Reason != "" {
		way.State = registry.StateFailing
		l.engine.Show(way)
		return
	}
	way.Detail = read.Detail
	if read.Gone != "" {
		way.Err = errors.New("fields vanished from the page: " + read.Gone)
	}
	l.engine.Show(way)
}
