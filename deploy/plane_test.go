package deploy

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	planeFile = "loadplane.yaml"
	rbacFile  = "rbac.yaml"
)

// The kinds of loadplane.yaml and rbac.yaml that no sidecar has.
type (
	service struct {
		head `yaml:",inline"`
		Spec struct {
			Selector                 map[string]string `yaml:"selector"`
			PublishNotReadyAddresses bool              `yaml:"publishNotReadyAddresses"`
			Ports                    []servicePort     `yaml:"ports"`
		} `yaml:"spec"`
	}
	servicePort struct {
		Name       string `yaml:"name"`
		Port       int    `yaml:"port"`
		TargetPort string `yaml:"targetPort"`
	}
	networkPolicy struct {
		head `yaml:",inline"`
		Spec struct {
			PodSelector selector   `yaml:"podSelector"`
			PolicyTypes []string   `yaml:"policyTypes"`
			Ingress     []peerRule `yaml:"ingress"`
			Egress      []peerRule `yaml:"egress"`
		} `yaml:"spec"`
	}
	peerRule struct {
		From  []peer       `yaml:"from"`
		To    []peer       `yaml:"to"`
		Ports []policyPort `yaml:"ports"`
	}
	peer struct {
		NamespaceSelector selector `yaml:"namespaceSelector"`
	}
	selector struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	}
	policyPort struct {
		Protocol string `yaml:"protocol"`
		Port     string `yaml:"port"`
	}
	serviceAccount struct {
		head                         `yaml:",inline"`
		AutomountServiceAccountToken *bool `yaml:"automountServiceAccountToken"`
	}
	role struct {
		head  `yaml:",inline"`
		Rules []policyRule `yaml:"rules"`
	}
	policyRule struct {
		APIGroups []string `yaml:"apiGroups"`
		Resources []string `yaml:"resources"`
		Verbs     []string `yaml:"verbs"`
	}
	roleBinding struct {
		head     `yaml:",inline"`
		RoleRef  reference   `yaml:"roleRef"`
		Subjects []reference `yaml:"subjects"`
	}
	reference struct {
		APIGroup  string `yaml:"apiGroup"`
		Kind      string `yaml:"kind"`
		Name      string `yaml:"name"`
		Namespace string `yaml:"namespace"`
	}
)

// planeManifest is what loadplane.yaml has.
type planeManifest struct {
	secret     secret
	deployment deployment
	services   map[string]service
	policy     networkPolicy
}

func readPlane(t *testing.T) planeManifest {
	t.Helper()
	m := planeManifest{services: map[string]service{}}
	for _, doc := range documents(t, planeFile) {
		switch kind(t, doc) {
		case "Secret":
			m.secret = strict[secret](t, doc)
		case "Deployment":
			m.deployment = strict[deployment](t, doc)
		case "Service":
			s := strict[service](t, doc)
			m.services[s.Metadata.Name] = s
		case "NetworkPolicy":
			m.policy = strict[networkPolicy](t, doc)
		default:
			t.Fatalf("a %q", kind(t, doc))
		}
	}
	return m
}

// planePod returns the pod of the plane, with its one container.
func planePod(t *testing.T, m planeManifest) (pod, container) {
	t.Helper()
	p := m.deployment.Spec.Template.Spec
	if len(p.Containers) != 1 || len(p.InitContainers) != 0 {
		t.Fatalf("%d and %d containers", len(p.InitContainers), len(p.Containers))
	}
	return p, p.Containers[0]
}

func TestPlaneContainer(t *testing.T) {
	p, c := planePod(t, readPlane(t))
	checkSecurity(t, c)
	for _, probe := range []*probe{c.StartupProbe, c.LivenessProbe} {
		if probe == nil || probe.HTTPGet.Path != "/livez" || probe.HTTPGet.Port != "ops" {
			t.Errorf("probe %+v", probe)
		}
	}
	if r := c.ReadinessProbe; r == nil || r.HTTPGet.Path != "/readyz" || r.HTTPGet.Port != "ops" {
		t.Errorf("readiness %+v", r)
	}
	if p.ServiceAccountName != "loadplane" || p.AutomountServiceAccountToken == nil || !*p.AutomountServiceAccountToken {
		t.Error("the pod has no credential for the API server")
	}
	if drain := 10 * time.Second; time.Duration(p.TerminationGracePeriodSeconds)*time.Second <= drain {
		t.Errorf("%d s to end, and draining takes up to %v", p.TerminationGracePeriodSeconds, drain)
	}
}

func TestPlaneSettings(t *testing.T) {
	m := readPlane(t)
	p, c := planePod(t, m)
	if c.Args[0] != "serve" {
		t.Fatalf("runs %q", c.Args[0])
	}
	set := settings(t, c.Env, c.Args[1:])
	for _, name := range []string{"api", "ingest", "ops"} {
		i := slices.IndexFunc(c.Ports, func(p port) bool { return p.Name == name })
		if i < 0 || set[name+"-listen"] != "192.0.2.1:"+strconv.Itoa(c.Ports[i].ContainerPort) {
			t.Errorf("%s listens on %q, ports %+v", name, set[name+"-listen"], c.Ports)
		}
	}
	if set["insecure-allow-plaintext"] != "ops" {
		t.Errorf("plaintext on %q", set["insecure-allow-plaintext"])
	}
	limit, err := strconv.Atoi(strings.TrimSuffix(c.Resources.Limits["memory"], "Mi"))
	if err != nil || set["memory-limit-mib"] != strconv.Itoa(limit*9/10) {
		t.Errorf("soft limit %s MiB of %s; want nine tenths", set["memory-limit-mib"], c.Resources.Limits["memory"])
	}
	mounted := planeFiles(t, p, m.secret)
	for _, flag := range []string{"tls-cert", "tls-key", "api-token-file"} {
		if !mounted[set[flag]] {
			t.Errorf("--%s=%s is not mounted", flag, set[flag])
		}
	}
	if set["kubernetes"] != "true" || set["kubernetes-services"] == "" {
		t.Errorf("the example discovers nothing: %q", set)
	}
}

// planeFiles returns the paths of the keys of the secrets that are mounted.
func planeFiles(t *testing.T, p pod, own secret) map[string]bool {
	t.Helper()
	keys := map[string][]string{
		own.Metadata.Name: slices.Collect(maps.Keys(own.StringData)),
		"loadplane-tls":   {"tls.crt", "tls.key"}, // the keys of kubernetes.io/tls
	}
	files := map[string]bool{}
	for _, m := range p.Containers[0].VolumeMounts {
		i := slices.IndexFunc(p.Volumes, func(v volume) bool { return v.Name == m.Name })
		if i < 0 || p.Volumes[i].Secret == nil || !m.ReadOnly {
			t.Fatalf("mounts %+v", m)
		}
		// The plane refuses a key that others may read, and is not root.
		if p.Volumes[i].Secret.DefaultMode != 0o440 || p.Security == nil || p.Security.FSGroup != p.Containers[0].Security.RunAsGroup {
			t.Errorf("%s is not for the plane's group alone", m.MountPath)
		}
		for _, key := range keys[p.Volumes[i].Secret.SecretName] {
			files[m.MountPath+"/"+key] = true
		}
	}
	return files
}

func TestPlaneServices(t *testing.T) {
	m := readPlane(t)
	labels := m.deployment.Spec.Template.Metadata.Labels
	if !maps.Equal(labels, m.deployment.Spec.Selector.MatchLabels) || !maps.Equal(labels, m.policy.Spec.PodSelector.MatchLabels) {
		t.Error("the selectors do not match the pod")
	}
	for name, wantEarly := range map[string]bool{"loadplane-api": false, "loadplane-ingest": true} {
		s, ok := m.services[name]
		if !ok || !maps.Equal(s.Spec.Selector, labels) || len(s.Spec.Ports) != 1 {
			t.Fatalf("service %s: %+v", name, s)
		}
		if s.Spec.Ports[0].TargetPort != strings.TrimPrefix(name, "loadplane-") || s.Spec.PublishNotReadyAddresses != wantEarly {
			t.Errorf("service %s: %+v", name, s.Spec)
		}
	}
	// The reporters' manifests name this port.
	if m.services["loadplane-ingest"].Spec.Ports[0].Port != 7401 {
		t.Error("the sidecars report to port 7401")
	}
	ns := m.deployment.Metadata.Namespace
	if ns == "" || m.secret.Metadata.Namespace != ns || m.policy.Metadata.Namespace != ns {
		t.Error("not all in one namespace")
	}
}

func TestPlaneNetworkPolicy(t *testing.T) {
	spec := readPlane(t).policy.Spec
	if !slices.Equal(spec.PolicyTypes, []string{"Ingress", "Egress"}) {
		t.Errorf("limits %q only", spec.PolicyTypes)
	}
	from := map[string]string{}
	for _, r := range spec.Ingress {
		if len(r.From) != 1 || len(r.Ports) != 1 {
			t.Fatalf("a rule for anybody or for every port: %+v", r)
		}
		from[r.Ports[0].Port] = namespaceOf(r.From[0])
	}
	want := map[string]string{"api": "routers", "ingest": "inference", "ops": "monitoring"}
	if !maps.Equal(from, want) {
		t.Errorf("lets in %v, want %v", from, want)
	}
	for _, r := range spec.Egress {
		if len(r.To) == 0 && len(r.Ports) == 0 {
			t.Error("lets out everything")
		}
	}
}

func namespaceOf(p peer) string {
	return p.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"]
}

// TestRBACIsLeast is a golden test of every right that the file grants.
func TestRBACIsLeast(t *testing.T) {
	want := map[string]policyRule{
		"loadplane-services": {APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
		"loadplane-pods":     {APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
	}
	roles, bound := map[string]role{}, map[string]bool{}
	var account serviceAccount
	for _, doc := range documents(t, rbacFile) {
		switch kind(t, doc) {
		case "ServiceAccount":
			account = strict[serviceAccount](t, doc)
		case "Role":
			r := strict[role](t, doc)
			roles[r.Metadata.Name] = r
		case "RoleBinding":
			b := strict[roleBinding](t, doc)
			checkBinding(t, b, roles[b.RoleRef.Name], account)
			bound[b.RoleRef.Name] = true
		default:
			t.Errorf("a %q grants more than a namespace", kind(t, doc))
		}
	}
	if len(roles) != len(want) || len(bound) != len(want) {
		t.Errorf("%d roles, %d bound", len(roles), len(bound))
	}
	for name, rule := range want {
		got := roles[name].Rules
		if len(got) != 1 || !slices.Equal(got[0].APIGroups, rule.APIGroups) || !slices.Equal(got[0].Resources, rule.Resources) || !slices.Equal(got[0].Verbs, rule.Verbs) {
			t.Errorf("%s grants %+v, want %+v", name, got, rule)
		}
	}
	if a := account.AutomountServiceAccountToken; a == nil || *a {
		t.Error("every pod of the account gets its token")
	}
}

// checkBinding checks that a binding is of a role of its own namespace and way of
// discovery, for the plane's account alone.
func checkBinding(t *testing.T, b roleBinding, r role, account serviceAccount) {
	t.Helper()
	way := strings.TrimPrefix(b.Metadata.Name, "loadplane-")
	for _, m := range []meta{b.Metadata, r.Metadata} {
		if m.Namespace != "inference" || m.Labels["loadplane.dev/discovery"] != way {
			t.Errorf("%+v is not of namespace inference and way %s", m, way)
		}
	}
	if b.RoleRef.Kind != "Role" || len(b.Subjects) != 1 {
		t.Fatalf("binds %+v to %+v", b.RoleRef, b.Subjects)
	}
	if s := b.Subjects[0]; s.Kind != "ServiceAccount" || s.Name != account.Metadata.Name || s.Namespace != account.Metadata.Namespace {
		t.Errorf("subject %+v is not the account %+v", s, account.Metadata)
	}
}

// TestPlaneAndRightsAgree holds the two files together.
func TestPlaneAndRightsAgree(t *testing.T) {
	m := readPlane(t)
	_, c := planePod(t, m)
	set := settings(t, c.Env, c.Args[1:])
	account := strict[serviceAccount](t, documents(t, rbacFile)[0])
	if account.Metadata.Namespace != m.deployment.Metadata.Namespace || account.Metadata.Name != m.deployment.Spec.Template.Spec.ServiceAccountName {
		t.Errorf("the account %+v is not the pod's", account.Metadata)
	}
	granted := strict[role](t, documents(t, rbacFile)[1]).Metadata.Namespace
	if set["kubernetes-namespaces"] != granted {
		t.Errorf("looks in %q, may in %q", set["kubernetes-namespaces"], granted)
	}
}
