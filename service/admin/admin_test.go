package admin

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const flagged = "http://127.0.0.1:1"

// plane is a registry with a socket.
type plane struct {
	*Client
	t     *testing.T
	store *store.Store
	path  string
	file  string
}

// startPlane runs a registry that lists flagged and, by its file, what is
// written to it.
func startPlane(t *testing.T, maxWorkers int) *plane {
	t.Helper()
	p := &plane{t: t, path: filepath.Join(t.TempDir(), "s"), file: filepath.Join(t.TempDir(), "w.yaml")}
	if err := os.WriteFile(p.file, []byte("workers: [{url: 'http://127.0.0.1:2', id: filed, draining: true}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	var err error
	if p.store, err = store.New(store.Options{
		Lineage: "l", Epoch: 1, Clock: store.NewClock(), StaleAfter: 3 * time.Second, Settle: time.Millisecond,
		ReportInterval: time.Second, Discovery: true, Logger: log,
	}); err != nil {
		t.Fatal(err)
	}
	reg, err := registry.New(registry.Options{
		Store: p.store, Workers: []string{flagged + ",dialect=none"}, WorkersFile: p.file, ReportInterval: time.Second,
		StaleAfter: 3 * time.Second, Lease: 15 * time.Second, ReportPort: func() uint16 { return 1 },
		MaxWorkers: maxWorkers, Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	server, err := NewServer(Options{Registry: reg, Store: p.store, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := Listen(p.path)
	if err != nil {
		t.Fatal(err)
	}
	p.Client = NewClient(p.path)
	p.run(p.store.Run, reg.Run, func(context.Context) error { return server.Serve(ln) })
	t.Cleanup(func() { _ = server.Close() })
	p.await("the first list", func(list map[string]*store.Worker) bool { return len(list) == 2 })
	return p
}

func (p *plane) run(all ...func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	for _, f := range all {
		done := make(chan struct{})
		go func() { defer close(done); _ = f(ctx) }()
		p.t.Cleanup(func() { <-done })
	}
	p.t.Cleanup(cancel) // First of all.
}

// await waits for a list of workers, by id.
func (p *plane) await(what string, good func(map[string]*store.Worker) bool) {
	p.t.Helper()
	for limit := time.After(20 * time.Second); ; {
		state, stale := p.store.Current()
		list := make(map[string]*store.Worker)
		for _, e := range state.Entries {
			list[e.Worker.ID] = e.Worker
		}
		if good(list) {
			return
		}
		select {
		case <-stale:
		case <-limit:
			p.t.Fatalf("waiting for %s: %v", what, list)
		}
	}
}

// refused fails unless err is a fault of the status, with the text and an
// advice.
func refused(t *testing.T, err error, status int, text string) {
	t.Helper()
	var f *Fault
	if !errors.As(err, &f) || f.Status != status || !strings.Contains(f.Message, text) || f.Advice == "" {
		t.Errorf("error %v, want %d with %q", err, status, text)
	}
}

func TestAddDrainRemove(t *testing.T) {
	p := startPlane(t, 0)
	answer, err := p.Add(t.Context(), "http://127.0.0.1:3,zone=a,model=m,dialect=none\n")
	if want := (Answer{"http://127.0.0.1:3", "admin"}); err != nil || answer != want {
		t.Fatalf("answer %+v, error %v", answer, err)
	}
	// It is listed already when the answer comes.
	p.await("the worker", func(list map[string]*store.Worker) bool {
		w := list["http://127.0.0.1:3"]
		return w != nil && w.Zone == "a" && w.DiscoveredBy == "admin"
	})
	// As tables show it.
	if answer, err = p.Drain(t.Context(), "127.0.0.1:3", true); err != nil || answer.WorkerID != "http://127.0.0.1:3" {
		t.Fatalf("answer %+v, error %v", answer, err)
	}
	p.await("draining", func(list map[string]*store.Worker) bool { return list["http://127.0.0.1:3"].Draining })
	if _, err = p.Drain(t.Context(), "http://127.0.0.1:3", false); err != nil {
		t.Fatal(err)
	}
	p.await("no draining", func(list map[string]*store.Worker) bool { return !list["http://127.0.0.1:3"].Draining })
	if answer, err = p.Remove(t.Context(), "127.0.0.1:3"); err != nil || answer.WorkerID != "http://127.0.0.1:3" {
		t.Fatalf("answer %+v, error %v", answer, err)
	}
	p.await("the removal", func(list map[string]*store.Worker) bool { return len(list) == 2 })
}

// A worker of another source drains as well, and one that is added beside
// another source with its origin goes by the id of that.
func TestWorkersOfOtherSources(t *testing.T) {
	p := startPlane(t, 0)
	if _, err := p.Drain(t.Context(), flagged, true); err != nil {
		t.Fatal(err)
	}
	p.await("draining", func(list map[string]*store.Worker) bool { return list[flagged].Draining })
	answer, err := p.Add(t.Context(), "http://127.0.0.1:2,id=mine")
	if want := (Answer{"filed", "file+admin"}); err != nil || answer != want {
		t.Fatalf("answer %+v, error %v", answer, err)
	}
	if answer, err = p.Remove(t.Context(), "mine"); err != nil || answer.WorkerID != "mine" {
		t.Fatalf("answer %+v, error %v", answer, err)
	}
	p.await("the file alone", func(list map[string]*store.Worker) bool { return list["filed"].DiscoveredBy == "file" })
}

// Ids hold whatever discovery lets them.
func TestOddIDs(t *testing.T) {
	p := startPlane(t, 0)
	for i, id := range []string{"ns/pod/30000", "..", "a b?c#d%2F", "ü/é", "workers/x/drain"} {
		if _, err := p.Add(t.Context(), "http://127.0.0.2:"+string(rune('1'+i))+",dialect=none,id="+id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
		if a, err := p.Drain(t.Context(), id, true); err != nil || a.WorkerID != id {
			t.Errorf("%q: answer %+v, error %v", id, a, err)
		}
		if a, err := p.Remove(t.Context(), id); err != nil || a.WorkerID != id {
			t.Errorf("%q: answer %+v, error %v", id, a, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	p := startPlane(t, 3)
	ctx := t.Context()
	_, err := p.Add(ctx, "http://127.0.0.1:3,role=king")
	refused(t, err, http.StatusBadRequest, "role: ")
	_, err = p.Add(ctx, "")
	refused(t, err, http.StatusBadRequest, "url: ")
	_, err = p.Add(ctx, "http://127.0.0.1:3,zone="+strings.Repeat("z", maxBody))
	refused(t, err, http.StatusRequestEntityTooLarge, "more than 65536 bytes")
	_, err = p.Add(ctx, "http://127.0.0.1:3,id=filed")
	refused(t, err, http.StatusConflict, "listed by file")
	if _, err = p.Add(ctx, "http://127.0.0.1:3,dialect=none"); err != nil {
		t.Fatal(err)
	}
	_, err = p.Add(ctx, "http://127.0.0.1:3,dialect=none")
	refused(t, err, http.StatusConflict, "listed by admin")
	_, err = p.Add(ctx, "http://127.0.0.1:4,dialect=none")
	refused(t, err, http.StatusConflict, "as many workers as are allowed")
	_, err = p.Remove(ctx, flagged)
	refused(t, err, http.StatusConflict, "listed by flag")
	_, err = p.Remove(ctx, "nobody")
	refused(t, err, http.StatusNotFound, "no worker nobody")
	_, err = p.Drain(ctx, "nobody", true)
	refused(t, err, http.StatusNotFound, "no worker nobody")
	_, err = p.Drain(ctx, "filed", false)
	refused(t, err, http.StatusConflict, "drained by file")
	_, err = p.Remove(ctx, "")
	refused(t, err, http.StatusNotFound, "no such request")
}

func TestOtherRequests(t *testing.T) {
	p := startPlane(t, 0)
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/workers", http.StatusNotFound}, {"PUT", "/workers", http.StatusNotFound},
		{"POST", "/workers/a/b/drain", http.StatusNotFound}, {"GET", "/metrics", http.StatusNotFound},
	} {
		_, err := p.ask(t.Context(), c.method, c.path, "")
		refused(t, err, c.status, "no such request")
	}
}

func TestRequestsAreCounted(t *testing.T) {
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	m.asked(opAdd, true)
	m.asked(opAdd, false)
	m.asked(opAdd, false)
	if n := testutil.ToFloat64(m.requests.WithLabelValues("add", "refused")); n != 2 {
		t.Errorf("%v refused, want 2", n)
	}
	if n := testutil.ToFloat64(m.requests.WithLabelValues("add", "ok")); n != 1 {
		t.Errorf("%v ok, want 1", n)
	}
}

func TestNewServerNamesWhatIsMissing(t *testing.T) {
	if _, err := NewServer(Options{}); err == nil || !strings.Contains(err.Error(), "Registry and Store") {
		t.Errorf("error %v", err)
	}
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v", info.Mode(), err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "another process answers at "+path) {
		t.Errorf("a second one: error %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the socket in use is gone: %v", err)
	}
	_ = ln.Close()
	_ = ln.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
}

// What a process leaves that is killed is replaced.
func TestListenReplacesADeadSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	old, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = old.(*socket).UnixListener.Close() // As the kernel does.
	fresh, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = fresh.Close() }()
	requireAnswer(t, path)
}

// A socket that somebody else made meanwhile is not removed.
func TestCloseLeavesAnotherSocketAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	old, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	fresh, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = fresh.Close() }()
	_ = old.Close()
	requireAnswer(t, path)
}

func requireAnswer(t *testing.T, path string) {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestListenLeavesOtherFilesAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notes")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("error %v", err)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "x" {
		t.Errorf("content %q, error %v", content, err)
	}
	if _, err := Listen(filepath.Join(t.TempDir(), "none", "s")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func TestClientSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead")
	ln, err := Listen(dead)
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.(*socket).UnixListener.Close()
	mute := filepath.Join(dir, "mute")
	silent, err := Listen(mute)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "start the plane with: loadplane serve --admin-socket ",
		dead:                       "start it again",
		mute:                       "a longer --timeout may help",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := NewClient(path).Remove(ctx, "a"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		cancel()
	}
}

// What answers at the socket may be no plane.
func TestClientOfAnotherServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	status := http.StatusOK
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "<html>")
	})}
	done := make(chan error, 1)
	go func() { done <- server.Serve(ln) }()
	defer func() { _ = server.Close(); <-done }()
	if _, err := NewClient(path).Remove(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "not that of a plane; check --socket") {
		t.Errorf("error %v", err)
	}
	status = http.StatusTeapot
	_, err = NewClient(path).Remove(t.Context(), "a")
	refused(t, err, http.StatusTeapot, "answered 418")
}

// A plane that ends while it is asked answers nothing.
func TestClientOfAPlaneThatEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })}
	done := make(chan error, 1)
	go func() { done <- server.Serve(ln) }()
	defer func() { _ = server.Close(); <-done }()
	if _, err := NewClient(path).Add(t.Context(), "http://a:1"); err == nil || !strings.Contains(err.Error(), "ended before it answered; start it again") {
		t.Errorf("error %v", err)
	}
}

// Every id comes back as it was, but for a slash alone: patterns of paths take
// that for an end.
func FuzzSegment(f *testing.F) {
	for _, id := range []string{"http://10.0.0.1:30000", "ns/pod/30000", "..", "%2F", "a/../b", "?#;+ ", "\x00\xff"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		if id == "" || id == "/" {
			t.Skip("no id")
		}
		var got string
		mux := http.NewServeMux()
		mux.HandleFunc("POST /workers/{id}/drain", func(_ http.ResponseWriter, r *http.Request) { got = r.PathValue("id") })
		r, err := http.NewRequest(http.MethodPost, "http://plane/workers/"+segment(id)+"/drain", nil)
		if err != nil {
			t.Fatal(err)
		}
		if mux.ServeHTTP(httptest.NewRecorder(), r); got != id {
			t.Errorf("%q came as %q", id, got)
		}
	})
}
