package consumers

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/client"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// line is what a consumer says about the view that it holds.
type line struct {
	// Event is the kind of the message, "expired", or "lost" with the Why.
	Event, Why string
	Lineage    string
	Epoch      uint64
	Version    uint64
	Warming    bool
	// Digest is 16 hex digits; empty where the consumer is not told it.
	Digest  string
	Workers []worker
}

type worker struct {
	ID        string `json:"worker_id"`
	Freshness string
	Valid     bool
	ValidFor  int64  `json:"valid_for_ms"`
	Requests  *int64 `json:"total_requests"`
}

func (l line) worker(id string) worker {
	for _, w := range l.Workers {
		if w.ID == id {
			return w
		}
	}
	return worker{}
}

func (l line) ids() string {
	var ids []string
	for _, w := range l.Workers {
		ids = append(ids, w.ID)
	}
	return strings.Join(ids, " ")
}

func (l line) valid() (n int) {
	for _, w := range l.Workers {
		if w.Valid {
			n++
		}
	}
	return n
}

// consumer is a router that follows a plane.
type consumer struct {
	name string
	// start runs it until the test ends. It follows the plane at host:port.
	start func(t *testing.T, address string) *following
	// resumes says that a new stream goes on from the last one; watches, that
	// there are streams; digests, that digests are told.
	resumes, watches, digests bool
}

var consumers = []consumer{
	{name: "go", start: startGo, watches: true, resumes: true, digests: true},
	{name: "python grpc", start: startPythonGRPC, watches: true, resumes: true, digests: true},
	{name: "python lines", start: startPython("watch_http.py"), watches: true},
	{name: "python poll", start: startPython("poll_http.py")},
	{name: "typescript", start: startTypeScript, watches: true, resumes: true, digests: true},
}

// following is a consumer that runs.
type following struct {
	t     *testing.T
	lines <-chan line
	// complaints returns what went wrong.
	complaints func() string
	// seen are the lines so far.
	seen []line
}

func startPythonGRPC(t *testing.T, address string) *following {
	t.Helper()
	interpreter, err := pythonGRPC()
	need(t, err)
	code, err := pythonCode()
	need(t, err)
	// The path is set by a program, as the environment is the machine's.
	return follow(t, start(t, interpreter, "-c", fmt.Sprintf(
		"import runpy, sys; sys.path[:0] = [%q, %q]; sys.argv = [%q, %q]; runpy.run_path(sys.argv[0], run_name='__main__')",
		root+"/docs/examples/python", code, root+"/docs/examples/python/watch_grpc.py", address)))
}

func startPython(script string) func(*testing.T, string) *following {
	return func(t *testing.T, address string) *following {
		t.Helper()
		interpreter, err := python()
		need(t, err)
		return follow(t, start(t, interpreter, root+"/docs/examples/python/"+script, "http://"+address))
	}
}

func startTypeScript(t *testing.T, address string) *following {
	t.Helper()
	script, err := typescript()
	need(t, err)
	return follow(t, start(t, "node", script, "http://"+address))
}

// follow reads the lines of a process.
func follow(t *testing.T, p *process) *following {
	lines := make(chan line)
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	go func() {
		defer close(lines)
		for text := range p.out {
			var l line
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				l = line{Event: "unreadable", Why: text}
			}
			select {
			case lines <- l:
			case <-ended:
				return
			}
		}
	}()
	return &following{t: t, lines: lines, complaints: p.complaints}
}

// startGo follows with a client.Watcher.
func startGo(t *testing.T, address string) *following {
	t.Helper()
	w, err := client.NewWatcher(client.Options{Addresses: []string{"http://" + address}, ClientID: "go"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	lines, stopped := make(chan line), make(chan struct{}, 2)
	go func() {
		_ = w.Run(ctx)
		stopped <- struct{}{}
	}()
	go func() {
		say(ctx, w, lines)
		stopped <- struct{}{}
	}()
	t.Cleanup(func() {
		cancel()
		<-stopped
		<-stopped
	})
	return &following{t: t, lines: lines, complaints: func() string { return fmt.Sprint(w.Status().LastError) }}
}

// say tells every view that a watcher has, and when a worker turned invalid
// because nothing was heard.
func say(ctx context.Context, w *client.Watcher, to chan<- line) {
	for {
		view, stale := w.View()
		timer := time.NewTimer(limit)
		if view != nil {
			now := time.Now()
			select {
			case to <- lineOf(view, now):
			case <-ctx.Done():
				return
			}
			timer.Reset(expiry(view, now))
		}
		select {
		case <-stale:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// expiry is the time until the next worker turns invalid.
func expiry(v *client.View, now time.Time) time.Duration {
	next := limit
	for _, w := range v.Workers() {
		if at, heard := v.ValidUntil(w); heard && at.After(now) {
			next = min(next, at.Sub(now))
		}
	}
	return next
}

func lineOf(v *client.View, now time.Time) line {
	l := line{
		Event: "view", Lineage: v.Lineage(), Epoch: v.Epoch(), Version: v.Version(), Warming: v.Warming(),
		Digest: fmt.Sprintf("%016x", v.Digest()),
	}
	for _, w := range v.Workers() {
		at, _ := v.ValidUntil(w)
		l.Workers = append(l.Workers, worker{
			ID: w.GetWorkerId(), Freshness: freshnessOf(w), Valid: v.Valid(w, now),
			ValidFor: max(0, at.Sub(now).Milliseconds()), Requests: requestsOf(w),
		})
	}
	return l
}

func freshnessOf(w *pb.Worker) string {
	name, known := pb.Freshness_name[int32(w.GetFreshness())]
	if !known {
		return "unknown"
	}
	return strings.ToLower(strings.TrimPrefix(name, "FRESHNESS_"))
}

func requestsOf(w *pb.Worker) *int64 {
	if a := w.GetAggregate(); a != nil {
		return a.TotalRequests
	}
	return nil
}

// until waits for a line that ok accepts.
func (f *following) until(what string, ok func(line) bool) line {
	f.t.Helper()
	expired := time.After(limit)
	for {
		select {
		case l, open := <-f.lines:
			if !open || l.Event == "unreadable" {
				f.t.Fatalf("waiting for %s: the consumer said %q and: %s", what, l.Why, f.complaints())
			}
			f.seen = append(f.seen, l)
			if ok(l) {
				return l
			}
		case <-expired:
			f.t.Fatalf("waiting for %s: %s\nthe last lines: %+v", what, f.complaints(), f.seen[max(0, len(f.seen)-3):])
		}
	}
}
