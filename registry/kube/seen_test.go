package kube

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/kube/kubetest"
	"github.com/loadplane/loadplane/store"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func TestMarks(t *testing.T) {
	p := pod("a", "10.0.0.1", tag(prefix+"role", "prefill"), tag(prefix+"zone", "by-label"), tag(zoneLabel, "unused"),
		note(prefix+"role", "decode"), note(prefix+"model", "org/m2+m1"), note(prefix+"dialect", "monitor"),
		note(prefix+"reporter-port", "7410"), note(prefix+"interval", "500ms"), note(prefix+"label.team", "x y"),
		note("other.dev/role", "prefill"))
	o := (&reader{scheme: "https"}).read(p)
	want := registry.WorkerSpec{
		ID: "ns/a/8000", URL: "https://10.0.0.1:8000", Origin: "10.0.0.1:8000", Role: store.RoleDecode,
		Models: []string{"m1", "org/m2"}, Zone: "by-label", Dialect: store.DialectMonitor, ReporterPort: 7410,
		Interval: 500 * time.Millisecond, Labels: map[string]string{"team": "x y"}, UID: "uid-a", Guarded: true,
	}
	if len(o.seen) != 1 || !reflect.DeepEqual(o.seen[0].spec, want) || o.problems != nil {
		t.Errorf("got %+v\nproblems %v", o.seen, o.problems)
	}
}

func TestPods(t *testing.T) {
	ports := func(ports ...corev1.ContainerPort) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Ports = ports }
	}
	status := func(change func(*corev1.PodStatus)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { change(&p.Status) }
	}
	phase := func(phase corev1.PodPhase) func(*corev1.Pod) {
		return status(func(s *corev1.PodStatus) { s.Phase = phase })
	}
	always := corev1.ContainerRestartPolicyAlways
	sidecar := func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{
			{Ports: []corev1.ContainerPort{{Name: "init", ContainerPort: 1}}},
			{RestartPolicy: &always, Ports: []corev1.ContainerPort{{Name: "side", ContainerPort: 2}}},
		}
	}
	two := ports(corev1.ContainerPort{Name: "http", ContainerPort: 8000}, corev1.ContainerPort{Name: "rpc", ContainerPort: 9000})
	cases := []struct {
		name   string
		pod    *corev1.Pod
		port   string
		want   string
		passed cause
	}{
		{"ready", pod("a", "10.0.0.1"), "", "ns/a/8000", ""},
		{"no condition of readiness", pod("a", "10.0.0.1", status(func(s *corev1.PodStatus) { s.Conditions = nil })), "", "ns/a/8000", ""},
		{"unready", pod("a", "10.0.0.1", unready), "", "", notReady},
		{"unready and deleted", pod("a", "10.0.0.1", unready, deleted), "", "ns/a/8000!", ""},
		{"pending", pod("a", "10.0.0.1", phase(corev1.PodPending)), "", "", notReady},
		{"pending and deleted", pod("a", "10.0.0.1", phase(corev1.PodPending), deleted), "", "", notReady},
		{"unknown and deleted", pod("a", "10.0.0.1", phase(corev1.PodUnknown), deleted), "", "ns/a/8000!", ""},
		{"bug 14: failed with an address", pod("a", "10.0.0.1", phase(corev1.PodFailed)), "", "", finished},
		{"succeeded and deleted", pod("a", "10.0.0.1", phase(corev1.PodSucceeded), deleted), "", "", finished},
		{"no address", pod("a", ""), "", "", noAddress},
		{"odd address", pod("a", "fe80::1%eth0"), "", "", noAddress},
		{"unspecified address", pod("a", "0.0.0.0"), "", "", noAddress},
		{"IPv6", pod("a", "fd00::1"), "", "ns/a/8000", ""},
		{"named port", pod("a", "10.0.0.1", two), "rpc", "ns/a/9000", ""},
		{"port of a sidecar", pod("a", "10.0.0.1", sidecar), "side", "ns/a/2", ""},
		{"port of an init container", pod("a", "10.0.0.1", sidecar), "init", "", noPort},
		{"bug 15: number wins over what is declared", pod("a", "10.0.0.1", two), "80", "ns/a/80", ""},
		{"none of two ports chosen", pod("a", "10.0.0.1", two), "", "", noPort},
		{"no port", pod("a", "10.0.0.1", ports()), "", "", noPort},
		{"UDP does not count", pod("a", "10.0.0.1", ports(corev1.ContainerPort{ContainerPort: 1}, corev1.ContainerPort{ContainerPort: 2, Protocol: corev1.ProtocolUDP})), "", "ns/a/1", ""},
		{"port by annotation", pod("a", "10.0.0.1", two, note(prefix+"port", "rpc")), "http", "ns/a/9000", ""},
		{"bad port by annotation", pod("a", "10.0.0.1", two, note(prefix+"port", "70000")), "http", "ns/a/8000", ""},
		{"leader", pod("a", "10.0.0.1", tag(workerLabel, "0")), "", "ns/a/8000", ""},
		{"follower", pod("a", "10.0.0.1", tag(workerLabel, "1")), "", "ns/a/8000*", ""},
		{"follower without a port", pod("a", "10.0.0.1", tag(workerLabel, "1"), ports()), "", "", noPort},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := &reader{scheme: "http"}
			if c.port != "" {
				r.port, _ = parsePort(c.port)
			}
			o := r.read(c.pod)
			got, passed := "", cause("")
			for _, s := range o.seen {
				got = s.spec.ID + strings.Repeat("!", count(s.spec.Draining)) + strings.Repeat("*", count(s.spec.NoEngine))
			}
			for _, p := range o.passed {
				passed = p
			}
			if got != c.want || passed != c.passed {
				t.Errorf("got %q, passed over as %q, problems %v", got, passed, o.problems)
			}
		})
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestAddressesOfBothFamilies(t *testing.T) {
	both := func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "fd00::1"}) }
	run(t, byLabel, func(s *kubetest.Server) { s.Put(pod("a", "10.0.0.1", both)) }, func(b *bed) {
		b.want("ns/a/8000@10.0.0.1:8000")
		if specs, _, _ := b.specs(); len(specs[0].Peers) != 1 || specs[0].Peers[0] != prefix32("fd00::1") {
			t.Errorf("peers are %v", specs[0].Peers)
		}
	})
	six := slice("s0", "llm", endpoint("a", "fd00::1"))
	six.AddressType = discoveryv1.AddressTypeIPv6
	run(t, byService, func(s *kubetest.Server) { s.Put(six, slice("s1", "llm", endpoint("a", "10.0.0.1"))) }, func(b *bed) {
		b.want("ns/a/8000@10.0.0.1:8000")
		if specs, _, _ := b.specs(); len(specs[0].Peers) != 1 || specs[0].Peers[0] != prefix32("fd00::1") {
			t.Errorf("peers are %v", specs[0].Peers)
		}
	})
}

func TestSlices(t *testing.T) {
	zone, udp := "z1", corev1.ProtocolUDP
	zoned := endpoint("a", "10.0.0.1")
	zoned.Zone = &zone
	s := slice("s", "llm", zoned, endpoint("b", ""), endpoint("c", "nonsense"), endpoint("", "10.0.0.4"))
	s.Labels[prefix+"role"], s.Labels[prefix+"label.tier"] = "prefill", "gold"
	s.Annotations = map[string]string{prefix + "model": "org/m", prefix + "interval": "soon"}
	s.Ports = append(s.Ports, discoveryv1.EndpointPort{Port: s.Ports[0].Port, Protocol: &udp}, discoveryv1.EndpointPort{})
	o := (&reader{scheme: "http"}).read(s)
	if len(o.seen) != 2 || len(o.problems) != 1 || o.problems[0].key != "interval" {
		t.Fatalf("got %+v", o)
	}
	first, last := o.seen[0].spec, o.seen[1].spec
	if first.Zone != "z1" || first.Role != store.RolePrefill || first.Labels["tier"] != "gold" || first.Models[0] != "org/m" || first.UID != "uid-a" {
		t.Errorf("got %+v", first)
	}
	if last.ID != "ns/10.0.0.4/8000" || last.UID != "" || last.Zone != "" {
		t.Errorf("got %+v", last)
	}
	if !reflect.DeepEqual(o.passed, []cause{noAddress, noAddress}) {
		t.Errorf("passed over as %v", o.passed)
	}

	s.Ports = nil
	if o := (&reader{scheme: "http"}).read(s); len(o.seen) != 0 || o.passed[0] != noPort {
		t.Errorf("without ports: %+v", o)
	}
	if o := (&reader{scheme: "http", port: port{number: 80}}).read(s); len(o.seen) != 2 {
		t.Errorf("with a number: %+v", o)
	}
	s.AddressType = discoveryv1.AddressTypeFQDN
	if o := (&reader{scheme: "http"}).read(s); len(o.seen) != 0 || o.passed[0] != otherCause || len(o.problems) != 1 {
		t.Errorf("with names: %+v", o)
	}
}

// TestEndpoints: what single endpoints say beside what their slice says.
func TestEndpoints(t *testing.T) {
	zoned := func(podName, ip, zone string) discoveryv1.Endpoint {
		e := endpoint(podName, ip)
		e.Zone = &zone
		return e
	}
	node := endpoint("n", "10.0.0.1")
	node.TargetRef.Kind = "Node"
	bad, worse := "a\nb", strings.Repeat("z", 300)
	cases := []struct {
		name      string
		endpoints []discoveryv1.Endpoint
		notes     map[string]string
		want      string
		problems  []string
	}{
		{"bad zones are told one by one", []discoveryv1.Endpoint{
			zoned("a", "10.0.0.1", "z1"), zoned("b", "10.0.0.2", bad), zoned("c", "10.0.0.3", worse), zoned("d", "10.0.0.4", bad),
		}, nil, "ns/a/8000=z1 ns/b/8000= ns/c/8000= ns/d/8000=", []string{"zone", "zone"}},
		{"a bad mark is told once", []discoveryv1.Endpoint{endpoint("a", "10.0.0.1"), endpoint("b", "10.0.0.2")},
			map[string]string{prefix + "interval": "soon"}, "ns/a/8000= ns/b/8000=", []string{"interval"}},
		{"a bad mark is told though the first endpoint is no worker", []discoveryv1.Endpoint{endpoint("a", "10.0.0.1", false), endpoint("b", "10.0.0.2")},
			map[string]string{prefix + "interval": "soon"}, "ns/b/8000=", []string{"interval"}},
		{"the zone of the slice wins", []discoveryv1.Endpoint{zoned("a", "10.0.0.1", "z1")},
			map[string]string{prefix + "zone": "mine"}, "ns/a/8000=mine", nil},
		{"the port is a known key", []discoveryv1.Endpoint{endpoint("a", "10.0.0.1")},
			map[string]string{prefix + "port": "9000"}, "ns/a/9000=", nil},
		{"a bad port is told once", []discoveryv1.Endpoint{endpoint("a", "10.0.0.1")},
			map[string]string{prefix + "port": "0"}, "ns/a/8000=", []string{"port"}},
		{"what is no Pod is known by its address", []discoveryv1.Endpoint{node}, nil, "ns/10.0.0.1/8000=", nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := slice("s", "llm", c.endpoints...)
			s.Annotations = c.notes
			o := (&reader{scheme: "http"}).read(s)
			var got, problems []string
			for _, s := range o.seen {
				got = append(got, s.spec.ID+"="+s.spec.Zone)
				if strings.HasPrefix(s.spec.ID, "ns/10") != (s.spec.UID == "") {
					t.Errorf("the identity of %s is %q", s.spec.ID, s.spec.UID)
				}
			}
			for _, p := range o.problems {
				problems = append(problems, p.key)
			}
			if strings.Join(got, " ") != c.want || !reflect.DeepEqual(problems, c.problems) {
				t.Errorf("got %q, problems %v", got, o.problems)
			}
		})
	}
	t.Run("port of a Pod", func(t *testing.T) {
		if o := (&reader{scheme: "http"}).read(pod("a", "10.0.0.1", note(prefix+"port", "http"))); len(o.seen) != 1 || o.problems != nil {
			t.Errorf("got %+v", o)
		}
	})
}

// TestProblemsOfLaterEndpointsAreCounted and are in the log, each once.
func TestProblemsOfLaterEndpointsAreCounted(t *testing.T) {
	bad := strings.Repeat("z", 300)
	late := endpoint("b", "10.0.0.2")
	late.Zone = &bad
	run(t, byService, func(s *kubetest.Server) { s.Put(slice("s", "llm", endpoint("a", "10.0.0.1"), late)) }, func(b *bed) {
		b.server.Put(slice("s", "llm", endpoint("a", "10.0.0.1"), late, endpoint("c", "10.0.0.3")))
		b.pass(time.Second)
		b.want(allThree)
		if n := b.number("loadplane_kube_ignored_values_total"); n != 1 {
			t.Errorf("%v values are counted as ignored", n)
		}
		if n := strings.Count(b.log.String(), "kubernetes value not used"); n != 1 {
			t.Errorf("the log tells of %d values", n)
		}
	})
}

func TestLongNames(t *testing.T) {
	long := strings.Repeat("x", 253)
	one := place{namespace: "ns", name: long, port: 8000}.id()
	two := place{namespace: "ns", name: long[1:] + "y", port: 8000}.id()
	if len(one) != maxIDBytes || len(two) != maxIDBytes || one == two {
		t.Errorf("names are %q and %q", one, two)
	}
}

// TestBug15OutsideFile reads the public slice whose conditions are empty.
func TestBug15OutsideFile(t *testing.T) {
	folder := os.Getenv("LOADPLANE_EXTRA_INPUTS")
	if folder == "" {
		t.Skip("LOADPLANE_EXTRA_INPUTS is not set")
	}
	data, err := os.ReadFile(filepath.Join(folder, "k8s_aibrix_endpointslice.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var s discoveryv1.EndpointSlice
	if err := yaml.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	for port, want := range map[string]string{"": "default/10.1.2.133/80", "http": "default/10.1.2.133/80", "8000": "default/10.1.2.133/8000"} {
		r := &reader{scheme: "http"}
		if port != "" {
			r.port, _ = parsePort(port)
		}
		if o := r.read(&s); len(o.seen) != 1 || o.seen[0].spec.ID != want {
			t.Errorf("port %q: got %+v", port, o)
		}
	}
}

func FuzzMarks(f *testing.F) {
	f.Add("role", "decode", "label.x", "y", "zone", "z")
	f.Add("port", "70000", "model", "a+b+", "reporter-port", "0")
	f.Add("label.", "", "interval", "1h", "dialect", "\xff")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2, k3, v3 string) {
		m := metav1.ObjectMeta{
			Namespace: "ns", Name: "a", UID: "u", Labels: map[string]string{prefix + k1: v1},
			Annotations: map[string]string{prefix + k2: v2, prefix + k3: v3},
		}
		p := pod("a", "10.0.0.1")
		p.ObjectMeta = m
		s := slice("s", "llm", endpoint("a", "10.0.0.1"))
		s.ObjectMeta = m
		r := &reader{scheme: "http", port: port{number: 8000}}
		for _, o := range []*object{r.read(p), r.read(s)} {
			if len(o.seen)+len(o.passed) != 1 || len(o.problems) > 4 {
				t.Fatalf("got %+v", o)
			}
			for _, s := range o.seen {
				checkSpec(t, &s.spec)
			}
		}
		// One more value that cannot be used changes nothing of the others.
		before := r.read(p)
		p.Annotations[prefix+"nonsense"] = "x"
		if k1 != "nonsense" && k2 != "nonsense" && k3 != "nonsense" && !reflect.DeepEqual(before.seen, r.read(p).seen) {
			t.Error("a bad value changed what the others say")
		}
	})
}

func checkSpec(t *testing.T, s *registry.WorkerSpec) {
	t.Helper()
	if !strings.HasPrefix(s.ID, "ns/a/") || !strings.HasPrefix(s.Origin, "10.0.0.1:") || s.URL != "http://"+s.Origin || !s.Guarded {
		t.Errorf("identity is %+v", s)
	}
	texts := append([]string{s.Zone}, s.Models...)
	for name, value := range s.Labels {
		texts = append(texts, name, value)
	}
	for _, text := range texts {
		if len(text) > 256 || strings.ToValidUTF8(text, "") != text || strings.ContainsAny(text, "\x00\n\x1b") {
			t.Errorf("text %q", text)
		}
	}
	if s.ReporterPort < 0 || s.ReporterPort > 65535 || s.TokenFile != "" || s.CAFile != "" || s.Draining {
		t.Errorf("got %+v", s)
	}
}
