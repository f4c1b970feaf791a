package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

func TestExitCodes(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	state := t.TempDir() // short enough for a socket
	const engine = "--engine=http://127.0.0.1:1 "
	tests := []struct {
		args string
		code int
		out  string // in either stream
	}{
		{"--help", exitOK, "--push-targets"},
		{"--version", exitOK, "loadreporter "},
		{"", exitUsage, "--engine: the URL of the engine is missing"},
		{"bogus", exitUsage, "unknown command"},
		{"--bogus", exitUsage, "unknown flag"},
		{"--engine=127.0.0.1:1", exitUsage, "--engine: "},
		{"--engine=http://a:1,role=plain", exitUsage, "--engine: want http://HOST:PORT"},
		{"--engine=http://u:p@a:1", exitUsage, "user information is not allowed"},
		{engine + "--advertise=x:1", exitUsage, "--advertise: want http://HOST:PORT"},
		{engine + "--plane=ftp://a", exitUsage, "plane ftp://a: "},
		{engine + "--role=king", exitUsage, "--role: "},
		{engine + "--label=novalue", exitUsage, "--label: "},
		{engine + "--zone=a,b", exitUsage, `--zone: "a,b" has a comma`},
		{engine + "--interval=9ms", exitUsage, "--interval: 9ms is not within 10ms to 1h0m0s"},
		{engine + "--sample-timeout=0s", exitUsage, "--sample-timeout: "},
		{engine + "--stale-after=2h", exitUsage, "--stale-after: "},
		{engine + "--max-running=-1", exitUsage, "--max-running: "},
		{engine + "--max-targets=0", exitUsage, "--max-targets: "},
		{engine + "--push-unknown=guess", exitUsage, `--push-unknown: "guess" is not one of refuse, zero`},
		{engine + "--push-targets=10.0.0.1", exitUsage, `--push-targets: "10.0.0.1" is not a CIDR`},
		{engine + "--token-file=/does/not/exist", exitUsage, "--token-file: "},
		{engine + "--engine-token-file=/does/not/exist", exitUsage, "--engine-token-file: "},
		{engine + "--ca=" + empty, exitUsage, "--ca: "},
		{engine + "--engine-ca=" + empty, exitUsage, "--engine-ca: "},
		{engine + "--listen=7410", exitUsage, "--listen: "},
		{engine + "--listen=127.0.0.1:http", exitUsage, "--listen: "},
		{engine + "--listen=" + ln.Addr().String(), exitUsage, "--listen: "},
		{engine + "--state-dir=/does/not/exist", exitUsage, "--state-dir: state folder: "},
		{engine + "--plane=http://a:7401 --plane=HTTP://A:7401/", exitUsage, `--plane: "http://a:7401" and "HTTP://A:7401/" are one plane`},
		{engine + "--plane=http://a --plane=http://a:80", exitUsage, "are one plane"},
		{engine + "--plane=http://localhost:7401 --plane=http://127.0.0.1:7401", exitUsage, "are one plane"},
		{engine + "--log-level=loud", exitUsage, "--log-level: "},
		{engine + "--log-format=xml", exitUsage, "--log-format: "},
	}
	for _, test := range tests {
		t.Run(test.args, func(t *testing.T) {
			var out bytes.Buffer
			a := &app{out: &out, err: &out}
			args := strings.Fields(test.args)
			if !strings.Contains(test.args, "--state-dir") && test.args != "bogus" {
				args = append(args, "--state-dir="+state)
			}
			// One that is taken for good would run on.
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if code := a.run(ctx, args); code != test.code || !strings.Contains(out.String(), test.out) {
				t.Errorf("exit code %d, want %d with %q:\n%s", code, test.code, test.out, &out)
			}
		})
	}
}

func TestSettings(t *testing.T) {
	s := settings{
		engine: "http://127.0.0.1:30000/", advertise: "https://Engine:443", role: "decode", zone: "z", models: []string{"b", "a"},
		labels: []string{"rack=r1", "row=2"}, interval: time.Second, timeout: time.Second, staleAfter: time.Second,
		maxTargets: 1, unknown: "zero", pushTargets: []string{"10.1.2.3/8"}, listen: "[::1]:0", logLevel: "debug", logFormat: "auto",
	}
	c, err := s.check()
	if err != nil {
		t.Fatal(err)
	}
	a := &c.advertised
	if c.target.URL != "http://127.0.0.1:30000" || c.origin != "https://engine:443" || a.Role != store.RoleDecode || a.Zone != "z" ||
		strings.Join(a.Models, " ") != "a b" || len(a.Labels) != 2 || a.Labels["rack"] != "r1" {
		t.Errorf("%+v", c)
	}
	if len(c.allowed) != 1 || c.allowed[0].String() != "10.0.0.0/8" || c.listensElsewhere {
		t.Errorf("%+v, %t", c.allowed, c.listensElsewhere)
	}
	for listen, elsewhere := range map[string]bool{
		"127.0.0.1:0": false, "localhost:0": false, "[::1]:0": false, ":0": true, "0.0.0.0:0": true, "10.0.0.1:0": true, "host:0": true,
	} {
		s.listen = listen
		if c, err := s.check(); err != nil || c.listensElsewhere != elsewhere {
			t.Errorf("%s: %v, %v", listen, c, err)
		}
	}
}

func TestPlaintextIsSeen(t *testing.T) {
	for url, want := range map[string]bool{
		"http://10.0.0.1:1": true, "HTTP://plane": true, "https://plane": false, "http://127.0.0.1:1": false, "http://localhost": false, "http://[::1]:1": false,
	} {
		if got := plaintext(url); got != want {
			t.Errorf("%s: %t", url, got)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "a\x1b[31m\nb": "a?[31m?b", "\xff": "?", "ééééé": "éééé...", "123456789": "12345678...",
	} {
		if got := printable(in, 8); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
