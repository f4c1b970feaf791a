package registry

import (
	"context"
	"errors"
	"log/slog"
	"syscall"
	"time"

	"github.com/loadplane/loadplane/store"
)

// text returns the error for people, empty without one.
func (w *Way) text() string {
	if w.Err == nil {
		return ""
	}
	return cut(w.Err.Error())
}

// same says whether operators see no difference.
func (w *Way) same(other *Way) bool {
	return w.State == other.State && w.Reason == other.Reason && w.Status == other.Status &&
		w.Interval == other.Interval && (w.Err == nil) == (other.Err == nil) && w.text() == other.text()
}

// show lets operators see the state of the way to the worker, and logs where
// it is another than before: the first few times, then once a minute.
func (w *worker) show(way Way) {
	w.mu.Lock()
	old := w.shown
	w.shown = way
	w.mu.Unlock()
	w.chronicle(&old, &way)
	if way.same(&old) {
		if way.Renewal > 0 {
			w.showRenewal(way.Renewal)
		}
		return
	}
	if way.State != old.State || way.Reason != old.Reason {
		w.lines.way.Do(func() {
			// One that registers itself is new each time.
			if !w.unlisted() || w.reg.arrivals.Allow() {
				w.log(&way)
			}
		})
		w.reg.metrics.moved(old.State, way.State)
	}
	w.slot.Diagnose(func(d *store.Diagnostics) {
		d.Registration = string(way.State)
		d.RegistrationError = way.text()
		d.RegistrationStatus = way.Status
		d.NextRegistration, d.PollInterval = 0, way.Interval
	})
	if way.Renewal > 0 {
		w.showRenewal(way.Renewal)
	}
}

// chronicle records another state of the way, and each call that failed.
func (w *worker) chronicle(old, way *Way) {
	if way.State != old.State {
		w.slot.Happen(store.EventRegistration, "", string(way.State))
	}
	if way.Err != nil {
		w.slot.Happen(store.EventCallFailed, way.Reason, way.text())
	}
}

// showRenewal lets operators see when the session is renewed next.
func (w *worker) showRenewal(in time.Duration) {
	next := w.reg.clock.Now().Add(in)
	w.slot.Diagnose(func(d *store.Diagnostics) { d.NextRegistration = next })
}

// hide takes the worker out of the count of states.
func (w *worker) hide() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reg.metrics.moved(w.shown.State, "")
	w.shown = Way{}
}

// log tells of a way, loudest where it failed.
func (w *worker) log(way *Way) {
	level, attrs := slog.LevelInfo, []slog.Attr{slog.String("worker", w.id), slog.String("state", string(way.State))}
	switch {
	case way.Err != nil:
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("reason", string(way.Reason)), slog.Int("status", way.Status), slog.String("error", way.text()))
	case way.State == StatePending, way.State == StateProbing:
		level = slog.LevelDebug
	}
	ctx := context.Background()
	if !w.reg.log.Enabled(ctx, level) {
		return
	}
	if attrs, ok := w.reg.roll.ways.room(attrs...); ok {
		w.reg.log.LogAttrs(ctx, level, "registration changed", attrs...)
	}
}

// note tells the store why a worker that was never heard is not, and the
// worker's loop that an engine answers that refused connections.
func (w *worker) note(way Way) {
	refused := errors.Is(way.Err, syscall.ECONNREFUSED)
	answered := way.Err == nil || way.Status != 0
	w.mu.Lock()
	w.recover(&way)
	since, heard := w.refusedSince, w.accepted != 0
	switch {
	case !refused:
		w.refusedSince = time.Time{}
	case since.IsZero():
		w.refusedSince = time.Now()
		since = w.refusedSince
		poke(w.failing)
	}
	w.mu.Unlock()
	if answered && !since.IsZero() {
		poke(w.back)
	}
	switch {
	case heard:
	case way.State == StateRegistered, way.State == StatePolling, way.State == StateSubscribed:
		w.slot.Note("")
	case refused && time.Since(since) >= noEngineFor:
		w.slot.Note(store.ReasonNoEngine)
	default:
		w.slot.Note(way.Reason)
	}
}

// recover has the facts asked for where the engine answers well after it failed
// for long: it may be another one. The caller holds w.mu.
func (w *worker) recover(way *Way) {
	since := w.failedSince
	switch {
	case way.Reason == "":
		w.failedSince = time.Time{}
		if !since.IsZero() && time.Since(since) >= w.reg.opts.StaleAfter {
			w.wonder()
		}
	case since.IsZero():
		w.failedSince = time.Now()
	}
}

// explain shows why the dialect in force was chosen.
func (w *worker) explain(why string) {
	w.slot.Diagnose(func(d *store.Diagnostics) { d.DialectWhy = why })
}
