package monitor

import (
	"time"

	monitorpb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
)

// fire sends reports when they are due until the server stops. All sessions
// that are due get the same report.
func (v *serving) fire() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(v.untilDue())
		select {
		case <-v.wake:
			continue
		case <-timer.C:
		case <-v.ctx.Done():
			return
		}
		due := v.takeDue(time.Now())
		if len(due) == 0 || v.config.Faults.Silent.Load() {
			continue
		}
		r := v.report()
		for _, s := range due {
			s.offer(r)
		}
	}
}

// untilDue is the time to the next report of any session.
func (v *serving) untilDue() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	next := maxDuration
	for _, s := range v.sessions {
		next = min(next, time.Until(s.due))
	}
	return next
}

// takeDue returns the sessions that are due and moves them to their next
// moment. Moments that were missed are skipped.
func (v *serving) takeDue(now time.Time) (due []*session) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.sessions {
		if !s.due.After(now) {
			s.due = v.after(now, s.interval)
			due = append(due, s)
		}
	}
	return due
}

// after returns the next moment of an interval. The moments of equal intervals
// are the same for all sessions.
func (v *serving) after(now time.Time, interval time.Duration) time.Time {
	return now.Add(interval - now.Sub(v.epoch)%interval)
}

// rescheduled makes fire look again.
func (v *serving) rescheduled() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// offer puts a report in the place of one that was not sent yet.
func (s *session) offer(r *monitorpb.WorkerFrame) {
	select {
	case <-s.out:
	default:
	}
	s.out <- r // There is room: fire alone sends.
}
