package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain lets the test binary be the children too.
func TestMain(m *testing.M) {
	if isChild(os.Args[1:]) {
		os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// A short run of all parts, with profiles: every part measures something, and
// the table and the lines agree on what.
func TestShort(t *testing.T) {
	dir := t.TempDir()
	lines := filepath.Join(dir, "bench.jsonl")
	var table, log bytes.Buffer
	if code := command([]string{"-short", "-json", lines, "-cpuprofile", dir}, &table, &log); code != 0 {
		t.Fatalf("exit code %d: %s", code, log.String())
	}
	for _, want := range []string{
		"plane / stock", "plane / tuned", "plane / proto.Marshal", "p99.9 ms", "heap bytes a worker",
		"an idle connection with a stream", "an idle watcher", "A SHORT RUN",
		"CPU of line-saturated-plane-2-ranks.pprof", "CPU of latency-plane.pprof", "CPU of poll-paced-plane.pprof",
		"prometheus/common / plane, pushed", "plane, polled / transfer", "some slow / none slow", "off the interval p99 ms",
		"loadreporter / bare loop, sent", "loadreporter / bare loop, ticks", "10 kHz / nothing", "never read / nothing", "giant frames / nothing",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q", want)
		}
	}
	for _, rec := range readRecords(t, lines) {
		for name, v := range rec.Values {
			if v < 0 && rec.Part != "memory" {
				t.Errorf("%s, %s, %s: %s is %v", rec.Part, rec.Case, rec.Of, name, v)
			}
		}
		if v, ok := rec.Values["reports/s"]; ok && v == 0 {
			t.Errorf("%s of %s: no reports", rec.Case, rec.Of)
		}
	}
	wantPolls(t, readRecords(t, lines))
	wantReporter(t, readRecords(t, lines))
	wantFlood(t, readRecords(t, lines))
	t.Log(table.String())
}

// wantPolls checks what the parts that poll measured, at toy size: each way of
// polling got whole pages, and of the engines of part slow those that
// answer were polled.
func wantPolls(t *testing.T, records []measurement) {
	t.Helper()
	answering := map[string]float64{"some slow": 6, "none slow": 10}
	seen := map[string]int{}
	for _, rec := range records {
		switch rec.Part {
		case "poll":
			seen[rec.Of]++
			if !strings.HasSuffix(rec.Of, "pushed") && rec.Values["bytes a page"] < 40_000 {
				t.Errorf("%s of %s: a page of %g bytes", rec.Case, rec.Of, rec.Values["bytes a page"])
			}
		case "slow":
			seen[rec.Of]++
			if got, want := rec.Values["engines that answer"], answering[rec.Of]; got != want || rec.Values["sockets"] < want {
				t.Errorf("%s: %g engines and %g sockets, want %g and no fewer", rec.Of, got, rec.Values["sockets"], want)
			}
		}
	}
	for of, want := range map[string]int{
		"plane, polled": 2, "plane, pushed": 2, "stock, pushed": 2, "prometheus/common": 2, "transfer": 2, "some slow": 1, "none slow": 1,
	} {
		if seen[of] != want {
			t.Errorf("%d measurements of %q, want %d", seen[of], of, want)
		}
	}
}

// wantReporter checks that the load reporter was there and reported what it
// should, at toy size.
func wantReporter(t *testing.T, records []measurement) {
	t.Helper()
	cases := 0
	for _, rec := range records {
		switch rec.Part {
		case "reporter":
			cases++
			v := rec.Values
			if v["reports/s"] == 0 || v["reports/s"] > 150 || v["resident MiB"] < 1 || v["peak resident MiB"] < v["resident MiB"] {
				t.Errorf("%s: %v", rec.Case, v)
			}
			if strings.Contains(rec.Case, "vllm") && v["bytes of /metrics"] < 90_000 {
				t.Errorf("%s: a page of %g bytes", rec.Case, v["bytes of /metrics"])
			}
		case "cadence":
			if rec.Values["intervals"] < 1 {
				t.Errorf("%s of %s: %v", rec.Case, rec.Of, rec.Values)
			}
		}
	}
	if cases != len(reported) {
		t.Errorf("%d cases of the load reporter, want %d", cases, len(reported))
	}
}

// wantFlood checks that each of those that flood did so, and that the others
// were all heard.
func wantFlood(t *testing.T, records []measurement) {
	t.Helper()
	speak := map[string][]string{
		"nothing": nil, "never read": {"native"}, "10 kHz": {"monitor", "loadstat", "native"}, "giant frames": {"monitor", "loadstat", "native"},
	}
	for _, rec := range records {
		if rec.Part != "flood" {
			continue
		}
		dialects, ok := speak[rec.Of]
		if !ok || rec.Values["engines seen"] != 5 || rec.Values["intervals"] < 1 {
			t.Errorf("%s: %v", rec.Of, rec.Values)
		}
		for _, d := range dialects {
			if rec.Values["frames sent, "+d] == 0 {
				t.Errorf("%s: the engine of dialect %s sent nothing", rec.Of, d)
			}
		}
		if rec.Of != "nothing" && rec.Values["connections made"] < 3 {
			t.Errorf("%s: %v connections", rec.Of, rec.Values["connections made"])
		}
		delete(speak, rec.Of)
	}
	if len(speak) > 0 {
		t.Errorf("not measured: %v", speak)
	}
}

// measurement is a line as a reader of the file sees it.
type measurement struct {
	Part, Case, Of string
	Values         map[string]float64
}

// readRecords reads a file of measurements behind its first line, and fails
// where a part is missing.
func readRecords(t *testing.T, path string) (records []measurement) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, rest, _ := strings.Cut(string(data), "\n")
	var head struct{ Machine struct{ Cores int } }
	if err := json.Unmarshal([]byte(first), &head); err != nil || head.Machine.Cores == 0 {
		t.Fatalf("the first line does not name the machine: %v in %s", err, first)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(rest) {
		var rec measurement
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		seen[rec.Part] = true
		records = append(records, rec)
	}
	for _, p := range parts {
		if !seen[p.name] {
			t.Errorf("part %s measured nothing", p.name)
		}
	}
	return records
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		code int
	}{
		{"help", []string{"-h"}, 0},
		{"unknown part", []string{"-part", "nothing"}, 2},
		{"unknown flag", []string{"-nothing"}, 2},
		{"unknown child", []string{"child", "nothing"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, log bytes.Buffer
			if code := command(c.args, &out, &log); code != c.code {
				t.Errorf("exit code %d, want %d: %s", code, c.code, log.String())
			}
		})
	}
}
