package kubeapi

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// follow watches from the last version until a list is due or the watch ends.
func (m *Mirror[V]) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	seconds := int64((minWatchTimeout + rand.N(minWatchTimeout)) / time.Second)
	w, err := m.opts.Client.watch(ctx, cancel, m.opts.Namespace, &metav1.ListOptions{
		LabelSelector: m.opts.Selector, ResourceVersion: m.version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	})
	if err != nil {
		return err
	}
	defer func() {
		w.Stop()
		for range w.ResultChan() { // its goroutine has ended after this
		}
	}()
	if err := m.read(ctx, w); err != nil {
		return m.opts.Client.failure(ctx, "watch", m.opts.Namespace, err)
	}
	m.opts.Metrics.asked("watch", "")
	return nil
}

// read takes over the events of a watch until a list is due, the watch ends or
// nothing comes any more.
func (m *Mirror[V]) read(ctx context.Context, w watch.Interface) error {
	began, events := time.Now(), 0
	due, steady, silence := time.NewTimer(time.Until(m.relist)), time.NewTimer(steadyWatch), time.NewTimer(m.opts.Silence)
	defer due.Stop()
	defer steady.Stop()
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-due.C:
			return nil
		case <-steady.C:
			m.stood()
		case <-silence.C:
			m.relist = time.Time{} // at once
			return errSilent
		case e, open := <-w.ResultChan():
			if !open {
				return ended(events, time.Since(began))
			}
			if err := m.apply(e); err != nil {
				return err
			}
			if events++; events == 1 {
				m.stood()
			}
			m.heard()
			silence.Reset(m.opts.Silence)
		}
	}
}

// ended says whether the end of a watch is a fault.
func ended(events int, lasted time.Duration) error {
	if events == 0 && lasted < shortWatch {
		return errShort
	}
	return nil
}

// apply takes over one event. The version moves on only by events that could
// be read: what follows one that could not is asked for again.
func (m *Mirror[V]) apply(e watch.Event) error {
	if e.Type == watch.Error {
		return apierrors.FromObject(e.Object)
	}
	object := m.opts.Client.kind.object(e.Object)
	if object == nil {
		return errors.New("the event has another object than was asked for")
	}
	m.opts.Metrics.came(e.Type)
	switch e.Type {
	case watch.Added, watch.Modified:
		if err := m.change(object.GetName(), e.Object); err != nil {
			return err
		}
	case watch.Deleted:
		m.remove(object.GetName())
	}
	if v := object.GetResourceVersion(); v != "" {
		m.version = v
	}
	if !m.held.IsZero() && len(m.items) == 0 {
		m.release() // the deletions came one by one
	}
	return nil
}
