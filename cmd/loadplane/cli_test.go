package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/service/config"
	"go.yaml.in/yaml/v3"
)

const canary = "canary-t0ken-51c2"

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExitCodes(t *testing.T) {
	token := writeFile(t, "token", canary+"\n")
	tests := []struct {
		args string
		code int
		out  string // In either stream.
	}{
		{"", exitOK, "Available Commands"},
		{"help", exitOK, "check-config"},
		{"serve --help", exitOK, "--report-interval"},
		{"version", exitOK, "loadplane "},
		{"version extra", exitUsage, "unknown command"},
		{"bogus", exitUsage, `unknown command "bogus"`},
		{"serve --bogus", exitUsage, "unknown flag: --bogus"},
		{"serve --lease=soon", exitUsage, "invalid argument"},
		{"serve --lease=1s", exitUsage, "lease: 1s is not in 4s to 1h0m0s"},
		{"serve --config=/does/not/exist", exitUsage, "no such file"},
		{"serve --api-listen=0.0.0.0:0", exitUsage, "--insecure-allow-plaintext=api"},
		{"serve --worker=http://a:1,role=king", exitUsage, "king"},
		{"demo --engines=0", exitUsage, "--engines"},
		{"demo --engines=99999", exitUsage, "Engines is 99999"},
		{"demo --fault=explode", exitUsage, "unknown fault \"explode\"; known are restart, rerank, freeze, "},
		{"sim --fault=restart:engine=x", exitUsage, "--fault"},
		{"sim --listen=192.0.2.1", exitUsage, "cannot listen"},
		{"sim --kinds=vllm,abacus", exitUsage, `--kinds: sim: unknown kind "abacus"; known are sglang, sglang-monitor,`},
		{"demo --kinds=VLLM", exitUsage, `unknown kind "VLLM"`},
		{"probe", exitUsage, "want one argument, not 0: loadplane probe URL [flags]\nloadplane: see loadplane probe --help\n"},
		{"probe http://a:1 http://b:1", exitUsage, "want one argument, not 2: loadplane "},
		{"probe ftp://a:1", exitUsage, "url"},
		{"probe http://a:1,dialect=push", exitUsage, `"http://a:1,dialect=push" is not http://HOST:PORT`},
		{"probe http://u:" + canary + "@h:1,x", exitUsage, "http://REDACTED@h:1,x"},
		{"probe http://u:" + canary + "@h:1", exitUsage, "user information is not allowed"},
		{"probe http://a:1 -o yaml", exitUsage, `"yaml" is not one of table, json`},
		{"probe http://a:1 --timeout=0s", exitUsage, "--timeout: want more than 0"},
		{"probe http://a:1 --token-file=/does/not/exist", exitUsage, "--token-file"},
		{"probe http://a:1 --ca=" + token, exitUsage, "--ca: "},
		{"probe http://127.0.0.1:1", exitFailure, "no dialect can be used with http://127.0.0.1:1: monitor: connect_failed"},
		{"workers", exitUsage, "list"},
		{"workers bogus", exitUsage, "unknown command \"bogus\" for \"loadplane workers\"\n"},
		{"workers drian a", exitUsage, "for \"loadplane workers\"; did you mean drain?\nloadplane: see loadplane workers --help\n"},
		{"explian a", exitUsage, "unknown command \"explian\" for \"loadplane\"; did you mean explain?\nloadplane: see loadplane --help\n"},
		{"workers add", exitUsage, "want one argument, not 0: loadplane workers add "},
		{"workers add http://a:1", exitUsage, "give --socket PATH or LOADPLANE_ADMIN_SOCKET"},
		{"workers remove a --socket=/does/not/exist", exitFailure, "start the plane with: loadplane serve --admin-socket /does/not/exist"},
		{"workers drain a --socket=" + token, exitFailure, "nothing answers at "},
		{"workers drain a --socket=/x --timeout=0s", exitUsage, "--timeout: want more than 0"},
		{"workers drain --socket=/x", exitUsage, "want one argument, not 0: loadplane workers drain ID [flags]"},
		{"serve --admin-socket=" + token, exitUsage, "is there and is no socket; choose another path with --admin-socket"},
		{"serve --dns=10.0.0.1:80", exitUsage, "dns: 10.0.0.1 is an address; name it by --worker"},
		{"check-config --dns=a.example:1,zone=", exitUsage, "dns: zone: value is empty"},
		{"check-config --kubernetes", exitUsage, "give --kubernetes-services or --kubernetes-selector"},
		{"check-config --kubernetes-selector=a=b", exitUsage, "kubernetes_selector: it says nothing without kubernetes"},
		{"check-config --kubernetes --kubernetes-services=a --kubernetes-port=-x,y", exitUsage, "kubernetes_port: "},
		{"check-config --kubernetes --kubernetes-services=a --kubeconfig=/does/not/exist", exitUsage, "kubeconfig: "},
		{"snapshot -o xml", exitUsage, `"xml" is not one of table, wide, json, yaml`},
		{"watch -o xml", exitUsage, `"xml" is not one of table, wide, json, yaml`},
		{"explain", exitUsage, "want one argument, not 0: loadplane explain WORKER [flags]\nloadplane: see loadplane explain --help\n"},
		{"explain a b", exitUsage, "want one argument, not 2: loadplane "},
		{"explain a -o wide", exitUsage, `"wide" is not one of table, json, yaml`},
		{"explain a --server=127.0.0.1:7400", exitUsage, "--server: want http://HOST:PORT"},
		{"explain a --server=http://127.0.0.1:1", exitFailure, "nothing listens at http://127.0.0.1:1; is loadplane serving there? Start it with: loadplane serve"},
		{"explain --help", exitOK, "With --exit-code it is 3 where a check fails"},
		{"help", exitOK, "3  explain --exit-code: a check of the worker fails"},
		{"completion bash", exitOK, "bash completion V2 for loadplane"},
		{"completion zsh", exitOK, "#compdef loadplane"},
		{"completion fish", exitOK, "fish completion for loadplane"},
		{"completion powershell", exitOK, "Register-ArgumentCompleter"},
		{"completion csh", exitOK, "Available Commands"},
		{"snapshot --server=127.0.0.1:7400", exitUsage, "--server: want http://HOST:PORT"},
		{"snapshot --server=http://u:" + canary + "@h:1", exitUsage, "--server: want http://HOST:PORT"},
		{"snapshot --timeout=0s", exitUsage, "--timeout"},
		{"snapshot --token-file=/does/not/exist", exitUsage, "--token-file"},
		{"snapshot --ca=" + token, exitUsage, "holds no PEM certificate"},
		{"snapshot --cert=" + token + " --key=" + token, exitUsage, "--cert, --key"},
		{"serve --config=" + token, exitUsage, "not a mapping"},
		{"check-config --worker=http://u:" + canary + "@h:1", exitUsage, "REDACTED"},
		{"snapshot --server=http://127.0.0.1:1", exitFailure, "is loadplane serving there? Start it with: loadplane serve"},
		{"workers list --server=http://127.0.0.1:1", exitFailure, "is loadplane serving there?"},
		{"watch --server=http://127.0.0.1:1", exitFailure, "is loadplane serving there?"},
	}
	for _, test := range tests {
		t.Run(test.args, func(t *testing.T) {
			code, out, err := run(t, strings.Fields(test.args)...)
			if code != test.code || !strings.Contains(out+err, test.out) {
				t.Errorf("exit %d, want %d with %q\n%s\n%s", code, test.code, test.out, out, err)
			}
			if strings.Contains(out+err, canary) {
				t.Errorf("a secret is shown:\n%s\n%s", out, err)
			}
		})
	}
}

func TestUnknownVariableRefuses(t *testing.T) {
	for _, cmd := range []string{"serve", "demo", "check-config"} {
		c := start(t, []string{"LOADPLANE_API_TOKEN=" + canary}, cmd)
		if code := c.wait(t); code != exitUsage || !strings.Contains(c.err.String(), `"LOADPLANE_API_TOKEN"`) {
			t.Errorf("%s: exit %d: %s", cmd, code, c.err)
		}
		if strings.Contains(c.err.String(), canary) {
			t.Errorf("%s shows a secret: %s", cmd, c.err)
		}
	}
}

func TestCheckConfigPrintsWhatServeReads(t *testing.T) {
	token := writeFile(t, "token", canary+"\n")
	workers := writeFile(t, "workers.yaml", "workers:\n  - url: http://10.0.0.1:30000\n")
	code, out, err := run(t, "check-config", "--lease=20s", "--api-token-file="+token, "--workers-file="+workers,
		"--worker=http://10.0.0.2:30000,role=prefill", "--insecure-allow-plaintext=api,ops")
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, err)
	}
	if strings.Contains(out+err, canary) {
		t.Errorf("the token is shown:\n%s", out)
	}
	want := config.Default()
	want.Lease, want.APITokenFile, want.WorkersFile = 20e9, token, workers
	want.Worker, want.InsecureAllowPlaintext = []string{"http://10.0.0.2:30000,role=prefill"}, []string{"api", "ops"}
	got, loadErr := config.Load(nil, []string{"LOADPLANE_CONFIG=" + writeFile(t, "c.yaml", out)})
	got.TrustedProxy, got.DNS, got.DNSServer, got.KubernetesNamespaces = nil, nil, nil, nil // Empty, not nil.
	got.KubernetesServices, got.EgressAllow = nil, nil
	if loadErr != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("error %v\ngot  %+v\nwant %+v", loadErr, got, want)
	}
}

func TestCheckConfigReadsTheWorkersFile(t *testing.T) {
	path := writeFile(t, "workers.yaml", "workers:\n  - uri: http://10.0.0.1:30000\n")
	if code, _, err := run(t, "check-config", "--workers-file="+path); code != exitUsage || !strings.Contains(err, "uri") {
		t.Errorf("exit %d: %s", code, err)
	}
}

// A selector of two labels without a comma is refused, and not half of it used.
func TestBug49BadSelectorIsAStartError(t *testing.T) {
	for _, cmd := range []string{"check-config", "serve"} {
		code, _, err := run(t, cmd, "--kubernetes", "--kubernetes-selector=a=b c=d")
		if code != exitUsage || !strings.Contains(err, "kubernetes_selector: ") {
			t.Errorf("%s: exit %d: %s", cmd, code, err)
		}
	}
}

func TestRedactURL(t *testing.T) {
	for in, want := range map[string]string{
		"http://user:pass@h:1,role=x": "http://REDACTED@h:1,role=x",
		"https://token@h/":            "https://REDACTED@h/",
		"http://h:1/@x":               "http://h:1/@x",
		"http://h:1":                  "http://h:1",
		`worker "http://u:p@q@h:1"`:   `worker "http://REDACTED@h:1"`,
	} {
		if got := redactURL(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestSimWritesAWorkersFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.yaml")
	sim := start(t, nil, "sim", "--engines=2", "--ranks=1", "--mixed", "--write-workers="+path)
	sim.out.await(soon(t), t, func(s string) bool { return strings.Contains(s, "serve --workers-file "+path) })
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Workers []map[string]string }
	if err := yaml.Unmarshal(content, &list); err != nil || len(list.Workers) != 2 || list.Workers[1]["role"] != "prefill" {
		t.Fatalf("error %v:\n%s", err, content)
	}
	serve := start(t, nil, "serve", "--api-listen=127.0.0.1:0", "--ingest-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0", "--workers-file="+path, "--log-format=json")
	log := serve.err.await(soon(t), t, func(s string) bool { return strings.Contains(s, `"listener":"api"`) })
	api := regexp.MustCompile(`"listener":"api","address":"([^"]+)"`).FindStringSubmatch(log)[1]
	awaitFresh(t, "http://"+api, 2)
	serve.stop()
	sim.stop()
	if a, b := serve.wait(t), sim.wait(t); a != exitOK || b != exitOK {
		t.Errorf("exits %d, %d:\n%s", a, b, serve.err)
	}
}

func TestSimPrintsTheWorkers(t *testing.T) {
	sim := start(t, nil, "sim", "--engines=2", "--kinds=sglang-poll,tgi")
	text := sim.out.await(soon(t), t, func(s string) bool { return strings.HasSuffix(s, "\n") })
	var list struct{ Workers []map[string]string }
	if err := yaml.Unmarshal([]byte(text), &list); err != nil || len(list.Workers) != 2 {
		t.Fatalf("error %v:\n%s", err, text)
	}
	if _, named := list.Workers[1]["role"]; named || list.Workers[0]["role"] != "plain" || list.Workers[1]["model"] != "sim-model" {
		t.Errorf("workers %v", list.Workers)
	}
}

func TestSimCannotWrite(t *testing.T) {
	if code, _, err := run(t, "sim", "--engines=1", "--write-workers=/does/not/exist/w.yaml"); code != exitFailure || !strings.Contains(err, "--write-workers") {
		t.Errorf("exit %d: %s", code, err)
	}
}

// awaitFresh watches until n workers are fresh.
func awaitFresh(t *testing.T, server string, n int) {
	t.Helper()
	w := start(t, nil, "watch", "--server="+server)
	pattern := regexp.MustCompile(`fresh=` + strconv.Itoa(n) + `\b`)
	w.out.await(soon(t), t, pattern.MatchString)
	w.stop()
	if code := w.wait(t); code != exitOK {
		t.Errorf("an interrupted watch exits with %d: %s", code, w.err)
	}
}
