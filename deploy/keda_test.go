package deploy

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const kedaFile = "keda-scaledobject.yaml"

// The kinds of keda-scaledobject.yaml that are KEDA's, as far as it uses them.
type (
	triggerAuthentication struct {
		head `yaml:",inline"`
		Spec struct {
			SecretTargetRef []struct {
				Parameter string `yaml:"parameter"`
				Name      string `yaml:"name"`
				Key       string `yaml:"key"`
			} `yaml:"secretTargetRef"`
		} `yaml:"spec"`
	}
	scaledObject struct {
		head `yaml:",inline"`
		Spec struct {
			ScaleTargetRef  reference `yaml:"scaleTargetRef"`
			PollingInterval int       `yaml:"pollingInterval"`
			MinReplicaCount int       `yaml:"minReplicaCount"`
			MaxReplicaCount int       `yaml:"maxReplicaCount"`
			Fallback        struct {
				FailureThreshold int    `yaml:"failureThreshold"`
				Replicas         int    `yaml:"replicas"`
				Behavior         string `yaml:"behavior"`
			} `yaml:"fallback"`
			Advanced struct {
				HPA struct {
					Behavior map[string]scalingRules `yaml:"behavior"`
				} `yaml:"horizontalPodAutoscalerConfig"`
			} `yaml:"advanced"`
			Triggers []kedaTrigger `yaml:"triggers"`
		} `yaml:"spec"`
	}
	scalingRules struct {
		StabilizationWindowSeconds int `yaml:"stabilizationWindowSeconds"`
		Policies                   []struct {
			Type          string `yaml:"type"`
			Value         int    `yaml:"value"`
			PeriodSeconds int    `yaml:"periodSeconds"`
		} `yaml:"policies"`
	}
	kedaTrigger struct {
		Type       string            `yaml:"type"`
		MetricType string            `yaml:"metricType"`
		Metadata   map[string]string `yaml:"metadata"`
		AuthRef    reference         `yaml:"authenticationRef"`
	}
)

// kedaManifest is what keda-scaledobject.yaml has.
type kedaManifest struct {
	service service
	policy  networkPolicy
	auth    triggerAuthentication
	object  scaledObject
}

func readKEDA(t *testing.T) (m kedaManifest) {
	t.Helper()
	for _, doc := range documents(t, kedaFile) {
		switch kind(t, doc) {
		case "Service":
			m.service = strict[service](t, doc)
		case "NetworkPolicy":
			m.policy = strict[networkPolicy](t, doc)
		case "TriggerAuthentication":
			m.auth = strict[triggerAuthentication](t, doc)
		case "ScaledObject":
			m.object = strict[scaledObject](t, doc)
		default:
			t.Fatalf("a %q", kind(t, doc))
		}
	}
	return m
}

// TestKEDAReachesThePlane holds the way from KEDA to the plane together with the
// manifest of the plane.
func TestKEDAReachesThePlane(t *testing.T) {
	m, plane := readKEDA(t), readPlane(t)
	labels, ns := plane.deployment.Spec.Template.Metadata.Labels, plane.deployment.Metadata.Namespace
	if !maps.Equal(m.service.Spec.Selector, labels) || !maps.Equal(m.policy.Spec.PodSelector.MatchLabels, labels) {
		t.Error("the selectors do not match the plane's pod")
	}
	if m.service.Metadata.Namespace != ns || m.policy.Metadata.Namespace != ns {
		t.Error("not in the plane's namespace")
	}
	if len(m.service.Spec.Ports) != 1 || m.service.Spec.Ports[0].TargetPort != "scaler" || m.service.Spec.PublishNotReadyAddresses {
		t.Errorf("service %+v", m.service.Spec)
	}
	rules := m.policy.Spec.Ingress
	if len(rules) != 1 || len(rules[0].From) != 1 || len(rules[0].Ports) != 1 || namespaceOf(rules[0].From[0]) != "keda" || rules[0].Ports[0].Port != "scaler" {
		t.Errorf("lets in %+v", rules)
	}
	host, port, err := net.SplitHostPort(m.object.Spec.Triggers[0].Metadata["scalerAddress"])
	if err != nil || host != m.service.Metadata.Name+"."+ns+".svc" || port != "7403" || m.service.Spec.Ports[0].Port != 7403 {
		t.Errorf("asks %s:%s: %v", host, port, err)
	}
}

// TestKEDAKeepsReplicasOnErrors: with no replica as its fallback KEDA may scale
// to none when it gets an error.
func TestKEDAKeepsReplicasOnErrors(t *testing.T) {
	m := readKEDA(t)
	s := m.object.Spec
	if s.MinReplicaCount < 1 || s.Fallback.Replicas < 1 || s.Fallback.FailureThreshold < 1 || s.Fallback.Behavior != "currentReplicasIfHigher" || s.MaxReplicaCount <= s.MinReplicaCount {
		t.Errorf("%+v", s)
	}
	if down, up := s.Advanced.HPA.Behavior["scaleDown"], s.Advanced.HPA.Behavior["scaleUp"]; down.StabilizationWindowSeconds <= up.StabilizationWindowSeconds || len(down.Policies) == 0 {
		t.Errorf("down %+v, up %+v", down, up)
	}
	if len(s.Triggers) != 1 || s.Triggers[0].AuthRef.Name != m.auth.Metadata.Name || m.auth.Metadata.Namespace != m.object.Metadata.Namespace {
		t.Errorf("triggers %+v", s.Triggers)
	}
	var parameters []string
	for _, r := range m.auth.Spec.SecretTargetRef {
		parameters = append(parameters, r.Parameter)
	}
	// The names of KEDA's external scaler.
	if !slices.Equal(parameters, []string{"caCert", "tlsClientCert", "tlsClientKey"}) {
		t.Errorf("credentials %q", parameters)
	}
}

// TestKEDAFlagsExist checks the flags that the comment tells to add.
func TestKEDAFlagsExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("kubernetes", kedaFile))
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]string{}
	for _, f := range regexp.MustCompile(`(?m)^#   --(\S+)=(\S+)$`).FindAllStringSubmatch(string(text), -1) {
		set[f[1]] = f[2]
	}
	if set["scaler-listen"] != "$(POD_IP):7403" || !strings.HasPrefix(set["client-ca"], "/run/secrets/loadplane/") {
		t.Errorf("tells to set %v", set)
	}
	checkFlags(t, knownFlags(t, "../cmd/loadplane", "serve"), set)
}
