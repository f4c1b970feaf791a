// Package kubetest is a small Kubernetes API server for tests: it lists and
// watches Pods and EndpointSlices over connections in memory, and fails in the
// ways that are asked for.
package kubetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
)

// bookmarkEvery is how often a watch gets a bookmark.
const bookmarkEvery = time.Minute

// Fault is how a request is answered in place of what it asked for. It is a
// plain value.
type Fault struct {
	// Status is that of the answer; 0 for 200.
	Status int
	// RetryAfter is a header in seconds; empty for none.
	RetryAfter string
	// Body is the whole answer; empty for a Status object.
	Body string
	// Drip sends the answer a byte a second.
	Drip bool
	// Hang answers nothing at all.
	Hang bool
}

// Server is the API server. It is safe for concurrent use.
type Server struct {
	server  http.Server
	conns   chan net.Conn
	closed  chan struct{}
	closing sync.Once

	mu      sync.Mutex
	version int
	// floor is the oldest version from which a watch may begin.
	floor   int
	objects map[string]*stored
	history []change
	// moved is closed at every change, and cut when watches are to break.
	moved, cut    chan struct{}
	silent, empty bool
	down          error
	fault         func(verb, namespace string) *Fault
	requests      map[string]int
}

// stored is an object as it is sent. It is immutable.
type stored struct {
	resource, namespace, name string
	labels                    labels.Set
	version                   int
	body                      json.RawMessage
}

// change is a step of the history; old or next may be nil.
type change struct {
	version   int
	old, next *stored
	line      string
}

// New returns a server without objects. It starts nothing.
func New() *Server {
	s := &Server{
		conns: make(chan net.Conn), closed: make(chan struct{}), version: 1, floor: 1, objects: make(map[string]*stored),
		moved: make(chan struct{}), cut: make(chan struct{}), requests: make(map[string]int),
	}
	s.server.Handler = s
	return s
}

// Serve answers until Close.
func (s *Server) Serve() { _ = s.server.Serve((*listener)(s)) }

// Close ends Serve and all connections.
func (s *Server) Close() {
	s.closing.Do(func() { close(s.closed) })
	_ = s.server.Close()
}

// Config returns what a client needs.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: "http://kube.test", Dial: s.dial}
}

func (s *Server) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	s.mu.Lock()
	down := s.down
	s.mu.Unlock()
	if down != nil {
		return nil, down
	}
	near, far := net.Pipe()
	select {
	case s.conns <- far:
		return near, nil
	case <-ctx.Done():
	case <-s.closed:
	}
	return nil, errors.Join(near.Close(), far.Close(), net.ErrClosed)
}

// listener is the server's side of the connections.
type listener Server

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *listener) Close() error   { return nil }
func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

// Put adds or replaces Pods and EndpointSlices.
func (s *Server) Put(objects ...metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		s.version++
		next := encode(o, s.version)
		key := next.key()
		s.record(change{version: s.version, old: s.objects[key], next: next})
		s.objects[key] = next
	}
}

// Delete takes objects away.
func (s *Server) Delete(objects ...metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		key := encode(o, 0).key()
		if old := s.objects[key]; old != nil {
			s.version++
			s.record(change{version: s.version, old: old})
			delete(s.objects, key)
		}
	}
}

// Send puts a line of text into every watch, once.
func (s *Server) Send(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.record(change{version: s.version, line: line})
}

// record adds a step. The caller holds s.mu.
func (s *Server) record(c change) {
	s.history = append(s.history, c)
	close(s.moved)
	s.moved = make(chan struct{})
}

// Cut breaks all watches.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

// Expire forgets the history: a watch from before now is answered with 410.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.floor, s.history = s.version, nil
}

// Silence makes watches send nothing, or lets them again.
func (s *Server) Silence(on bool) { s.set(func() { s.silent = on }) }

// Empty makes lists empty, or lets them be what they are again.
func (s *Server) Empty(on bool) { s.set(func() { s.empty = on }) }

// Down makes connections fail with err, and ends those that are; nil ends that.
func (s *Server) Down(err error) {
	s.set(func() { s.down = err })
	if err != nil {
		s.Cut()
	}
}

// Fail has requests answered by fault, which is asked with the verb, list or
// watch, and the namespace, and returns nil for an ordinary answer.
func (s *Server) Fail(fault func(verb, namespace string) *Fault) { s.set(func() { s.fault = fault }) }

func (s *Server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// Requests returns how many requests of a verb came.
func (s *Server) Requests(verb string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[verb]
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	verb, q := "list", r.URL.Query()
	if q.Get("watch") != "" {
		verb = "watch"
	}
	_, path, _ := strings.Cut(r.URL.Path, "/namespaces/")
	namespace, resource, _ := strings.Cut(path, "/")
	s.mu.Lock()
	s.requests[verb]++
	fault, down := s.fault, s.down
	s.mu.Unlock()
	if down != nil {
		panic(http.ErrAbortHandler)
	}
	if fault != nil {
		if f := fault(verb, namespace); f != nil {
			f.answer(w, r)
			return
		}
	}
	selector, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		(&Fault{Status: http.StatusBadRequest}).answer(w, r)
		return
	}
	about := view{namespace: namespace, resource: resource, selector: selector}
	if verb == "watch" {
		s.watch(w, r, about)
		return
	}
	s.list(w, r, about)
}

// view is what a request is about.
type view struct {
	namespace, resource string
	selector            labels.Selector
}

func (v view) has(o *stored) bool {
	return o != nil && o.resource == v.resource && o.namespace == v.namespace && v.selector.Matches(o.labels)
}

// list sends a page.
func (s *Server) list(w http.ResponseWriter, r *http.Request, about view) {
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	after := r.URL.Query().Get("continue")
	s.mu.Lock()
	items, more := []json.RawMessage{}, ""
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		o := s.objects[key]
		if s.empty || !about.has(o) || key <= after {
			continue
		}
		if limit > 0 && len(items) == limit {
			break
		}
		items, more = append(items, o.body), key
	}
	if len(items) < limit || limit == 0 {
		more = ""
	}
	version := strconv.Itoa(s.version)
	s.mu.Unlock()
	kind, api := kindOf(about.resource)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": kind + "List", "apiVersion": api, "items": items,
		"metadata": map[string]string{"resourceVersion": version, "continue": more},
	})
}

// watch sends changes until the time is over.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, about view) {
	q := r.URL.Query()
	at, _ := strconv.Atoi(q.Get("resourceVersion"))
	seconds, _ := strconv.Atoi(q.Get("timeoutSeconds"))
	end := time.NewTimer(time.Duration(max(seconds, 1)) * time.Second)
	defer end.Stop()
	bookmark := time.NewTicker(bookmarkEvery)
	defer bookmark.Stop()
	w.Header().Set("Content-Type", "application/json")
	out := http.NewResponseController(w)
	s.mu.Lock()
	cut := s.cut
	s.mu.Unlock()
	for {
		lines, now, moved := s.since(at, about)
		at = now
		for _, line := range lines {
			fmt.Fprintln(w, line)
		}
		_ = out.Flush()
		select {
		case <-moved:
		case <-bookmark.C:
			if s.loud() {
				kind, api := kindOf(about.resource)
				fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"%d"}}}`+"\n", kind, api, at)
			}
		case <-cut:
			panic(http.ErrAbortHandler)
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (s *Server) loud() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.silent
}

// since returns the lines after a version, where the next begin, and what says
// that there are more.
func (s *Server) since(at int, about view) (lines []string, now int, moved <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent {
		return nil, at, s.moved
	}
	if at < s.floor {
		return []string{`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old resource version"}}`}, s.version, s.moved
	}
	first, _ := slices.BinarySearchFunc(s.history, at+1, func(c change, v int) int { return c.version - v })
	for _, c := range s.history[first:] {
		old, next := about.has(c.old), about.has(c.next)
		switch {
		case c.line != "":
			lines = append(lines, c.line)
		case !old && next:
			lines = append(lines, event("ADDED", c.next.body))
		case old && next:
			lines = append(lines, event("MODIFIED", c.next.body))
		case old:
			lines = append(lines, event("DELETED", c.old.at(c.version)))
		}
	}
	return lines, s.version, s.moved
}

func event(kind string, body json.RawMessage) string {
	return `{"type":"` + kind + `","object":` + string(body) + `}`
}

// answer sends the fault.
func (f *Fault) answer(w http.ResponseWriter, r *http.Request) {
	if f.Hang {
		<-r.Context().Done()
		return
	}
	status := f.Status
	if status == 0 {
		status = http.StatusOK
	}
	body := f.Body
	if body == "" {
		body = fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":"as asked for"}`, status, reasons[status])
	}
	w.Header().Set("Content-Type", "application/json")
	if f.RetryAfter != "" {
		w.Header().Set("Retry-After", f.RetryAfter)
	}
	w.WriteHeader(status)
	if !f.Drip {
		_, _ = w.Write([]byte(body))
		return
	}
	out := http.NewResponseController(w)
	for i := range len(body) {
		if _, err := w.Write([]byte{body[i]}); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-time.After(time.Second):
		case <-r.Context().Done():
			return
		}
	}
}

// reasons are the words that go with a status.
var reasons = map[int]metav1.StatusReason{
	http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusUnauthorized: metav1.StatusReasonUnauthorized,
	http.StatusGone: metav1.StatusReasonExpired, http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests,
	http.StatusInternalServerError: metav1.StatusReasonInternalError, http.StatusGatewayTimeout: metav1.StatusReasonTimeout,
	http.StatusNotFound: metav1.StatusReasonNotFound,
}

func (o *stored) key() string { return o.resource + "/" + o.namespace + "/" + o.name }

// at returns the object as it was when it went, of that version.
func (o *stored) at(version int) json.RawMessage {
	return json.RawMessage(strings.Replace(string(o.body), fmt.Sprintf(`"resourceVersion":"%d"`, o.version),
		fmt.Sprintf(`"resourceVersion":"%d"`, version), 1))
}

// encode returns an object of a version as it is sent.
func encode(o metav1.Object, version int) *stored {
	s := &stored{namespace: o.GetNamespace(), name: o.GetName(), labels: o.GetLabels(), version: version}
	switch o := o.(type) {
	case *corev1.Pod:
		c := o.DeepCopy()
		s.resource, c.Kind, c.APIVersion, c.ResourceVersion = "pods", "Pod", "v1", strconv.Itoa(version)
		s.body, _ = json.Marshal(c)
	case *discoveryv1.EndpointSlice:
		c := o.DeepCopy()
		s.resource, c.Kind, c.APIVersion, c.ResourceVersion = "endpointslices", "EndpointSlice", "discovery.k8s.io/v1", strconv.Itoa(version)
		s.body, _ = json.Marshal(c)
	}
	return s
}

// kindOf returns the kind of a resource and its API version.
func kindOf(resource string) (kind, api string) {
	if resource == "pods" {
		return "Pod", "v1"
	}
	return "EndpointSlice", "discovery.k8s.io/v1"
}
