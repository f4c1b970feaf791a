package flood

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/loadplane/loadplane/ingest/loadstat/message"
	"github.com/loadplane/loadplane/ingest/loadstat/zmtp"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	pb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds each test.
const patience = time.Minute

// open runs engines of a kind until the test ends.
func open(t *testing.T, kind Kind, ingest string) (*Peers, context.Context) {
	t.Helper()
	p, err := Open(kind)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	var runs sync.WaitGroup
	runs.Go(func() { p.Run(ctx, ingest) })
	t.Cleanup(func() { cancel(); runs.Wait() })
	return p, ctx
}

// nowhere is an ingest listener that is none.
const nowhere = "127.0.0.1:1"

// What the plane must list reads as it reads worker flags.
func TestWorkers(t *testing.T) {
	p, _ := open(t, Deaf, nowhere)
	for i, text := range p.Workers() {
		spec, err := registry.ParseWorkerFlag(text)
		if err != nil || i == 0 && spec.ReporterPort != portOf(p.monitor) {
			t.Errorf("%s: %+v, %v", text, spec, err)
		}
	}
}

// monitor opens a session as a plane does, and receives up to n frames.
func monitor(ctx context.Context, t *testing.T, p *Peers, n int) (last *pb.WorkerFrame, err error) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.monitor.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewLoadMonitorServiceClient(conn).Monitor(ctx)
	if err != nil {
		t.Fatal(err)
	}
	register := &pb.RegisterRequest{RouterId: "a", ReportIntervalMs: 1000, LeaseTtlMs: 15_000}
	if err := stream.Send(&pb.RouterFrame{Payload: &pb.RouterFrame_Register{Register: register}}); err != nil {
		t.Fatal(err)
	}
	for range n {
		if last, err = stream.Recv(); err != nil {
			return nil, err
		}
	}
	return last, nil
}

// subscribe subscribes as a plane does, and receives a message.
func subscribe(ctx context.Context, t *testing.T, p *Peers) ([][]byte, error) {
	t.Helper()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp4", p.loadstat.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	c, err := zmtp.Subscribe(raw, zmtp.Options{
		Topic: "load", Deadline: time.Now().Add(patience), MaxBytes: 1 << 20,
		Received: prometheus.NewCounter(prometheus.CounterOpts{Name: "bytes"}),
	})
	if err != nil {
		return nil, err
	}
	return c.Receive()
}

// The reports of frequent engines are good ones, so that a plane has all the
// work with them.
func TestFrequentReportsAreGood(t *testing.T) {
	p, ctx := open(t, Frequent, nowhere)
	frame, err := monitor(ctx, t, p, 20)
	if err != nil || frame.GetReport().GetSequenceId() == 0 || len(frame.GetReport().GetRanks()) != 1 {
		t.Errorf("%v, %v", frame, err)
	}
	frames, err := subscribe(ctx, t, p)
	if err != nil {
		t.Fatal(err)
	}
	if m, why := message.NewDecoder("load", 0).Decode(frames); why != nil {
		t.Errorf("%+v: %v", m, why)
	}
	if c := p.Counts(); c.Monitor == 0 || c.Loadstat == 0 || c.Sessions < 2 {
		t.Errorf("%+v", c)
	}
}

// Giant frames are announced as what they are.
func TestGiantFrames(t *testing.T) {
	p, ctx := open(t, Giant, nowhere)
	if _, err := monitor(ctx, t, p, 2); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("monitor: %v", err)
	}
	if _, err := subscribe(ctx, t, p); !errors.Is(err, zmtp.ErrTooLarge) {
		t.Errorf("loadstat: %v", err)
	}
}

// plane takes registrations and reports, and hands them on.
type plane struct {
	loadplanev1.UnimplementedRegistrationServiceServer
	loadplanev1.UnimplementedReportServiceServer
	got chan *loadplanev1.EngineReport
}

func (*plane) Register(context.Context, *loadplanev1.RegisterRequest) (*loadplanev1.RegisterResponse, error) {
	return &loadplanev1.RegisterResponse{LeaseId: "a"}, nil
}

func (p *plane) Report(stream grpc.BidiStreamingServer[loadplanev1.ReportRequest, loadplanev1.ReportResponse]) error {
	if q, err := stream.Recv(); err != nil || q.GetLeaseId() != "a" {
		return errors.Join(errors.New("no lease"), err)
	}
	if err := stream.Send(&loadplanev1.ReportResponse{}); err != nil {
		return err
	}
	for {
		q, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case p.got <- q.GetReport():
		case <-stream.Context().Done():
			return nil
		}
	}
}

// Every other report of a deaf native engine is to be refused, and once it
// reports it reads no more: not even that the plane is gone.
func TestNativeReports(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taker := &plane{got: make(chan *loadplanev1.EngineReport)}
	srv := grpc.NewServer()
	loadplanev1.RegisterRegistrationServiceServer(srv, taker)
	loadplanev1.RegisterReportServiceServer(srv, taker)
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(ln) })
	t.Cleanup(func() { srv.Stop(); serving.Wait() })
	p, ctx := open(t, Deaf, ln.Addr().String())
	seen := map[loadplanev1.Status]int{}
	for range 10 {
		select {
		case r := <-taker.got:
			seen[r.GetStatus()]++
		case <-ctx.Done():
			t.Fatalf("reports so far: %v", seen)
		}
	}
	soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := p.Await(soon); err == nil {
		t.Error("nobody met the engines that are to be dialled")
	}
	for _, ln := range []net.Listener{p.monitor, p.loadstat} {
		c, err := net.Dial("tcp4", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	if err := p.Await(ctx); err != nil {
		t.Error(err)
	}
	if seen[loadplanev1.Status_STATUS_HEALTHY] != 5 || seen[loadplanev1.Status_STATUS_UNSPECIFIED] != 5 {
		t.Errorf("reports: %v", seen)
	}
}

// A shut connection reads nothing, and its reader ends when it is closed.
func TestEars(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var e ears
	c, err := e.dial(t.Context(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if host, _, err := net.SplitHostPort(far.RemoteAddr().String()); err != nil || host != nativeHost {
		t.Errorf("it comes from %s, %v", host, err)
	}
	for i := range 2 {
		if _, err := io.WriteString(far, strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 1)
	if _, err := c.Read(b); err != nil || b[0] != '0' {
		t.Fatalf("%q, %v", b, err)
	}
	e.shut()
	e.shut()
	read := make(chan error)
	go func() {
		_, err := c.Read(b)
		read <- err
	}()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-read; !errors.Is(err, net.ErrClosed) || b[0] != '0' {
		t.Errorf("%q, %v", b, err)
	}
}
