package loadstat

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/loadstat/message"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
)

const (
	// lookEach is how often an engine is looked at where nothing happens.
	lookEach = time.Second
	// tellEach is the shortest time between two instances that a caller is
	// told of.
	tellEach = 10 * time.Second
	// giveUpAfter is how long ranks may be missing.
	giveUpAfter = 15 * time.Second
)

// serving is one call of Serve. It is for one goroutine.
type serving struct {
	*memory
	sub    *Subscriber
	engine *registry.Engine
	target registry.Target
	// at is where the sockets are, and stops end those that run.
	at    sockets
	stops []context.CancelFunc
	runs  sync.WaitGroup
	// life is the one that the caller knows of.
	life    uint64
	binding *registry.Binding
	// offered is when a report was last offered, and good when all ranks were
	// last heard, at first when the serving began.
	offered, good time.Time
	// refused is why the registry dropped the last report.
	refused *registry.Refusal
}

func (s *Subscriber) begin(e *registry.Engine) *serving {
	v := &serving{sub: s, engine: e, target: e.Target(), good: time.Now()}
	if v.memory = s.kept.Take(v.name()); v.memory == nil {
		v.memory = &memory{board: newBoard()}
	}
	return v
}

func (s *serving) name() string { return s.target.ID + " " + s.target.URL }

// end waits for all sockets.
func (s *serving) end() {
	for _, stop := range s.stops {
		stop()
	}
	s.runs.Wait()
	if s.binding != nil {
		s.binding.Close()
	}
	s.sub.kept.Put(s.name(), s.memory)
}

// run serves until ctx ends or there is a reason to stop. While it is too early
// for another report, what comes is only counted.
func (s *serving) run(ctx context.Context) store.Reason {
	timer := time.NewTimer(lookEach)
	defer timer.Stop()
	for {
		if reason := s.step(ctx); reason != "" {
			return reason
		}
		var ended <-chan struct{}
		if s.binding != nil {
			ended = s.binding.Ended()
		}
		news, pause := s.board.news, lookEach
		if early := time.Until(s.due()); early > 0 {
			news, pause = nil, min(pause, early)
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return ""
		case <-ended:
			return reasonOf(s.binding.Err())
		case <-s.engine.Changed():
		case <-s.board.alarm:
		case <-news:
		case <-timer.C:
		}
	}
}

// due is when the next report may be offered: there are two in an interval at
// most.
func (s *serving) due() time.Time { return s.offered.Add(s.target.Interval / 2) }

// step does what there is to do. It returns why the serving is over, empty
// while it goes on.
func (s *serving) step(ctx context.Context) store.Reason {
	s.target = s.engine.Target()
	if reason := s.relocate(ctx); reason != "" {
		return reason
	}
	v := s.board.look(s.sub.opts.Clock.Now(), s.sub.opts.StaleAfter)
	if s.changed(v) {
		return registry.ReasonInstanceChanged
	}
	if v.closed && time.Since(s.wondered) >= tellEach {
		// The next life of the engine may have its sockets elsewhere, which it
		// alone can say.
		s.wondered = time.Now()
		s.engine.Wonder()
	}
	if v.complete() {
		s.good = time.Now()
		if reason := s.report(v); reason != "" {
			return reason
		}
	}
	s.show(v)
	return s.over(v)
}

// over says why the serving is over where ranks were missing for long. Where
// others are heard, the engine may be another than what is known of it: that
// it answers well has it asked what it is.
func (s *serving) over(v *view) store.Reason {
	if time.Since(s.good) < giveUpAfter {
		return ""
	}
	if len(v.missing) < v.all {
		s.engine.Show(registry.Way{State: registry.StatePending})
	}
	if why := v.failure(); why.err != nil {
		return why.reason
	}
	return store.ReasonNoReport
}

// relocate takes over where the engine's sockets are now.
func (s *serving) relocate(ctx context.Context) store.Reason {
	to, reason, err := locate(&s.target, s.sub.opts.MaxRanks)
	if err != nil {
		s.engine.Show(s.unlessDenied(ctx, registry.Way{State: registry.StateFailing, Reason: reason, Err: err}))
		return registry.ReasonUnsupported
	}
	if to == s.at {
		return ""
	}
	s.at = to
	ranks, kept := s.board.move(to)
	s.life = s.board.now()
	s.restart(ctx, ranks, kept)
	return ""
}

// unlessDenied returns way, or that the engine's address is denied where it is:
// nobody may ask it about its sockets then. A UDP socket is connected to find
// out, which sends nothing.
func (s *serving) unlessDenied(ctx context.Context, way registry.Way) registry.Way {
	ctx, stop := context.WithTimeout(ctx, connectTimeout)
	defer stop()
	switch conn, err := s.sub.opts.Dial(ctx, "udp", s.target.Origin); {
	case errors.Is(err, egress.ErrDenied):
		way.Reason, way.Err = registry.ReasonEgressDenied, err
	case err == nil:
		_ = conn.Close()
	}
	return way
}

// restart subscribes to the sockets of ranks, and ends what ran but for those
// that are kept.
func (s *serving) restart(ctx context.Context, ranks []*rank, kept []bool) {
	stops := make([]context.CancelFunc, len(ranks))
	for i, stop := range s.stops {
		if i < len(kept) && kept[i] {
			stops[i] = stop
		} else {
			stop()
		}
	}
	for i, r := range ranks {
		if stops[i] == nil {
			stops[i] = s.start(ctx, i, r)
		}
	}
	s.stops = stops
}

// start subscribes to the socket of a rank.
func (s *serving) start(ctx context.Context, number int, r *rank) context.CancelFunc {
	ctx, stop := context.WithCancel(ctx)
	k := &socket{
		sub: s.sub, engine: s.engine, board: s.board, rank: r,
		addr: s.at.addr(number), topic: s.at.topic, number: int32(number), decoder: message.NewDecoder(s.at.topic, int32(number)),
	}
	s.runs.Go(func() { k.run(ctx) })
	return stop
}

// changed notes another life of the engine, and says whether the caller is to
// be told of it.
func (s *serving) changed(v *view) bool {
	if v.life == s.life {
		return false
	}
	s.life = v.life
	s.sub.metrics.restarts.Inc()
	s.sub.opts.Logger.Debug("engine instance changed", slog.String("worker", s.target.ID))
	// An engine that failed and answers well is asked what it is.
	s.engine.Show(registry.Way{State: registry.StatePending})
	if time.Since(s.told) < tellEach {
		return false
	}
	s.told = time.Now()
	return true
}

// report offers a report of all ranks, where it is time and something is new.
// It returns why the serving is over.
func (s *serving) report(v *view) store.Reason {
	if !v.fresh || time.Now().Before(s.due()) {
		return ""
	}
	ranks := s.board.take(v)
	if ranks == nil {
		return ""
	}
	if s.source != v.source {
		s.source, s.sequence = v.source, 0
		s.unbind()
	}
	now := s.sub.opts.Clock.Now()
	load, refusal := ingest.Validate(&ingest.Report{
		Source: s.source, Sequence: s.sequence + 1, Status: int32(store.StatusHealthy), Ranks: ranks,
		Received: v.oldest, ReceivedUnixMs: time.Now().Add(-now.Sub(v.oldest)).UnixMilli(),
	}, ingest.Rules{MaxRanks: s.sub.opts.MaxRanks})
	if s.refused = refusal; refusal != nil {
		s.engine.Refuse(refusal)
		return ""
	}
	s.offered = time.Now()
	s.sub.metrics.reports.Inc()
	return s.offer(v, load)
}

// unbind gives a binding back: it is of one life.
func (s *serving) unbind() {
	if s.binding != nil {
		s.binding.Close()
		s.binding = nil
	}
}

// offer hands a load to the registry.
func (s *serving) offer(v *view, load *store.Load) store.Reason {
	var err error
	if s.binding == nil {
		s.binding, err = s.engine.Open(s.source, v.peer, load)
	} else {
		err = s.binding.Admit(load)
	}
	if err == nil {
		s.sequence++
		return ""
	}
	if errors.As(err, &s.refused) && s.refused.Drop {
		return ""
	}
	return reasonOf(err)
}

// reasonOf returns the reason of the refusal that err is; empty for none.
func reasonOf(err error) store.Reason {
	var why *registry.Refusal
	if !errors.As(err, &why) {
		return ""
	}
	return why.Reason
}

// show tells operators how the engine is heard; the registry logs what changed.
func (s *serving) show(v *view) {
	way := registry.Way{State: registry.StateSubscribed, Detail: s.at.String()}
	switch why := v.failure(); {
	case v.complete() && s.refused == nil:
	case v.complete():
		way.State, way.Reason, way.Err = registry.StateFailing, s.refused.Reason, s.refused
	case why.err == nil:
		return
	default:
		way.State, way.Reason, way.Err = registry.StateFailing, why.reason, why.err
	}
	s.engine.Show(way)
}
