package deploy

import (
	"bytes"
	"errors"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The parts of a manifest that the examples use. Another key is a mistake.
type (
	head struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   meta   `yaml:"metadata"`
	}
	meta struct {
		Name      string            `yaml:"name"`
		Namespace string            `yaml:"namespace"`
		Labels    map[string]string `yaml:"labels"`
	}
	secret struct {
		head       `yaml:",inline"`
		Type       string            `yaml:"type"`
		StringData map[string]string `yaml:"stringData"`
	}
	deployment struct {
		head `yaml:",inline"`
		Spec struct {
			Replicas int `yaml:"replicas"`
			Strategy struct {
				Type          string `yaml:"type"`
				RollingUpdate struct {
					MaxSurge       int `yaml:"maxSurge"`
					MaxUnavailable int `yaml:"maxUnavailable"`
				} `yaml:"rollingUpdate"`
			} `yaml:"strategy"`
			Selector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			} `yaml:"selector"`
			Template struct {
				Metadata meta `yaml:"metadata"`
				Spec     pod  `yaml:"spec"`
			} `yaml:"template"`
		} `yaml:"spec"`
	}
	pod struct {
		ServiceAccountName            string `yaml:"serviceAccountName"`
		AutomountServiceAccountToken  *bool  `yaml:"automountServiceAccountToken"`
		TerminationGracePeriodSeconds int    `yaml:"terminationGracePeriodSeconds"`
		Security                      *struct {
			FSGroup int `yaml:"fsGroup"`
		} `yaml:"securityContext"`
		InitContainers []container `yaml:"initContainers"`
		Containers     []container `yaml:"containers"`
		Volumes        []volume    `yaml:"volumes"`
	}
	volume struct {
		Name     string `yaml:"name"`
		EmptyDir *struct {
			Medium    string `yaml:"medium"`
			SizeLimit string `yaml:"sizeLimit"`
		} `yaml:"emptyDir"`
		Secret *struct {
			SecretName  string `yaml:"secretName"`
			DefaultMode int    `yaml:"defaultMode"`
		} `yaml:"secret"`
	}
	container struct {
		Name           string    `yaml:"name"`
		Image          string    `yaml:"image"`
		RestartPolicy  string    `yaml:"restartPolicy"`
		Command        []string  `yaml:"command"`
		Args           []string  `yaml:"args"`
		Env            []envVar  `yaml:"env"`
		Ports          []port    `yaml:"ports"`
		StartupProbe   *probe    `yaml:"startupProbe"`
		LivenessProbe  *probe    `yaml:"livenessProbe"`
		ReadinessProbe *probe    `yaml:"readinessProbe"`
		Resources      resources `yaml:"resources"`
		Security       *security `yaml:"securityContext"`
		VolumeMounts   []mount   `yaml:"volumeMounts"`
	}
	envVar struct {
		Name      string `yaml:"name"`
		Value     string `yaml:"value"`
		ValueFrom *struct {
			FieldRef struct {
				FieldPath string `yaml:"fieldPath"`
			} `yaml:"fieldRef"`
		} `yaml:"valueFrom"`
	}
	port struct {
		Name          string `yaml:"name"`
		ContainerPort int    `yaml:"containerPort"`
	}
	probe struct {
		HTTPGet struct {
			Path string `yaml:"path"`
			Port string `yaml:"port"`
		} `yaml:"httpGet"`
		PeriodSeconds    int `yaml:"periodSeconds"`
		TimeoutSeconds   int `yaml:"timeoutSeconds"`
		FailureThreshold int `yaml:"failureThreshold"`
	}
	resources struct {
		Requests map[string]string `yaml:"requests"`
		Limits   map[string]string `yaml:"limits"`
	}
	security struct {
		RunAsNonRoot             bool  `yaml:"runAsNonRoot"`
		RunAsUser                int   `yaml:"runAsUser"`
		RunAsGroup               int   `yaml:"runAsGroup"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		Capabilities             struct {
			Drop []string `yaml:"drop"`
		} `yaml:"capabilities"`
		SeccompProfile struct {
			Type string `yaml:"type"`
		} `yaml:"seccompProfile"`
	}
	mount struct {
		Name      string `yaml:"name"`
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	}
)

// manifest is what a file has.
type manifest struct {
	secrets     []secret
	deployments []deployment
}

// read decodes the secrets and deployments of a file, and nothing else may be in
// it.
func read(t *testing.T, name string) (m manifest) {
	t.Helper()
	for _, doc := range documents(t, name) {
		switch kind(t, doc) {
		case "Secret":
			m.secrets = append(m.secrets, strict[secret](t, doc))
		case "Deployment":
			m.deployments = append(m.deployments, strict[deployment](t, doc))
		default:
			t.Fatalf("%s: a %q", name, kind(t, doc))
		}
	}
	return m
}

// documents splits a file.
func documents(t *testing.T, name string) (docs []*yaml.Node) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("kubernetes", name))
	if err != nil {
		t.Fatal(err)
	}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var doc yaml.Node
		if err := d.Decode(&doc); errors.Is(err, io.EOF) {
			return docs
		} else if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, &doc)
	}
}

func kind(t *testing.T, doc *yaml.Node) string {
	t.Helper()
	var h struct {
		Kind string         `yaml:"kind"`
		Rest map[string]any `yaml:",inline"`
	}
	if err := doc.Decode(&h); err != nil {
		t.Fatal(err)
	}
	return h.Kind
}

// strict decodes a document in which no key may be unknown.
func strict[T any](t *testing.T, doc *yaml.Node) (v T) {
	t.Helper()
	text, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// sidecars are the examples, each with the port of its engine.
var sidecars = map[string]string{"sidecar-sglang.yaml": "30000", "sidecar-vllm.yaml": "8000"}

func TestEveryManifestIsTested(t *testing.T) {
	files, err := filepath.Glob("kubernetes/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := filepath.Base(f)
		if sidecars[name] == "" && name != rbacFile && name != planeFile && name != kedaFile {
			t.Errorf("%s is not tested", f)
		}
	}
}

func TestSidecars(t *testing.T) {
	for name, enginePort := range sidecars {
		t.Run(name, func(t *testing.T) {
			m := read(t, name)
			if len(m.secrets) != 1 || len(m.deployments) != 1 {
				t.Fatalf("%d secrets, %d deployments", len(m.secrets), len(m.deployments))
			}
			d := m.deployments[0]
			app := d.Metadata.Labels["app"]
			if app == "" || d.Spec.Selector.MatchLabels["app"] != app || d.Spec.Template.Metadata.Labels["app"] != app {
				t.Errorf("the selector does not match the pods: %+v", d)
			}
			p := d.Spec.Template.Spec
			if len(p.InitContainers) != 1 || len(p.Containers) != 1 {
				t.Fatalf("%d and %d containers", len(p.InitContainers), len(p.Containers))
			}
			checkReporter(t, p.InitContainers[0], enginePort)
			if !slices.Contains(p.Containers[0].Args, "--port="+enginePort) || p.Containers[0].Ports[0].ContainerPort == 0 {
				t.Errorf("the engine does not listen on %s: %q", enginePort, p.Containers[0].Args)
			}
			checkVolumes(t, p, m.secrets[0])
		})
	}
}

// checkReporter checks the sidecar of an engine.
func checkReporter(t *testing.T, c container, enginePort string) {
	t.Helper()
	if c.RestartPolicy != "Always" {
		t.Error("an init container that is not restarted is no sidecar")
	}
	checkSecurity(t, c)
	if c.Resources.Requests["cpu"] != "20m" || c.Resources.Requests["memory"] != "32Mi" || c.Resources.Limits["memory"] != "64Mi" {
		t.Errorf("resources %+v", c.Resources)
	}
	for _, p := range []*probe{c.StartupProbe, c.LivenessProbe} {
		if p == nil || p.HTTPGet.Path != "/livez" || p.HTTPGet.Port != c.Ports[0].Name {
			t.Errorf("probe %+v", p)
		}
	}
	set := settings(t, c.Env, c.Args)
	for flag, want := range map[string]string{
		"engine": "http://127.0.0.1:" + enginePort, "advertise": "http://192.0.2.1:" + enginePort, "listen": "192.0.2.1:7410",
	} {
		if set[flag] != want {
			t.Errorf("--%s is %q, want %q", flag, set[flag], want)
		}
	}
	if u, err := url.Parse(set["plane"]); err != nil || u.Scheme != "https" {
		t.Errorf("a token would go out over %q", set["plane"])
	}
}

// checkSecurity checks that a container may do nothing but run its program.
func checkSecurity(t *testing.T, c container) {
	t.Helper()
	s := c.Security
	if s == nil || !s.RunAsNonRoot || s.RunAsUser == 0 || !s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil ||
		*s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) || s.SeccompProfile.Type != "RuntimeDefault" {
		t.Errorf("security %+v", s)
	}
}

var variable = regexp.MustCompile(`\$\(([A-Z_]+)\)`)

// settings returns the flags among args with their variables filled in.
func settings(t *testing.T, vars []envVar, args []string) map[string]string {
	t.Helper()
	env := map[string]string{}
	for _, v := range vars {
		env[v.Name] = v.Value
		if v.ValueFrom != nil {
			env[v.Name] = map[string]string{"status.podIP": "192.0.2.1", "metadata.name": "pod-0"}[v.ValueFrom.FieldRef.FieldPath]
		}
		if env[v.Name] == "" {
			t.Errorf("%s has no value", v.Name)
		}
	}
	set := map[string]string{}
	for _, arg := range args {
		filled := variable.ReplaceAllStringFunc(arg, func(ref string) string {
			name := variable.FindStringSubmatch(ref)[1]
			if env[name] == "" {
				t.Errorf("%s: nothing sets %s", arg, name)
			}
			return env[name]
		})
		flag, value, ok := strings.Cut(strings.TrimPrefix(filled, "--"), "=")
		if !ok || !strings.HasPrefix(filled, "--") {
			t.Errorf("%q is no flag with a value", arg)
		}
		set[flag] = value
	}
	return set
}

// checkVolumes checks that what is mounted is there, and that the files that
// flags name are mounted.
func checkVolumes(t *testing.T, p pod, s secret) {
	t.Helper()
	volumes := map[string]volume{}
	for _, v := range p.Volumes {
		volumes[v.Name] = v
	}
	var paths []string
	for _, c := range append(p.InitContainers, p.Containers...) {
		for _, m := range c.VolumeMounts {
			v, ok := volumes[m.Name]
			if !ok || v.EmptyDir == nil && v.Secret == nil {
				t.Errorf("%s mounts %q", c.Name, m.Name)
			}
			if v.Secret == nil {
				paths = append(paths, m.MountPath)
				continue
			}
			if v.Secret.SecretName != s.Metadata.Name || !m.ReadOnly {
				t.Errorf("%s mounts %+v", c.Name, v)
			}
			for key := range s.StringData {
				paths = append(paths, m.MountPath+"/"+key)
			}
		}
	}
	reporter := p.InitContainers[0]
	set := settings(t, reporter.Env, reporter.Args)
	for _, file := range []string{set["token-file"], set["ca"], set["state-dir"]} {
		if !slices.Contains(paths, file) {
			t.Errorf("%q is not mounted", file)
		}
	}
}

// TestFlagsExist asks the programs for their flags.
func TestFlagsExist(t *testing.T) {
	t.Run("loadreporter", func(t *testing.T) {
		known := knownFlags(t, "../cmd/loadreporter")
		for name := range sidecars {
			c := read(t, name).deployments[0].Spec.Template.Spec.InitContainers[0]
			checkFlags(t, known, settings(t, c.Env, c.Args))
		}
	})
	t.Run("loadplane", func(t *testing.T) {
		c := readPlane(t).deployment.Spec.Template.Spec.Containers[0]
		checkFlags(t, knownFlags(t, "../cmd/loadplane", "serve"), settings(t, c.Env, c.Args[1:]))
	})
}

// knownFlags returns the flags that a program's help lists.
func knownFlags(t *testing.T, program ...string) map[string]bool {
	t.Helper()
	args := append(append([]string{"run"}, program...), "--help")
	help, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, help)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z-]+)`).FindAllSubmatch(help, -1) {
		known[string(m[1])] = true
	}
	return known
}

func checkFlags(t *testing.T, known map[string]bool, set map[string]string) {
	t.Helper()
	for flag := range set {
		if !known[flag] {
			t.Errorf("the program has no --%s", flag)
		}
	}
}
