package kube

import (
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/loadplane/loadplane/registry"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Well-known labels: of the zone that a Pod runs in, and of the place of a Pod
// in its group (LeaderWorkerSet; 0 is the leader).
const (
	zoneLabel   = "topology.kubernetes.io/zone"
	workerLabel = "leaderworkerset.sigs.k8s.io/worker-index"
)

// maxIDBytes bounds a worker's name.
const maxIDBytes = 256

// cause says why a Pod or endpoint is no worker. It is a label of metrics.
type cause string

// The causes.
const (
	notReady   cause = "not_ready"
	finished   cause = "finished"
	noAddress  cause = "no_address"
	noPort     cause = "no_port"
	taken      cause = "address_taken"
	otherCause cause = "unusable"
)

var causes = []cause{notReady, finished, noAddress, noPort, taken, otherCause}

// object is what is kept of a Pod or an EndpointSlice. It is immutable.
type object struct {
	seen     []seen
	passed   []cause
	problems []problem
	// first says since when an EndpointSlice shows the Pods that it shows, those
	// that are not ready too; nil for a Pod.
	first map[tenant]time.Time
}

// tenant is a Pod that has an address. It is a plain value.
type tenant struct {
	uid  string
	addr netip.Addr
}

// date notes since when a slice shows what it shows: what old, which may be nil,
// had since then, all else since now.
func (o *object) date(old *object, now time.Time) {
	for t := range o.first {
		o.first[t] = now
		if old == nil {
			continue
		}
		if then, known := old.first[t]; known {
			o.first[t] = then
		}
	}
	for i := range o.seen {
		s := &o.seen[i]
		if first, known := o.first[tenant{s.spec.UID, s.addr}]; known {
			s.since = first
		}
	}
}

// seen is a worker as one object shows it. It is a plain value.
type seen struct {
	spec registry.WorkerSpec
	addr netip.Addr
	// since is when the Pod was made, or since when a slice shows it with the
	// address; zero where neither is known. host says that it has the address of
	// its host.
	since time.Time
	host  bool
}

// reader makes workers of objects. It is immutable.
type reader struct {
	scheme string
	port   port
}

// read makes what is kept of an object.
func (r *reader) read(o runtime.Object) *object {
	switch o := o.(type) {
	case *corev1.Pod:
		return r.pod(o)
	case *discoveryv1.EndpointSlice:
		return r.slice(o)
	}
	return &object{}
}

// pass returns an object that is no worker.
func pass(why cause, problems ...problem) *object {
	return &object{passed: []cause{why}, problems: problems}
}

func (r *reader) pod(p *corev1.Pod) *object {
	draining := p.DeletionTimestamp != nil
	switch {
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return pass(finished)
	case p.Status.Phase != corev1.PodRunning && (!draining || p.Status.Phase != corev1.PodUnknown):
		return pass(notReady)
	case !draining && !podReady(p):
		return pass(notReady)
	}
	addrs := podAddrs(p)
	if len(addrs) == 0 {
		return pass(noAddress)
	}
	found := marks(p.Labels, p.Annotations)
	choice, problems := portOf(found, r.port)
	number, err := choice.choose(podPorts(p))
	switch {
	case err != nil && follower(p):
		return pass(noPort, problems...)
	case err != nil:
		return pass(noPort, append(problems, problem{portKey, err.Error()})...)
	}
	s, more := r.spec(place{namespace: p.Namespace, name: p.Name, uid: string(p.UID), addr: addrs[0], port: number}, found)
	problems = append(problems, more...)
	if s == nil {
		return pass(otherCause, problems...)
	}
	if s.Zone == "" {
		problems = append(problems, fallBack(s, p.Labels[zoneLabel])...)
	}
	s.Draining = draining
	s.Peers = prefixes(addrs[1:])
	s.NoEngine = follower(p)
	return &object{
		seen:     []seen{{spec: *s, addr: addrs[0], since: p.CreationTimestamp.Time, host: p.Spec.HostNetwork}},
		problems: problems,
	}
}

// follower says that a Pod is part of an engine that answers elsewhere.
func follower(p *corev1.Pod) bool {
	index, member := p.Labels[workerLabel]
	return member && index != "0"
}

// podReady says whether a Pod that runs is ready. One without the condition is.
func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return true
}

// podAddrs returns the addresses of a Pod without duplicates; the first is the
// one that it is known by.
func podAddrs(p *corev1.Pod) (addrs []netip.Addr) {
	texts := []string{p.Status.PodIP}
	for _, ip := range p.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	for _, text := range texts {
		if a, ok := parseAddr(text); ok && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

func parseAddr(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	return a.Unmap(), err == nil && a.Zone() == "" && !a.IsUnspecified()
}

// prefixes returns addresses as peers; nil for none.
func prefixes(addrs []netip.Addr) (all []netip.Prefix) {
	for _, a := range addrs {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return all
}

// podPorts returns the TCP ports of the containers, those of sidecars last.
func podPorts(p *corev1.Pod) (ports []named) {
	add := func(c *corev1.Container) {
		for _, d := range c.Ports {
			if d.Protocol == "" || d.Protocol == corev1.ProtocolTCP {
				ports = append(ports, named{d.Name, int(d.ContainerPort)})
			}
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	return ports
}

func (r *reader) slice(s *discoveryv1.EndpointSlice) *object {
	o := &object{first: tenants(s)}
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		o.passed = []cause{otherCause}
		o.problems = []problem{{otherKey, "addresses that are names are not supported"}}
		return o
	}
	found := marks(s.Labels, s.Annotations)
	choice, problems := portOf(found, r.port)
	o.problems = problems
	number, err := choice.choose(slicePorts(s))
	if err != nil && len(s.Endpoints) > 0 {
		o.problems = append(o.problems, problem{portKey, err.Error()})
	}
	for i := range s.Endpoints {
		seen, why, problems := r.endpoint(s, &s.Endpoints[i], number, found)
		for _, p := range problems {
			if !slices.Contains(o.problems, p) { // those of the marks are the same for all
				o.problems = append(o.problems, p)
			}
		}
		if seen == nil {
			o.passed = append(o.passed, why)
			continue
		}
		o.seen = append(o.seen, *seen)
	}
	return o
}

// tenants returns the Pods of a slice that have an identity and an address.
func tenants(s *discoveryv1.EndpointSlice) map[tenant]time.Time {
	all := make(map[tenant]time.Time, len(s.Endpoints))
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if !ofPod(e) || e.TargetRef.UID == "" || len(e.Addresses) == 0 {
			continue
		}
		if addr, ok := parseAddr(e.Addresses[0]); ok {
			all[tenant{string(e.TargetRef.UID), addr}] = time.Time{}
		}
	}
	return all
}

// ofPod says that an endpoint names a Pod.
func ofPod(e *discoveryv1.Endpoint) bool {
	return e.TargetRef != nil && e.TargetRef.Kind == "Pod" && e.TargetRef.Name != ""
}

func slicePorts(s *discoveryv1.EndpointSlice) (ports []named) {
	for _, p := range s.Ports {
		if p.Port == nil || p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			continue
		}
		d := named{number: int(*p.Port)}
		if p.Name != nil {
			d.name = *p.Name
		}
		ports = append(ports, d)
	}
	return ports
}

// endpoint makes a worker of an endpoint, or says why there is none. Of its
// addresses, which all lead to the same, the first counts. A port of 0 is none.
func (r *reader) endpoint(s *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint, number int, found map[string]string) (*seen, cause, []problem) {
	is := func(p *bool, otherwise bool) bool { return p == nil && otherwise || p != nil && *p }
	draining := is(e.Conditions.Terminating, false)
	if !draining && !is(e.Conditions.Ready, true) {
		return nil, notReady, nil
	}
	if len(e.Addresses) == 0 {
		return nil, noAddress, nil
	}
	addr, ok := parseAddr(e.Addresses[0])
	switch {
	case !ok:
		return nil, noAddress, nil
	case number == 0:
		return nil, noPort, nil
	}
	at := place{namespace: s.Namespace, name: addr.String(), addr: addr, port: number}
	if ofPod(e) {
		at.name, at.uid = e.TargetRef.Name, string(e.TargetRef.UID)
	}
	spec, problems := r.spec(at, found)
	if spec == nil {
		return nil, otherCause, problems
	}
	if spec.Zone == "" && e.Zone != nil {
		problems = append(problems, fallBack(spec, *e.Zone)...)
	}
	spec.Draining = draining
	return &seen{spec: *spec, addr: addr}, "", problems
}

// fallBack sets the zone that the cluster names.
func fallBack(s *registry.WorkerSpec, zone string) []problem {
	if zone == "" {
		return nil
	}
	return mark(s, map[string]string{"zone": zone})
}

// place is where a worker is. It is a plain value.
type place struct {
	namespace, name, uid string
	addr                 netip.Addr
	port                 int
}

// spec makes the spec of a worker with its marks; nil where there can be none.
func (r *reader) spec(p place, found map[string]string) (*registry.WorkerSpec, []problem) {
	s, err := registry.NewSpec(r.scheme + "://" + net.JoinHostPort(p.addr.String(), strconv.Itoa(p.port)))
	if err == nil {
		err = s.Set("id", p.id())
	}
	if err != nil {
		return nil, []problem{{otherKey, err.Error()}}
	}
	s.UID, s.Guarded = p.uid, true
	return &s, mark(&s, found)
}

// id returns the name of the worker. One that is too long ends with a digest.
func (p place) id() string {
	id := fmt.Sprintf("%s/%s/%d", p.namespace, p.name, p.port)
	if len(id) <= maxIDBytes {
		return id
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(p.name))
	end := fmt.Sprintf("~%016x/%d", h.Sum64(), p.port)
	return id[:maxIDBytes-len(end)] + end
}

// name returns how an object is called in logs.
func name(o runtime.Object) string {
	if m, ok := o.(metav1.Object); ok {
		return m.GetNamespace() + "/" + m.GetName()
	}
	return ""
}
