package reporter

import (
	"context"
	"time"

	"github.com/loadplane/loadplane/sim/queue"
)

// drivePeriod is the time between two moves of the load while requests are
// served.
const drivePeriod = 10 * time.Millisecond

// Do serves a request: it waits, is prefilled and generates beside the others
// of its rank, and counts in the load. emit is called with the rank and the
// number of tokens generated so far, whenever there are more. Do returns nil
// when all are generated; the error of emit or of ctx, which take the request
// out; ErrClosed when the process ends; or an error of queue.Model.Add.
func (p *Process) Do(ctx context.Context, w queue.Work, emit func(rank int, tokens int64) error) error {
	t, err := p.admit(w)
	if err != nil {
		return err
	}
	defer p.leave(t)
	for {
		select {
		case <-t.News:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.ctx.Done():
			return ErrClosed
		}
		p.mu.Lock()
		tokens, over := t.Tokens, t.Over
		p.mu.Unlock()
		if err := emit(t.Rank, tokens); err != nil || over {
			return err
		}
	}
}

// admit puts a request into a queue, and sees to it that the load moves.
func (p *Process) admit(w queue.Work) (*queue.Ticket, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	p.advanceLocked(time.Now()) // the time before is without it
	t, err := p.model.Add(w)
	if err != nil {
		return nil, err
	}
	p.served++
	if !p.driven {
		p.driven = true
		p.tasks.Go(p.drive)
	}
	return t, nil
}

func (p *Process) leave(t *queue.Ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.served--
	p.model.Remove(t)
}

// drive moves the load on while requests are served.
func (p *Process) drive() {
	tick := time.NewTicker(drivePeriod)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			return
		}
		if p.driveOnce(time.Now()) {
			return
		}
	}
}

// driveOnce says whether nothing is served any more.
func (p *Process) driveOnce(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advanceLocked(now)
	p.driven = p.served > 0
	return !p.driven
}

// advanceLocked moves the load on to now, unless a fault stops it.
func (p *Process) advanceLocked(now time.Time) {
	if !p.stepped.IsZero() && !p.config.Faults.Freeze.Load() && !p.config.Faults.Idle.Load() {
		p.model.Step(now.Sub(p.stepped))
	}
	p.stepped = now
}
