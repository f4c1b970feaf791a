package kubeapi

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// list reads the whole list and takes it over, or holds it back.
func (m *Mirror[V]) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, listTimeout, errTimeout)
	defer cancel()
	began := time.Now()
	items, version, err := m.pages(ctx, began, pageSize)
	var e *Error
	if errors.As(err, &e) && e.Reason == ReasonExpired {
		// The pages were of a version that is gone: all in one.
		items, version, err = m.pages(ctx, began, 0)
	}
	if err != nil {
		return err
	}
	m.heard()
	m.again[listFault] = 0
	m.note(listFault, nil)
	if m.holds(items) {
		m.opts.Metrics.asked("list", ReasonEmptied)
		if m.version == "" {
			m.version = version
		}
		return nil
	}
	m.opts.Metrics.asked("list", "")
	m.version = version
	m.relist = time.Now().Add(m.opts.Relist*9/10 + rand.N(m.opts.Relist/5+1))
	m.replace(items)
	return nil
}

// pages reads a list page by page, without a version: the server answers with
// what is in force. A size of 0 is one page.
func (m *Mirror[V]) pages(ctx context.Context, began time.Time, size int64) (items map[string]V, version string, err error) {
	items = make(map[string]V)
	opts := metav1.ListOptions{LabelSelector: m.opts.Selector, Limit: size}
	for {
		page, err := m.opts.Client.list(ctx, m.opts.Namespace, &opts)
		if err != nil {
			return nil, "", err
		}
		err = meta.EachListItem(page, func(o runtime.Object) error { return m.put(items, o, began) })
		head, isList := page.(metav1.ListInterface)
		if err == nil && (!isList || head.GetResourceVersion() == "") {
			err = errors.New("the list has no resource version")
		}
		if err != nil {
			return nil, "", m.opts.Client.failure(ctx, "list", m.opts.Namespace, err)
		}
		if version == "" {
			version = head.GetResourceVersion()
		}
		if opts.Continue = head.GetContinue(); opts.Continue == "" {
			return items, version, nil
		}
	}
}

// put adds what is kept of an object that was seen at a time.
func (m *Mirror[V]) put(items map[string]V, o runtime.Object, at time.Time) error {
	object := m.opts.Client.kind.object(o)
	if object == nil || object.GetName() == "" {
		return errors.New("the list or event has another object than was asked for")
	}
	items[object.GetName()] = m.opts.Convert(o, m.items[object.GetName()], at)
	return nil
}

// holds says whether a list is held back: one that is empty of a sudden, until
// it was so for a while.
func (m *Mirror[V]) holds(items map[string]V) bool {
	now := time.Now()
	switch {
	case len(items) > 0 || len(m.items) == 0:
		m.release()
		return false
	case m.held.IsZero():
		m.held = now
	case now.Sub(m.held) >= holdFor:
		m.release()
		return false
	}
	m.relist = m.held.Add(holdFor)
	m.note(heldFault, m.emptied())
	return true
}

// release ends the holding back of a list.
func (m *Mirror[V]) release() {
	m.held = time.Time{}
	m.note(heldFault, nil)
}

// replace takes over a list.
func (m *Mirror[V]) replace(items map[string]V) {
	m.mu.Lock()
	m.opts.Metrics.objects.Add(float64(len(items) - len(m.items)))
	m.items = items
	m.state.Lists++
	m.mu.Unlock()
	m.signal()
}

// change takes over an object of a watch that is there.
func (m *Mirror[V]) change(name string, o runtime.Object) error {
	next := make(map[string]V, 1)
	if err := m.put(next, o, time.Now()); err != nil {
		return err
	}
	old, known := m.items[name]
	if known && m.opts.Equal(old, next[name]) {
		return nil
	}
	m.mu.Lock()
	m.items[name] = next[name]
	m.mu.Unlock()
	if !known {
		m.opts.Metrics.objects.Inc()
	}
	m.signal()
	return nil
}

// remove takes away an object of a watch that is gone.
func (m *Mirror[V]) remove(name string) {
	if _, known := m.items[name]; !known {
		return
	}
	m.mu.Lock()
	delete(m.items, name)
	m.mu.Unlock()
	m.opts.Metrics.objects.Dec()
	m.signal()
}
