package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
)

// program and beside are the paths of the built binaries: the service, and the
// reporter that runs beside an engine.
var program, beside string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "loadplane-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program, beside = filepath.Join(dir, "loadplane"), filepath.Join(dir, "loadreporter")
	build := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "../cmd/loadplane", "../cmd/loadreporter")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s\n%v\n", out, err)
		return 1
	}
	return m.Run()
}

// process is a running loadplane command.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	name string
	// lines has every line of standard error, until the process ends.
	lines chan string
	// out has every line of standard output.
	out chan string
	// exited closes when the process ended; then err is what Wait returned.
	exited chan struct{}
	err    error
}

// start runs the program, and kills it when the test ends.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startAs(t, exec.Command(program, args...))
}

func startAs(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{
		t: t, cmd: cmd, name: cmd.String(),
		lines: make(chan string, 10_000), out: make(chan string, 10_000), exited: make(chan struct{}),
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{}, 2)
	go pump(stderr, p.lines, read)
	go pump(stdout, p.out, read)
	go func() {
		<-read
		<-read
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() { p.kill() })
	return p
}

// pump sends lines, and drops them when nobody wants so many.
func pump(r io.Reader, to chan<- string, done chan<- struct{}) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		select {
		case to <- lines.Text():
		default:
		}
	}
	close(to)
	done <- struct{}{}
}

// kill ends the process as kill -9 does, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// terminate sends SIGTERM and returns how long the process took to exit with
// status 0.
func (p *process) terminate(limit time.Duration) time.Duration {
	p.t.Helper()
	began := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.exited:
	case <-time.After(limit):
		p.t.Fatalf("%s still runs %v after SIGTERM", p.name, limit)
	}
	if p.err != nil {
		p.t.Fatalf("%s: %v", p.name, p.err)
	}
	return time.Since(began)
}

// next returns the next line that match accepts.
func (p *process) next(from <-chan string, match func(string) bool) string {
	p.t.Helper()
	limit := time.After(20 * time.Second)
	var seen []string
	for {
		select {
		case line, ok := <-from:
			if !ok {
				p.t.Fatalf("%s ended; it said:\n%s", p.name, strings.Join(seen, "\n"))
			}
			if match(line) {
				return line
			}
			seen = append(seen, line)
		case <-limit:
			p.t.Fatalf("%s did not say it; it said:\n%s", p.name, strings.Join(seen, "\n"))
		}
	}
}

// plane is a running service.
type plane struct {
	*process
	api, ingest, ops string // host:port
}

// serve starts a service on free ports and waits until it listens.
func serve(t *testing.T, args ...string) *plane {
	t.Helper()
	return serveOn(t, [3]string{"127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"}, args...)
}

func serveOn(t *testing.T, listen [3]string, args ...string) *plane {
	t.Helper()
	p := &plane{process: start(t, append([]string{"serve", "--log-format=json",
		"--api-listen=" + listen[0], "--ingest-listen=" + listen[1], "--ops-listen=" + listen[2]}, args...)...)}
	for p.api == "" || p.ingest == "" || p.ops == "" {
		p.noteListener(p.next(p.lines, func(line string) bool { return strings.Contains(line, `"msg":"listening"`) }))
	}
	return p
}

func (p *plane) noteListener(line string) {
	p.t.Helper()
	var said struct{ Listener, Address string }
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		p.t.Fatalf("%q: %v", line, err)
	}
	switch said.Listener {
	case "api":
		p.api = said.Address
	case "ingest":
		p.ingest = said.Address
	case "ops":
		p.ops = said.Address
	}
}

// fleet starts simulated engines and returns the path of their workers file.
func fleet(t *testing.T, args ...string) (*process, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "workers.yaml")
	p := start(t, append([]string{"sim", "--log-format=json", "--write-workers=" + path}, args...)...)
	p.next(p.out, func(line string) bool { return strings.HasPrefix(line, "serve them with") })
	return p, path
}

// freePort returns a port that nothing listened on a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// h2c is a client for HTTP/2 without TLS.
func h2c() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: protocols}}
}

func (p *plane) client(opts ...connect.ClientOption) loadplanev1connect.SnapshotServiceClient {
	return loadplanev1connect.NewSnapshotServiceClient(h2c(), "http://"+p.api, opts...)
}

type message = loadplanev1.WatchSnapshotsResponse

// errEnough ends a watch from its callback.
var errEnough = errors.New("enough")

// watch calls see with every message until it returns an error; errEnough
// stands for success. It fails the test when the stream ends first.
func (p *plane) watch(within time.Duration, see func(*message) error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), within)
	defer cancel()
	if err := watchWith(ctx, p.client(), see); !errors.Is(err, errEnough) {
		p.t.Fatalf("watch: %v", err)
	}
}

func watchWith(ctx context.Context, c loadplanev1connect.SnapshotServiceClient, see func(*message) error) error {
	stream, err := c.WatchSnapshots(ctx, &loadplanev1.WatchSnapshotsRequest{ClientId: "e2e"})
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		if err := see(stream.Msg()); err != nil {
			return err
		}
	}
	return stream.Err()
}

// until waits for a view that ok accepts.
func (p *plane) until(within time.Duration, what string, ok func(*view) bool) *view {
	p.t.Helper()
	v := &view{}
	ctx, cancel := context.WithTimeout(p.t.Context(), within)
	defer cancel()
	err := watchWith(ctx, p.client(), func(m *message) error {
		if err := v.apply(m); err != nil {
			return err
		}
		if ok(v) {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		p.t.Fatalf("waiting for %s: %v; the last view is version %d: %v", what, err, v.last.GetCursor().GetVersion(), v.summary())
	}
	return v
}

// view is what a client holds, and the last message.
type view struct {
	client.Replica
	last    *message
	workers []*loadplanev1.Worker
}

// apply takes a message; the replica checks that it fits and is not torn.
func (v *view) apply(m *message) error {
	held, err := v.Apply(m, time.Now())
	if err != nil {
		return err
	}
	v.last = m
	if held != nil {
		v.workers = held.Workers()
	}
	return nil
}

func (v *view) receipt(w *loadplanev1.Worker) *loadplanev1.WorkerLiveness { return v.View().Receipt(w) }

func (v *view) fresh() int {
	n := 0
	for _, w := range v.workers {
		if w.GetFreshness() == loadplanev1.Freshness_FRESHNESS_FRESH {
			n++
		}
	}
	return n
}

func (v *view) summary() []string {
	var out []string
	for _, w := range v.workers {
		out = append(out, fmt.Sprintf("%s %v/%s", w.GetWorkerId(), w.GetFreshness(), w.GetFreshnessReason()))
	}
	return out
}

// get reads a page.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// metric returns the value of one series of the plane, 0 where there is none.
func (p *plane) metric(series string) float64 {
	p.t.Helper()
	_, page := get(p.t, "http://"+p.ops+"/metrics")
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			var v float64
			if _, err := fmt.Sscan(rest, &v); err != nil {
				p.t.Fatal(err)
			}
			return v
		}
	}
	return 0
}
