package main

import (
	"encoding/json"
	"net"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// serveNobody runs a plane whose one worker refuses connections, and returns the
// URL of its API once the plane has found that out, and the worker.
func serveNobody(t *testing.T) (server, worker string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	worker = "http://" + l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	serve := start(t, nil, "serve", "--api-listen=127.0.0.1:0", "--ingest-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0",
		"--worker="+worker+",dialect=poll,model=qwen3", "--log-format=json")
	log := serve.err.await(soon(t), t, func(s string) bool { return strings.Contains(s, `"listener":"api"`) })
	server = "http://" + regexp.MustCompile(`"listener":"api","address":"([^"]+)"`).FindStringSubmatch(log)[1]
	for ctx := soon(t); ctx.Err() == nil; {
		if _, out, _ := run(t, "explain", worker, "--server="+server); strings.Contains(out, "connect_failed") {
			return server, worker
		}
		<-time.After(20 * time.Millisecond)
	}
	t.Fatalf("the plane does not find out that nobody is there:\n%s", serve.err)
	return "", ""
}

func TestExplain(t *testing.T) {
	server, worker := serveNobody(t)
	explain := func(args ...string) (int, string, string) {
		return run(t, append([]string{"explain", "--server=" + server}, args...)...)
	}
	t.Run("table", func(t *testing.T) {
		code, out, err := explain(worker)
		requireWidth(t, out)
		if code != exitOK || err != "" {
			t.Errorf("exit %d: %s", code, err)
		}
		for _, want := range []string{
			`(?m)^worker   ` + worker + `$`, `(?m)^state    missing \(`, `(?m)^serves   qwen3, role plain$`,
			`(?m)^summary  Missing, .*; registration:`, `(?m)^OK   discovered_by flag$`, `(?m)^OK   dialect       poll \(configured\)$`,
			`(?m)^FAIL registration `, `(?m)^ +reason: connect_failed$`, `(?m)^ +-> start the engine, or correct`,
			`(?m)^ *\d+m?s x?\d* +call failed connect_failed: `, `(?m)^ *\d+m?s +discovered: flag$`,
		} {
			if !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("it lacks %s:\n%s", want, out)
			}
		}
	})
	t.Run("exit code", func(t *testing.T) {
		code, out, err := explain(worker, "--exit-code")
		if code != exitFailing || !strings.Contains(out, "FAIL") || err != "loadplane: a check of the worker fails\n" {
			t.Errorf("exit %d: %s\n%s", code, err, out)
		}
	})
	for format, read := range map[string]func([]byte, any) error{"json": json.Unmarshal, "yaml": yaml.Unmarshal} {
		t.Run(format, func(t *testing.T) {
			_, out, _ := explain(worker, "-o", format)
			var doc struct {
				Summary string
				Checks  []map[string]any
			}
			if err := read([]byte(out), &doc); err != nil || doc.Summary == "" || len(doc.Checks) < 10 {
				t.Errorf("error %v:\n%s", err, out)
			}
		})
	}
	t.Run("as the table of workers shows it", func(t *testing.T) {
		if code, _, err := explain(strings.TrimPrefix(worker, "http://")); code != exitOK {
			t.Errorf("exit %d: %s", code, err)
		}
	})
	t.Run("unknown", func(t *testing.T) {
		code, _, err := explain(worker + "0")
		if code != exitFailure || !strings.Contains(err, `there are: "`+worker+`"; all: loadplane workers list`) {
			t.Errorf("exit %d: %s", code, err)
		}
	})
	t.Run("completion", func(t *testing.T) {
		code, out, _ := run(t, "__complete", "explain", "--server="+server, "")
		if code != exitOK || out != worker+"\n:4\n" {
			t.Errorf("exit %d: %q", code, out)
		}
		if _, out, _ = run(t, "__complete", "explain", "--server="+server, worker, ""); out != ":4\n" {
			t.Errorf("a second worker is completed: %q", out)
		}
	})
	t.Run("watch", func(t *testing.T) {
		w := start(t, nil, "watch", "--server="+server, "-o", "wide")
		w.out.await(soon(t), t, func(s string) bool {
			return strings.Contains(s, "full      fresh=0 missing=1 changed=1") && strings.Contains(s, worker)
		})
		w.stop()
		if code := w.wait(t); code != exitOK {
			t.Errorf("exit %d: %s", code, w.err)
		}
	})
}

// TestCompletionIsSilent says nothing where the plane cannot be asked.
func TestCompletionIsSilent(t *testing.T) {
	for _, server := range []string{"http://127.0.0.1:1", "no URL"} {
		code, out, err := run(t, "__complete", "explain", "--server="+server, "")
		if code != exitOK || out != ":4\n" || strings.Contains(err, "127.0.0.1") {
			t.Errorf("%s: exit %d: %q, %q", server, code, out, err)
		}
	}
}

// TestCompletionOfFormats offers what a command can write.
func TestCompletionOfFormats(t *testing.T) {
	for args, want := range map[string]string{
		"snapshot": "table\nwide\njson\nyaml\n:4\n", "explain": "table\njson\nyaml\n:4\n", "pick": "table\njson\n:4\n",
	} {
		if _, out, _ := run(t, "__complete", args, "--output", ""); out != want {
			t.Errorf("%s: %q", args, out)
		}
	}
}

// TestCompletionOfWords offers the words that a flag takes.
func TestCompletionOfWords(t *testing.T) {
	for args, want := range map[string]string{
		"top --sort": "name\nstate\n", "top --role": "plain\nprefill\ndecode\n:4\n",
		"sim --kinds": "sglang\n", "demo --fault": "restart\nrerank\n",
	} {
		if _, out, _ := run(t, append(strings.Fields("__complete "+args), "")...); !strings.HasPrefix(out, want) || !strings.HasSuffix(out, "\n:4\n") {
			t.Errorf("%s: %q", args, out)
		}
	}
}

// TestExplainOfAnotherServer says what is wrong with one that is no plane.
func TestExplainOfAnotherServer(t *testing.T) {
	s := httptest.NewServer(nil)
	defer s.Close()
	code, _, err := run(t, "explain", "a", "--server="+s.URL)
	if code != exitFailure || !strings.Contains(err, "is not the API of a plane") {
		t.Errorf("exit %d: %s", code, err)
	}
}
