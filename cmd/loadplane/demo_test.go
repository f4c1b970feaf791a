package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/sim"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

func startDemo(t *testing.T, args ...string) (demo *command, api, ops string) {
	t.Helper()
	args = append([]string{"demo", "--api-listen=127.0.0.1:0", "--ingest-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0"}, args...)
	demo = start(t, nil, args...)
	text := demo.out.await(soon(t), t, func(s string) bool { return strings.Contains(s, "Ctrl-C") })
	find := func(pattern string) string { return regexp.MustCompile(pattern).FindStringSubmatch(text)[1] }
	return demo, find(`page +(http\S+)/`), find(`metrics +(http\S+)/metrics`)
}

func TestDemoAndItsClients(t *testing.T) {
	demo, api, ops := startDemo(t, "--engines=3", "--ranks=2", "--mixed", "--kinds=sglang")
	awaitFresh(t, api, 3)

	t.Run("block", func(t *testing.T) {
		text := demo.out.String()
		requireWidth(t, text)
		for _, want := range []string{
			"loadplane demo: 3 engines x 2 ranks\n\n  kinds    3 sglang\n  page", "curl -s " + api + "/v1/load_monitor/snapshot", "curl -s -N " + api + "/v1/load_monitor/watch",
			"curl -s " + ops + "/metrics", "curl -s " + ops + "/readyz", "bin/loadplane watch --server " + api,
			"bin/loadplane top --server " + api + "\n", "bin/loadplane workers list --server " + api, "bin/loadplane explain --server " + api + " 127.0.0.1:",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("it lacks %q:\n%s", want, text)
			}
		}
	})
	t.Run("links", func(t *testing.T) {
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		hc := &http.Client{Transport: transport}
		for _, url := range []string{api + "/", api + "/v1/load_monitor/snapshot", ops + "/metrics", ops + "/readyz"} {
			resp, err := hc.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", url, resp.Status)
			}
			_ = resp.Body.Close()
		}
	})
	t.Run("snapshot", func(t *testing.T) {
		code, out, err := run(t, "snapshot", "--server="+api)
		if code != exitOK || !strings.Contains(out, "3 workers: fresh=3 stale=0 missing=0 unreachable=0") || len(strings.Split(out, "\n")) != 6 {
			t.Errorf("exit %d: %s\n%s", code, err, out)
		}
		if !regexp.MustCompile(`(?m)^127\.0\.0\.1:\d+ +prefill +fresh +2 +\d+ +\d+ +\d+% +\d+m?s$`).MatchString(out) {
			t.Errorf("no line for the prefill engine:\n%s", out)
		}
		requireWidth(t, out)
	})
	t.Run("snapshot wide", func(t *testing.T) {
		code, out, _ := run(t, "snapshot", "--server="+api, "-o", "wide")
		if code != exitOK || !strings.Contains(out, "SOURCE") || !strings.Contains(out, "sim-model") || !strings.Contains(out, "push") {
			t.Errorf("exit %d:\n%s", code, out)
		}
	})
	t.Run("snapshot json", func(t *testing.T) {
		_, out, _ := run(t, "snapshot", "--server="+api, "-o", "json")
		requireWorkers(t, json.Unmarshal, out)
	})
	t.Run("snapshot yaml", func(t *testing.T) {
		_, out, _ := run(t, "snapshot", "--server="+api, "-o", "yaml")
		requireWorkers(t, yaml.Unmarshal, out)
		if strings.Contains(out, "{\"") {
			t.Errorf("YAML in flow style:\n%s", out)
		}
	})
	t.Run("workers", func(t *testing.T) {
		code, out, err := run(t, "workers", "list", "--server="+api)
		if code != exitOK || strings.Count(out, " push ") != 3 || strings.Count(out, " sglang 0.5.18 ") != 3 {
			t.Errorf("exit %d: %s\n%s", code, err, out)
		}
		requireWidth(t, out)
		_, out, _ = run(t, "workers", "list", "--server="+api, "-o", "wide")
		if !strings.Contains(out, "PEER") || strings.Count(out, " 200 ") != 3 || strings.Count(out, " registered ") != 3 || strings.Count(out, " flag ") != 3 {
			t.Errorf("wide:\n%s", out)
		}
	})
	t.Run("workers wide on a terminal", func(t *testing.T) {
		var out, errs bytes.Buffer
		a := &app{out: &out, err: &errs, columns: 80}
		if code := a.run(soon(t), []string{"workers", "list", "--server=" + api, "-o", "wide"}); code != exitOK || !strings.Contains(out.String(), "no room for WHY") {
			t.Errorf("exit %d: %s\n%s", code, errs.String(), out.String())
		}
		requireWidth(t, out.String())
	})
	t.Run("wrong port", func(t *testing.T) {
		code, _, err := run(t, "snapshot", "--server="+ops)
		if code != exitFailure || !strings.Contains(err, "is not the API of a plane") {
			t.Errorf("exit %d: %s", code, err)
		}
	})
	t.Run("TLS to plaintext", func(t *testing.T) {
		code, _, err := run(t, "snapshot", "--server="+strings.Replace(api, "http:", "https:", 1))
		if code != exitFailure || !strings.Contains(err, "does not speak TLS") {
			t.Errorf("exit %d: %s", code, err)
		}
	})
	t.Run("taken port", func(t *testing.T) {
		code, _, err := run(t, "demo", "--engines=1", "--api-listen="+strings.TrimPrefix(api, "http://"), "--ingest-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0")
		if code != exitUsage || !strings.Contains(err, "--api-listen") || !strings.Contains(err, "in use") {
			t.Errorf("exit %d: %s", code, err)
		}
	})
	t.Run("watch until the plane stops", func(t *testing.T) {
		table, lines := start(t, nil, "watch", "--server="+api), start(t, nil, "watch", "--server="+api, "-o", "json")
		table.out.await(soon(t), t, regexp.MustCompile(`v\d+ +delta +fresh=3 changed=\d`).MatchString)
		lines.out.await(soon(t), t, func(s string) bool { return strings.Contains(s, "\n") })
		demo.stop()
		for _, w := range []*command{table, lines} {
			if code := w.wait(t); code != exitFailure || !strings.Contains(w.err.String(), "ended the watch: ") || !strings.Contains(w.err.String(), "shutting down") {
				t.Errorf("exit %d: %s", code, w.err)
			}
		}
		requireWidth(t, table.out.String())
		if !strings.Contains(table.out.String(), " go_away   come back within 2000ms: draining: ") || !strings.Contains(lines.out.String(), `"goAway":`) {
			t.Errorf("the plane's leave is not shown:\n%s", table.out)
		}
		for line := range strings.Lines(lines.out.String()) {
			if !json.Valid([]byte(line)) {
				t.Errorf("no JSON: %s", line)
			}
		}
		if code := demo.wait(t); code != exitOK {
			t.Errorf("demo exits with %d:\n%s", code, demo.err)
		}
	})
}

func requireWorkers(t *testing.T, unmarshal func([]byte, any) error, out string) {
	t.Helper()
	var doc struct {
		Snapshot struct {
			Full struct{ Workers []map[string]any }
		}
	}
	if err := unmarshal([]byte(out), &doc); err != nil || len(doc.Snapshot.Full.Workers) != 3 {
		t.Fatalf("error %v:\n%s", err, out)
	}
	for _, w := range doc.Snapshot.Full.Workers {
		if w["freshness"] != "FRESHNESS_FRESH" {
			t.Errorf("a worker is %v", w["freshness"])
		}
	}
}

func TestFleetText(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"--engines=8", "8 engines x 4 ranks\n\n  kinds    8 sglang\n"},
		{"--engines=5 --mixed", "5 engines x 4 ranks\n\n  kinds    1 sglang, 1 sglang-monitor, 1 sglang-loadstat, 1 vllm, 1 native\n"},
		{"--mixed --ranks=1", "11 engines x 1 rank\n\n  kinds    2 sglang, 1 sglang-monitor, 1 sglang-loadstat, 1 sglang-poll, 1 vllm,\n           1 tgi, 1 llamacpp, 1 trtllm, 1 triton, 1 native\n"},
		{"--mixed --kinds=native", "8 engines x 4 ranks\n\n  kinds    8 native\n"},
		{"--engines=1 --ranks=2", "1 engine x 2 ranks\n\n  kinds    1 sglang\n"},
		{"--engines=3 --kinds=vllm,tgi", "3 engines x 4 ranks\n\n  kinds    2 vllm, 1 tgi\n"},
	} {
		var f fleetFlags
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.register(fs)
		if err := fs.Parse(strings.Fields(tt.args)); err != nil {
			t.Fatal(err)
		}
		opts, err := f.options()
		if err != nil {
			t.Fatal(err)
		}
		opts.Plane = func() string { return "" }
		fleet, err := sim.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		if got := fleetText(opts, fleet); got != tt.want {
			t.Errorf("%s gives %q, want %q", tt.args, got, tt.want)
		}
		discard(fleet)
	}
}

// TestDemoOfAllKinds expects every kind in one view, each in its dialect.
func TestDemoOfAllKinds(t *testing.T) {
	_, api, _ := startDemo(t, "--ranks=2", "--mixed", "--report-interval=500ms")
	awaitFresh(t, api, 11)
	got := listedKinds(t, api)
	for _, kind := range []string{
		"sglang 0.5.18 push", "sglang 0.5.18 push", "sglang 0.5.18 monitor", "sglang 0.5.19 loadstat", "sglang 0.5.15 poll",
		"vllm 0.26.0 poll", "tgi 3.3.6 poll", "llama.cpp b8681-sim poll", "tensorrt-llm 1.3.0 poll", "sim 1.0.0 native",
	} {
		i := slices.Index(got, kind)
		if i < 0 {
			t.Fatalf("%s is not listed in %q", kind, got)
		}
		got = slices.Delete(got, i, i+1)
	}
	if len(got) != 1 || !strings.HasSuffix(got[0], " poll") {
		t.Errorf("the last one, Triton, is %q", got)
	}
	code, out, _ := run(t, "snapshot", "--server="+api)
	if code != exitOK || strings.Count(out, " prefill ") != 2 || strings.Count(out, " decode ") != 2 || !regexp.MustCompile(` 1 +\d+ +\d+ +- +\d`).MatchString(out) {
		t.Errorf("exit %d, or no unknown use of a KV cache:\n%s", code, out)
	}
	requireWidth(t, out)
	code, out, _ = run(t, "workers", "list", "--server="+api)
	for dialect, n := range map[string]int{"push": 2, "monitor": 1, "loadstat": 1, "poll": 6, "native": 1} {
		if code != exitOK || strings.Count(out, " "+dialect+" ") != n {
			t.Errorf("exit %d, not %d with %s:\n%s", code, n, dialect, out)
		}
	}
	requireWidth(t, out)
}

// listedKinds returns engine, version and dialect of each worker.
func listedKinds(t *testing.T, api string) (kinds []string) {
	t.Helper()
	code, out, err := run(t, "workers", "list", "--server="+api, "-o", "json")
	var list struct {
		Workers []struct {
			Engine, EngineVersion, DialectWhy string
			Worker                            struct{ Dialect string }
		}
	}
	if bad := json.Unmarshal([]byte(out), &list); bad != nil || code != exitOK || len(list.Workers) != 11 {
		t.Fatalf("exit %d: %s: %v\n%s", code, err, bad, out)
	}
	for _, w := range list.Workers {
		kinds = append(kinds, w.Engine+" "+w.EngineVersion+" "+strings.ToLower(strings.TrimPrefix(w.Worker.Dialect, "DIALECT_")))
		if w.DialectWhy == "" {
			t.Errorf("%s: it is not said why", kinds[len(kinds)-1])
		}
	}
	return kinds
}

// TestDemoSurvivesARestartOfAllKinds watches until each engine whose pages or
// reports tell its lives apart is fresh in a later one than its first.
func TestDemoSurvivesARestartOfAllKinds(t *testing.T) {
	_, api, _ := startDemo(t, "--engines=8", "--ranks=2", "--report-interval=200ms", "--fault=restart:after=3s,every=5s",
		"--kinds=sglang,sglang-monitor,sglang-loadstat,native,vllm,tgi,llamacpp,trtllm")
	w := start(t, nil, "watch", "--server="+api, "-o", "json")
	w.out.await(soon(t), t, func(text string) bool { return reborn(t, text) == 8 })
}

// TestDemoSurvivesARerank restarts the kinds that have ranks with half of them.
func TestDemoSurvivesARerank(t *testing.T) {
	_, api, _ := startDemo(t, "--engines=6", "--ranks=8", "--report-interval=200ms", "--fault=rerank:after=4s,ranks=4",
		"--kinds=sglang,sglang-monitor,sglang-loadstat,native,vllm,sglang-poll")
	w := start(t, nil, "watch", "--server="+api, "-o", "json")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w.out.await(ctx, t, func(text string) bool { return withRanks(t, text, 4) == 6 })
}

// watched is a worker as a watch has it.
type watched struct {
	WorkerID, SourceInstanceID, Freshness string
	Ranks                                 []struct{}
}

// eachWatched calls f with the workers of the whole lines of a watch.
func eachWatched(t *testing.T, text string, f func(w watched)) {
	t.Helper()
	for line := range strings.Lines(text) {
		var m struct{ Full, Delta struct{ Workers []watched } }
		if !strings.HasSuffix(line, "\n") {
			break
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err, line)
		}
		for _, w := range append(m.Full.Workers, m.Delta.Workers...) {
			f(w)
		}
	}
}

// withRanks counts the workers that are fresh with a number of ranks.
func withRanks(t *testing.T, text string, ranks int) (n int) {
	t.Helper()
	last := map[string]bool{}
	eachWatched(t, text, func(w watched) { last[w.WorkerID] = w.Freshness == "FRESHNESS_FRESH" && len(w.Ranks) == ranks })
	for _, ok := range last {
		if ok {
			n++
		}
	}
	return n
}

// reborn counts the workers that are fresh in a later life than their first.
func reborn(t *testing.T, text string) (n int) {
	t.Helper()
	lives := map[string][]string{}
	fresh := map[string]bool{}
	eachWatched(t, text, func(w watched) {
		if w.SourceInstanceID != "" && !slices.Contains(lives[w.WorkerID], w.SourceInstanceID) {
			lives[w.WorkerID] = append(lives[w.WorkerID], w.SourceInstanceID)
		}
		fresh[w.WorkerID] = w.Freshness == "FRESHNESS_FRESH"
	})
	for id := range lives {
		if fresh[id] && len(lives[id]) > 1 {
			n++
		}
	}
	return n
}

func TestDemoWithAToken(t *testing.T) {
	token, wrong := writeFile(t, "token", canary+"\n"), writeFile(t, "wrong", "x")
	demo, api, _ := startDemo(t, "--engines=1", "--ranks=1", "--api-token-file="+token, "--log-level=debug")
	for _, c := range []struct {
		flags []string
		code  int
		want  string
	}{
		{nil, exitFailure, "give the token with --token-file"},
		{[]string{"--token-file=" + wrong}, exitFailure, "does not accept the token in " + wrong},
		{[]string{"--token-file=" + token}, exitOK, "version "},
	} {
		code, out, err := run(t, append([]string{"snapshot", "--server=" + api}, c.flags...)...)
		if code != c.code || !strings.Contains(out+err, c.want) {
			t.Errorf("%v: exit %d: %s%s", c.flags, code, out, err)
		}
		if strings.Contains(out+err, canary) {
			t.Errorf("%v: the token is shown", c.flags)
		}
	}
	if !strings.Contains(demo.out.String(), "--token-file "+token) || !strings.Contains(demo.out.String(), "Authorization: Bearer $(cat "+token) {
		t.Errorf("the block does not use the token:\n%s", demo.out)
	}
	demo.stop()
	if code := demo.wait(t); code != exitOK {
		t.Errorf("exit %d", code)
	}
	if strings.Contains(demo.out.String()+demo.err.String(), canary) {
		t.Error("the token is in the log")
	}
}
