package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/kube/kubeapi"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// Times of deliveries.
const (
	// settle is how long a change waits for more.
	settle = 100 * time.Millisecond
	// patience is how long the first delivery waits for namespaces of which no
	// list could be had.
	patience = 30 * time.Second

	defaultRelist, defaultSilence = 10 * time.Minute, 5 * time.Minute
)

// Options configure a Source. It is a plain value.
type Options struct {
	// Config says how to reach the API server. Nil: Kubeconfig, the path of a
	// file, does; empty: the service account of the Pod.
	Config     *rest.Config
	Kubeconfig string
	// Namespaces are those that are read. Empty: that of the Pod, or of the
	// kubeconfig.
	Namespaces []string
	// Services are the names of the Services whose EndpointSlices are read, in
	// each namespace. Selector is the label selector of the Pods that are read.
	// One of them must be set.
	Services []string
	Selector string
	// Port is the name or the number of the engine's port. Empty: the only one
	// that the slice or the Pod declares.
	Port string
	// Scheme is http, the default, or https.
	Scheme string
	// Relist is how often the whole list is read, whatever was watched; 0 is 10
	// minutes. Silence is how long a watch in which nothing comes is trusted; 0
	// is 5 minutes, in which a server sends several bookmarks.
	Relist, Silence time.Duration
	// Registerer may be nil.
	Registerer prometheus.Registerer
	// Logger is nil for none.
	Logger *slog.Logger
}

// Source finds workers in Kubernetes. It is safe for concurrent use.
type Source struct {
	client  *kubeapi.Client
	mirrors []*kubeapi.Mirror[*object]
	// namespaces are those of the mirrors.
	namespaces []string
	changed    chan struct{}
	metrics    *metrics
	log        *slog.Logger
	reader     reader

	// lines bounds those of the log about single values.
	lines rate.Sometimes

	// What follows is for the goroutine that delivers.
	delivered delivered
}

// delivered is what was delivered last.
type delivered struct {
	specs []registry.WorkerSpec
	any   bool
	// lists is the sum of the lists of all mirrors.
	lists uint64
	err   string
}

// New returns a source that reads by opts. It starts nothing. Errors name the
// setting.
func New(opts Options) (*Source, error) {
	kind, selector, err := opts.validate()
	if err != nil {
		return nil, err
	}
	s := &Source{
		changed: make(chan struct{}, 1), log: opts.Logger,
		reader: reader{scheme: cmp.Or(opts.Scheme, "http")},
		lines:  rate.Sometimes{First: 20, Interval: time.Minute},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if opts.Port != "" {
		if s.reader.port, err = parsePort(opts.Port); err != nil {
			return nil, fmt.Errorf("kubernetes_port: %w", err)
		}
	}
	cfg, namespaces, err := opts.connect()
	if err != nil {
		return nil, err
	}
	if s.client, err = kubeapi.NewClient(cfg, kind); err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	if err := s.mirror(opts, selector, namespaces); err != nil {
		return nil, err
	}
	s.metrics, err = newMetrics(opts.Registerer, s)
	return s, err
}

// mirror makes a mirror for each namespace.
func (s *Source) mirror(opts Options, selector string, namespaces []string) error {
	shared, err := kubeapi.NewMetrics(opts.Registerer)
	if err != nil {
		return err
	}
	s.namespaces = namespaces
	for _, n := range namespaces {
		s.mirrors = append(s.mirrors, kubeapi.NewMirror(kubeapi.Options[*object]{
			Client: s.client, Namespace: n, Selector: selector,
			Relist: cmp.Or(opts.Relist, defaultRelist), Silence: cmp.Or(opts.Silence, defaultSilence),
			Convert: s.convert, Equal: func(a, b *object) bool { return reflect.DeepEqual(a, b) },
			Changed: s.changed, Metrics: shared, Logger: s.log,
		}))
	}
	return nil
}

// Name returns "kubernetes".
func (s *Source) Name() string { return "kubernetes" }

// Run follows the API server until ctx ends, and delivers the whole list when
// there is one, at every change of it, changes within 100 ms together, and when
// it was read anew. While the API server cannot be followed the last list
// stands and the error is delivered. A namespace of which nothing could be read
// for 30 s from the start on is left out of the list until it can.
func (s *Source) Run(ctx context.Context, deliver func(registry.Listing)) {
	var wg sync.WaitGroup
	defer s.client.Close()
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for _, m := range s.mirrors {
		wg.Go(func() { m.Run(ctx) })
	}
	s.follow(ctx, deliver)
}

// follow delivers until ctx ends.
func (s *Source) follow(ctx context.Context, deliver func(registry.Listing)) {
	waited := time.NewTimer(patience)
	defer waited.Stop()
	impatient := false
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
			if settled == nil {
				settled = time.After(settle)
			}
		case <-waited.C:
			impatient = true
			s.deliver(impatient, deliver)
		case <-settled:
			settled = nil
			s.deliver(impatient, deliver)
		}
	}
}

// deliver delivers what changed: the list, and after it the error that stands.
func (s *Source) deliver(impatient bool, deliver func(registry.Listing)) {
	now := s.gather(impatient)
	last := &s.delivered
	complete := now.missing == 0 || impatient && now.missing < len(s.mirrors)
	renewed := now.lists != last.lists || (last.err != "" && now.err == nil)
	if complete && (!last.any || renewed || !reflect.DeepEqual(now.specs, last.specs)) {
		last.specs, last.any, last.lists, last.err = now.specs, true, now.lists, ""
		s.metrics.deliveries.Inc()
		s.metrics.workers.Set(float64(len(now.specs)))
		deliver(registry.Listing{Specs: now.specs})
	}
	if complete {
		s.metrics.pass(now.passed)
	}
	s.metrics.failing.Set(0)
	if now.err == nil {
		return
	}
	s.metrics.failing.Set(1)
	if text := now.err.Error(); text != last.err {
		last.err = text
		deliver(registry.Listing{Err: now.err})
	}
}

// gathered is what all mirrors hold at one moment.
type gathered struct {
	specs []registry.WorkerSpec
	// missing is the number of mirrors that hold nothing yet.
	missing int
	lists   uint64
	err     error
	passed  map[cause]int
}

// gather reads all mirrors. It is a fault to have nothing only after a while.
func (s *Source) gather(impatient bool) (g gathered) {
	g.passed = make(map[cause]int)
	var all []seen
	var failing int
	for i, m := range s.mirrors {
		objects, state := m.Values()
		err := state.Err
		if g.lists += state.Lists; state.Lists == 0 {
			g.missing++
			if err == nil && impatient {
				err = fmt.Errorf("no list of namespace %s yet", s.namespaces[i])
			}
		}
		if err != nil {
			g.err = cmp.Or(g.err, err)
			failing++
		}
		for _, name := range slices.Sorted(maps.Keys(objects)) {
			all = append(all, objects[name].seen...)
			for _, why := range objects[name].passed {
				g.passed[why]++
			}
		}
	}
	if failing > 1 {
		g.err = fmt.Errorf("%w (and %d other namespaces)", g.err, failing-1)
	}
	g.specs, g.passed[taken] = join(all)
	return g
}

// convert makes what is kept of an object that was seen at a time, and tells of
// problems that are new.
func (s *Source) convert(o runtime.Object, old *object, at time.Time) *object {
	next := s.reader.read(o)
	next.date(old, at)
	for _, p := range next.problems {
		if old != nil && slices.Contains(old.problems, p) {
			continue
		}
		s.metrics.ignore(p.key)
		s.lines.Do(func() {
			s.log.Warn("kubernetes value not used", "object", name(o), "problem", p.text)
		})
	}
	return next
}
