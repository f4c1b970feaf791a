package main

import (
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestSimRegistersNativeEngines has a plane that was told of no worker.
func TestSimRegistersNativeEngines(t *testing.T) {
	serve := start(t, nil, "serve", "--api-listen=127.0.0.1:0", "--ingest-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0", "--log-format=json")
	log := serve.err.await(soon(t), t, func(s string) bool {
		return strings.Contains(s, `"listener":"api"`) && strings.Contains(s, `"listener":"ingest"`)
	})
	address := func(listener string) string {
		return "http://" + regexp.MustCompile(`"listener":"` + listener + `","address":"([^"]+)"`).FindStringSubmatch(log)[1]
	}
	sim := start(t, nil, "sim", "--engines=3", "--kinds=native,vllm,native", "--plane="+address("ingest"))
	text := sim.out.await(soon(t), t, func(s string) bool { return strings.Count(s, "registers itself\n") == 2 })
	var list struct{ Workers []map[string]string }
	if err := yaml.Unmarshal([]byte(text), &list); err != nil || len(list.Workers) != 1 || len(regexp.MustCompile(`(?m)^# http://127\.0\.0\.1:\d+ registers itself$`).FindAllString(text, -1)) != 2 {
		t.Errorf("error %v:\n%s", err, text)
	}
	awaitFresh(t, address("api"), 2)
	code, out, _ := run(t, "workers", "list", "--server="+address("api"))
	if code != exitOK || strings.Count(out, " native ") != 2 || strings.Count(out, " sim 1.0.0 ") != 2 {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

func TestSimOfNativeEnginesNeedsAPlane(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"--kinds=vllm,native", "needs a plane"},
		{"--kinds=native --plane=127.0.0.1:7401", "--plane"},
		{"--kinds=native --plane=ftp://127.0.0.1", "--plane"},
		{"--kinds=native --plane=http://", "--plane"},
		{"--kinds=native --plane=http://127.0.0.1:7401/v1", "--plane"},
		{"--kinds=nativ", "known are sglang, sglang-monitor"},
		{"--fault=rerank", "ranks must be"},
	} {
		if code, _, err := run(t, append([]string{"sim", "--engines=2"}, strings.Fields(tt.args)...)...); code != exitUsage || !strings.Contains(err, tt.want) {
			t.Errorf("%s: exit %d: %s", tt.args, code, err)
		}
	}
}

// TestSimMixedWithoutAPlane leaves the native kind out.
func TestSimMixedWithoutAPlane(t *testing.T) {
	sim := start(t, nil, "sim", "--mixed", "--ranks=2")
	text := sim.out.await(soon(t), t, func(s string) bool { return strings.Count(s, "- url: ") == 11 })
	if strings.Contains(text, "registers itself") {
		t.Errorf("a native engine has nowhere to register:\n%s", text)
	}
}
