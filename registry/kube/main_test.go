package kube

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/kube/kubetest"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// epoch is when the Pods of tests are made.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// bed is a source that follows an API server, in a bubble.
type bed struct {
	t      *testing.T
	server *kubetest.Server
	source *Source
	gather *prometheus.Registry
	log    *lockedText

	mu       sync.Mutex
	listings []registry.Listing
}

// lockedText is a writer that may be read meanwhile.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// follow starts a source over a server that prepare filled.
func follow(t *testing.T, opts Options, prepare func(*kubetest.Server)) *bed {
	t.Helper()
	b := &bed{t: t, server: kubetest.New(), gather: prometheus.NewRegistry(), log: &lockedText{}}
	prepare(b.server)
	go b.server.Serve()
	t.Cleanup(b.server.Close)
	opts.Config, opts.Registerer = b.server.Config(), b.gather
	opts.Logger = slog.New(slog.NewTextHandler(b.log, nil))
	if opts.Namespaces == nil {
		opts.Namespaces = []string{"ns"}
	}
	var err error
	if b.source, err = New(opts); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.source.Run(ctx, b.take)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	b.pass(time.Second)
	return b
}

func (b *bed) take(l registry.Listing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listings = append(b.listings, l)
}

func (b *bed) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// specs returns the last list, the number of lists and the error that stands.
func (b *bed) specs() (specs []registry.WorkerSpec, lists int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.listings {
		if err = l.Err; err == nil {
			specs = l.Specs
			lists++
		}
	}
	return specs, lists, err
}

// show returns the last list as one line: ID@origin, with ! for draining and *
// for no engine.
func (b *bed) show() string {
	specs, _, _ := b.specs()
	var words []string
	for _, s := range specs {
		w := s.ID + "@" + s.Origin
		if s.Draining {
			w += "!"
		}
		if s.NoEngine {
			w += "*"
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

func (b *bed) want(want string) {
	b.t.Helper()
	if got := b.show(); got != want {
		_, _, err := b.specs()
		b.t.Errorf("workers are %q, want %q; the error is %v", got, want, err)
	}
}

// wantError wants the error that stands to mention words; empty for no error.
func (b *bed) wantError(mentions ...string) {
	b.t.Helper()
	_, _, err := b.specs()
	if len(mentions) == 0 && err != nil {
		b.t.Errorf("the source says %v", err)
	}
	for _, m := range mentions {
		if err == nil || !strings.Contains(err.Error(), m) {
			b.t.Errorf("the source says %v, want mention of %q", err, m)
		}
	}
}

// number returns the sum of the values of a metric.
func (b *bed) number(name string) (sum float64) {
	b.t.Helper()
	families, err := b.gather.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// pod returns a Pod that runs and is ready, with one port.
func pod(name, ip string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "llm"},
			CreationTimestamp: metav1.NewTime(epoch), ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "engine", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8000}}}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func deleted(p *corev1.Pod) {
	now := metav1.NewTime(epoch.Add(time.Hour))
	p.DeletionTimestamp = &now
}

func unready(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

func uid(id string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.UID = types.UID(id) } }

func made(after time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(epoch.Add(after)) }
}

func note(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[key] = value
	}
}

func tag(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}

// slice returns an EndpointSlice of a Service with one port.
func slice(name, service string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	port, portName := int32(8000), "http"
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{serviceLabel: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
	}
}

// endpoint returns an endpoint of a Pod; conditions are ready, serving and
// terminating as far as given.
func endpoint(podName, ip string, conditions ...bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{ip}}
	if podName != "" {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: podName, UID: types.UID("uid-" + podName)}
	}
	for i, to := range []**bool{&e.Conditions.Ready, &e.Conditions.Serving, &e.Conditions.Terminating} {
		if i < len(conditions) {
			*to = &conditions[i]
		}
	}
	return e
}

func nothing(*kubetest.Server) {}

var byLabel = Options{Selector: "app=llm"}

var byService = Options{Services: []string{"llm"}}

func prefix32(text string) netip.Prefix {
	a := netip.MustParseAddr(text)
	return netip.PrefixFrom(a, a.BitLen())
}
