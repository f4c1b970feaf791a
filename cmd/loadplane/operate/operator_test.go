package operate

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/service/admin"
	"github.com/spf13/pflag"
)

// desk answers each request with its path and an id, or refuses.
func desk(t *testing.T, answer string, status int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer))
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(ln) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return path
}

func TestSocketIsThatOfTheSetting(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("admin_socket: /of/file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inFile, inEnv := "LOADPLANE_CONFIG="+file, "LOADPLANE_ADMIN_SOCKET=/of/env"
	for _, c := range []struct {
		given   string
		environ []string
		want    string
	}{
		{"/given", []string{inFile, inEnv, "LOADPLANE_BOGUS=1"}, "/given"}, {"", []string{inFile, inEnv}, "/of/env"}, {"", []string{inFile}, "/of/file"},
		{"", nil, "give --socket PATH or LOADPLANE_ADMIN_SOCKET"}, {"", []string{"LOADPLANE_BOGUS=1"}, "LOADPLANE_BOGUS"},
	} {
		o, err := SocketFlags{c.given, time.Second}.Connect(c.environ)
		if err == nil {
			err = o.Remove(t.Context(), &bytes.Buffer{}, "a") // There is no such socket, which names it.
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q with %v: error %v, want %q", c.given, c.environ, err, c.want)
		}
	}
}

func TestOperatorWritesWhatBecameOfIt(t *testing.T) {
	for _, c := range []struct {
		answer string
		status int
		do     func(*Operator, *bytes.Buffer) error
		want   string
	}{
		{`{"worker_id":"a","discovered_by":"file+admin"}`, 200, func(o *Operator, b *bytes.Buffer) error { return o.Add(t.Context(), b, "http://a:1") }, "worker a added, listed by file+admin"},
		{`{"worker_id":"a"}`, 200, func(o *Operator, b *bytes.Buffer) error { return o.Add(t.Context(), b, "http://a:1") }, "worker a added, not listed yet; see: "},
		{`{"worker_id":"a\u001b[31m"}`, 200, func(o *Operator, b *bytes.Buffer) error { return o.Remove(t.Context(), b, "a") }, "worker a?[31m removed"},
		{`{"worker_id":"a"}`, 200, func(o *Operator, b *bytes.Buffer) error { return o.Drain(t.Context(), b, "a", true) }, "worker a drains"},
		{`{"worker_id":"a"}`, 200, func(o *Operator, b *bytes.Buffer) error { return o.Drain(t.Context(), b, "a", false) }, "worker a takes new work again"},
		{`{"error":"there is no worker a","advice":"do that"}`, 404, func(o *Operator, b *bytes.Buffer) error { return o.Drain(t.Context(), b, "a", true) }, "there is no worker a; do that"},
	} {
		var b bytes.Buffer
		text := ""
		if err := c.do(&Operator{admin.NewClient(desk(t, c.answer, c.status)), 10 * time.Second}, &b); err != nil {
			text = err.Error()
		}
		if text += b.String(); !strings.HasPrefix(text, c.want) {
			t.Errorf("%q, want %q", text, c.want)
		}
	}
}

// TestSocketMayBeCalledAsServeCallsIt: who copies the flag of serve is served.
func TestSocketMayBeCalledAsServeCallsIt(t *testing.T) {
	for _, name := range []string{"--socket", "--admin-socket"} {
		var f SocketFlags
		fs := pflag.NewFlagSet("add", pflag.ContinueOnError)
		f.Register(fs)
		if err := fs.Parse([]string{name, "/there"}); err != nil || f.path != "/there" {
			t.Errorf("%s: path %q, error %v", name, f.path, err)
		}
	}
}
