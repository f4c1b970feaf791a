package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// asCommand makes the test binary the command itself.
const asCommand = "LOADREPORTER_TEST_AS_COMMAND"

// patience bounds each wait for another process.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) == "" {
		goleak.VerifyTestMain(m)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	a := &app{out: os.Stdout, err: os.Stderr}
	code := a.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// process is a running loadreporter.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	wait func() error

	mu  sync.Mutex
	log bytes.Buffer
}

// start runs the command and returns once it listens.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], append(args, "--listen=127.0.0.1:0", "--log-format=json", "--log-level=debug")...)}
	p.cmd.Env = append(os.Environ(), asCommand+"=1")
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening := make(chan string, 1)
	read := make(chan struct{})
	go func() { defer close(read); p.read(stderr, listening) }()
	p.wait = sync.OnceValue(func() error { <-read; return p.cmd.Wait() })
	t.Cleanup(func() {
		p.signal(syscall.SIGCONT)
		p.signal(syscall.SIGKILL)
		_ = p.wait()
		if t.Failed() {
			t.Logf("log of %d:\n%s", p.cmd.Process.Pid, p.logged())
		}
	})
	select {
	case p.url = <-listening:
	case <-read:
		t.Fatalf("the command ended: %s", p.logged())
	case <-time.After(patience):
		t.Fatal("the command does not listen")
	}
	return p
}

// read copies the log, and tells the address that it names.
func (p *process) read(r io.Reader, listening chan<- string) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		p.mu.Lock()
		p.log.Write(append(lines.Bytes(), '\n'))
		p.mu.Unlock()
		var line struct{ Msg, Listen string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "load reporter started" {
			listening <- "http://" + line.Listen
		}
	}
}

func (p *process) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// stop stops the process as SIGSTOP does, and returns when it has stopped: the
// signal alone says nothing of when.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	until(p.t, "the process has stopped", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			p.t.Fatal(err)
		}
		// The state follows the name, which may have spaces and brackets.
		_, rest, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')'):]), " ")
		return strings.HasPrefix(rest, "T")
	})
}

// kill ends the process as kill -9 does.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	_ = p.wait()
}

// get returns the status and the body of a page.
func (p *process) get(path string) (int, string) { return p.do(http.MethodGet, path, "") }

func (p *process) do(method, path, body string) (int, string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// ask has reports sent to a router.
func (p *process) ask(r *router, interval, lease time.Duration) (int, string) {
	return p.do(http.MethodPost, "/v1/start_reporting", fmt.Sprintf(
		`{"ip":%q,"port":%d,"report_interval_ms":%d,"lease_ttl_ms":%d}`,
		r.addr.Addr(), r.addr.Port(), interval.Milliseconds(), lease.Milliseconds()))
}

// metric returns the value of a metric; 0 where there is none.
func (p *process) metric(name string) float64 {
	p.t.Helper()
	_, page := p.get("/metrics")
	for line := range strings.Lines(page) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return v
		}
	}
	return 0
}

// status is what the tests read of /v1/status.
type status struct {
	Role     string
	NotReady string `json:"not_ready"`
	Takeover []struct{ Target string }
	// Node is empty until there is an owner.
	Node struct {
		Engine struct {
			Family  string
			Missing []string `json:"missing_for_push"`
		}
		Sample  struct{ Status, Error string }
		Targets []struct {
			Target    string
			Connected bool
		}
		Planes []planeStatus
	}
}

type planeStatus struct {
	Connected bool
	Worker    string `json:"worker_id"`
	// IntervalMs is the granted one.
	IntervalMs int64 `json:"report_interval_ms"`
	Reports    uint64
	Error      string
}

// plane returns the state of the first plane; an empty one before there is any.
func (s status) plane() (first planeStatus) {
	if len(s.Node.Planes) > 0 {
		first = s.Node.Planes[0]
	}
	return first
}

func (p *process) status() (s status) {
	p.t.Helper()
	if code, body := p.get("/v1/status"); code != 200 || json.Unmarshal([]byte(body), &s) != nil {
		p.t.Fatalf("%d %s", code, body)
	}
	return s
}

// until waits for something to become true.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	over := time.After(patience)
	for !is() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-over:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// router is a gRPC server of the push dialect in this process. As planes do, it
// ends a stream that does not stay what its first report said.
type router struct {
	pb.UnimplementedLoadMonitorServiceServer
	addr netip.AddrPort

	mu      sync.Mutex
	streams int
	live    int
	got     []*pb.LoadReport
	at      []time.Time
}

func newRouter(t *testing.T) *router {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &router{addr: netip.MustParseAddrPort(ln.Addr().String())}
	srv := grpc.NewServer()
	pb.RegisterLoadMonitorServiceServer(srv, r)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = srv.Serve(ln) }()
	t.Cleanup(func() { srv.Stop(); <-ended })
	return r
}

func (r *router) Report(stream grpc.ClientStreamingServer[pb.LoadReport, emptypb.Empty]) error {
	r.count(1)
	defer r.count(-1)
	var first *pb.LoadReport
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if first == nil {
			first = m
		}
		if m.GetSourceInstanceId() != first.GetSourceInstanceId() || m.GetWorker().GetWorkerAddr() != first.GetWorker().GetWorkerAddr() ||
			m.GetWorker().GetWorkerType() != first.GetWorker().GetWorkerType() {
			return grpcstatus.Error(codes.InvalidArgument, "claim_changed")
		}
		r.mu.Lock()
		r.got, r.at = append(r.got, m), append(r.at, time.Now())
		r.mu.Unlock()
	}
}

func (r *router) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live += n
	r.streams += max(0, n)
}

func (r *router) counts() (streams, live, reports int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.streams, r.live, len(r.got)
}

// since returns the reports from one on.
func (r *router) since(n int) []*pb.LoadReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got[n:])
}

// await returns the first report from n on that is as wanted.
func (r *router) await(t *testing.T, n int, what string, is func(*pb.LoadReport) bool) (found *pb.LoadReport) {
	t.Helper()
	until(t, what, func() bool {
		for _, m := range r.since(n) {
			if is(m) {
				found = m
				return true
			}
		}
		return false
	})
	return found
}

func healthy(m *pb.LoadReport) bool { return m.GetStatus() == pb.ReportStatus_REPORT_STATUS_HEALTHY }
func stale(m *pb.LoadReport) bool   { return m.GetStatus() == pb.ReportStatus_REPORT_STATUS_STALE }
func gone(m *pb.LoadReport) bool {
	return m.GetStatus() == pb.ReportStatus_REPORT_STATUS_UNREACHABLE
}

// engine is a simulated engine.
func engine(t *testing.T, kind sim.Kind, ranks int) *sim.Engine {
	t.Helper()
	fleet, err := sim.New(sim.Options{Engines: 1, Kinds: []sim.Kind{kind}, Ranks: ranks, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- fleet.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return fleet.Engines()[0]
}
