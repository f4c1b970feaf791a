package push

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/ingest"
	loadmonitorv1 "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// change returns a healthy report with one rank and a change.
func change(seq uint64, f func(r *loadmonitorv1.LoadReport)) *loadmonitorv1.LoadReport {
	r := sample(seq, 1)
	f(r)
	return r
}

func from(source string, seq uint64) *loadmonitorv1.LoadReport {
	return change(seq, func(r *loadmonitorv1.LoadReport) { r.SourceInstanceId = source })
}

func TestReportReachesStore(t *testing.T) {
	inBubble(t, []string{testAddr}, func(p *plane) {
		e := p.engine(testPeer).send(sample(1, 3))
		p.settle()
		got := p.entry(testAddr)
		if got.Freshness != store.Fresh || len(got.Ranks) != 3 || got.Load.Sequence != 1 {
			t.Fatalf("%s (%s), %d ranks", got.Freshness, got.Reason, len(got.Ranks))
		}
		if v, ok := got.Ranks[2].Count(store.NumUsedTokens); v != 120_000 || !ok {
			t.Errorf("used tokens are %d %v", v, ok)
		}
		if got.Load.ReceivedUnixMs != time.Now().UnixMilli()-testSettle.Milliseconds() || got.Load.Received == 0 {
			t.Errorf("received %d, %d", got.Load.Received, got.Load.ReceivedUnixMs)
		}
		e.send(sample(2, 3), change(3, func(r *loadmonitorv1.LoadReport) { r.Ranks[0].NumRunningReqs = 200 }))
		p.settle()
		if v, _ := p.entry(testAddr).Ranks[0].Count(store.NumRunningReqs); v != 200 {
			t.Errorf("running requests are %d", v)
		}
		m := p.service.metrics
		if testutil.ToFloat64(m.accepted) != 3 || testutil.ToFloat64(m.streams) != 1 || testutil.ToFloat64(m.bytes) < 300 {
			t.Error("the metrics do not show three reports of one stream")
		}
	})
}

func TestFirstReportUnreachable(t *testing.T) {
	inBubble(t, []string{testAddr}, func(p *plane) {
		p.engine(testPeer).send(change(1, func(r *loadmonitorv1.LoadReport) {
			r.Status, r.Ranks, r.LastError = loadmonitorv1.ReportStatus_REPORT_STATUS_UNREACHABLE, nil, new(string)
			*r.LastError = "no successful load sample"
		}))
		p.settle()
		if e := p.entry(testAddr); e.Freshness != store.Unreachable {
			t.Errorf("%s (%s)", e.Freshness, e.Reason)
		}
	})
}

// dropped are reports that are refused while the stream goes on.
var dropped = []struct {
	reason store.Reason
	frame  any
}{
	{ingest.ReasonMalformed, []byte("\xff")},
	{ingest.ReasonMalformed, change(2, func(r *loadmonitorv1.LoadReport) {}).String()},
	{ingest.ReasonTooManyRanks, bytes.Repeat([]byte{7<<3 | 2, 0}, 32<<10)},
	{ingest.ReasonTooManyRanks, sample(2, 513)},
	{ingest.ReasonStringTooLong, change(2, func(r *loadmonitorv1.LoadReport) { *r.Worker.Zone = strings.Repeat("z", 65) })},
	{ingest.ReasonBadStatus, change(2, func(r *loadmonitorv1.LoadReport) { r.Status = 0 })},
	{ingest.ReasonBadTime, change(2, func(r *loadmonitorv1.LoadReport) { r.ReportTimeUnixMs = -1 })},
	{ingest.ReasonUnreachableWithRanks, change(2, func(r *loadmonitorv1.LoadReport) { r.Status = 3 })},
	{ingest.ReasonMissingError, change(2, func(r *loadmonitorv1.LoadReport) { r.Status, r.Ranks = 3, nil })},
	{ingest.ReasonNoRanks, change(2, func(r *loadmonitorv1.LoadReport) { r.Ranks = nil })},
	{ingest.ReasonBadRank, change(2, func(r *loadmonitorv1.LoadReport) { r.Ranks[0].DpRank = -1 })},
	{ingest.ReasonDuplicateRank, change(2, func(r *loadmonitorv1.LoadReport) { r.Ranks = append(r.Ranks, r.Ranks[0]) })},
	{ingest.ReasonCountOutOfRange, change(2, func(r *loadmonitorv1.LoadReport) { r.Ranks[0].NumWaitingReqs = -1 })},
	{ingest.ReasonFloatOutOfRange, change(2, func(r *loadmonitorv1.LoadReport) { r.Ranks[0].TokenUsage = math.NaN() })},
	{ingest.ReasonUsedOverCapacity, change(2, func(r *loadmonitorv1.LoadReport) { r.Ranks[0].MaxTotalNumTokens = 1 })},
	{ingest.ReasonRunningOverMaximum, change(2, func(r *loadmonitorv1.LoadReport) { r.Ranks[0].MaxRunningRequests = 1 })},
	{registry.ReasonSequenceJump, sample(1<<63, 1)},
	{ingest.ReasonMessageTooLarge, make([]byte, 64<<10+1)},
}

func TestInvalidReportsAreDropped(t *testing.T) {
	for _, tt := range dropped {
		if text, ok := tt.frame.(string); ok {
			tt.frame = append([]byte{1<<3 | 2, 1, 0xff}, text...) // invalid UTF-8
		}
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/first=%v", tt.reason, first), func(t *testing.T) {
				inBubble(t, []string{testAddr}, func(p *plane) {
					e := p.engine(testPeer)
					if !first {
						e.send(sample(1, 1))
						p.settle()
					}
					before, _ := p.store.Current()
					e.send(tt.frame)
					p.settle()
					if after, _ := p.store.Current(); after.Content != before.Content {
						t.Errorf("version %d became %d", before.Version, after.Version)
					}
					if got := p.refused(tt.reason); got != 1 {
						t.Errorf("%v were refused as %s", got, tt.reason)
					}
					e.send(sample(3, 2))
					p.settle()
					if got := p.entry(testAddr); got.Freshness != store.Fresh || len(got.Ranks) != 2 {
						t.Errorf("the next report leaves %s with %d ranks", got.Freshness, len(got.Ranks))
					}
				})
			})
		}
	}
}

// fatal are first reports that end their stream.
var fatal = []struct {
	name    string
	reason  store.Reason
	code    codes.Code
	workers []string
	peer    string
	report  any
}{
	{"no source", ingest.ReasonMissingSource, codes.InvalidArgument, nil, "", from("", 1)},
	{"empty message", ingest.ReasonMissingSource, codes.InvalidArgument, nil, "", []byte{}},
	{"no worker", ingest.ReasonMissingWorker, codes.InvalidArgument, nil, "", change(1, func(r *loadmonitorv1.LoadReport) { r.Worker = nil })},
	{"no role", ingest.ReasonBadRole, codes.InvalidArgument, nil, "", change(1, func(r *loadmonitorv1.LoadReport) { r.Worker.WorkerType = 0 })},
	{"role 9", ingest.ReasonBadRole, codes.InvalidArgument, nil, "", change(1, func(r *loadmonitorv1.LoadReport) { r.Worker.WorkerType = 9 })},
	{"long source", ingest.ReasonIdentityTooLong, codes.InvalidArgument, nil, "", from(strings.Repeat("x", 129), 1)},
	{"address", registry.ReasonBadAddress, codes.InvalidArgument, nil, "", change(1, func(r *loadmonitorv1.LoadReport) { r.Worker.WorkerAddr = "http://%zz" })},
	{"unknown", registry.ReasonUnknownWorker, codes.InvalidArgument, nil, "", change(1, func(r *loadmonitorv1.LoadReport) { r.Worker.WorkerAddr = "http://127.0.0.9:9" })},
	{"role", registry.ReasonRoleMismatch, codes.InvalidArgument, nil, "", change(1, func(r *loadmonitorv1.LoadReport) { r.Worker.WorkerType = 2 })},
	{"peer", registry.ReasonPeerMismatch, codes.PermissionDenied, nil, "127.0.0.3:5000", sample(1, 1)},
	{"dialect", registry.ReasonDialectMismatch, codes.InvalidArgument, []string{testAddr + ",dialect=none"}, "", sample(1, 1)},
	{"4 MiB", ingest.ReasonMessageTooLarge, codes.ResourceExhausted, nil, "", make([]byte, 4<<20)},
}

func TestFatalReportsEndTheStream(t *testing.T) {
	for _, tt := range fatal {
		t.Run(tt.name, func(t *testing.T) {
			if tt.workers == nil {
				tt.workers = []string{testAddr}
			}
			if tt.peer == "" {
				tt.peer = testPeer
			}
			inBubble(t, tt.workers, func(p *plane) {
				before, _ := p.store.Current()
				st := p.engine(tt.peer).send(tt.report).end()
				if st.Code() != tt.code {
					t.Fatalf("ended as %v, want %v", st, tt.code)
				}
				p.settle()
				if p.refused(tt.reason) != 1 || p.ended(tt.reason) != 1 {
					t.Errorf("%v refused and %v ended as %s: %v", p.refused(tt.reason), p.ended(tt.reason), tt.reason, st)
				}
				if after, _ := p.store.Current(); after.Content != before.Content {
					t.Error("the content changed")
				}
			})
		})
	}
}

func TestCompressedReportEndsTheStream(t *testing.T) {
	inBubble(t, []string{testAddr}, func(p *plane) {
		//nolint:staticcheck // The option that registers no compressor for the server.
		e := p.engine(testPeer, grpc.WithCompressor(grpc.NewGZIPCompressor()))
		if st := e.send(sample(1, 8)).end(); st.Code() != codes.Unimplemented {
			t.Errorf("ended as %v", st)
		}
	})
}

func TestUnsyncedPlaneSaysComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, registry.Options{Workers: []string{testAddr}})
		p.run(p.store.Run, p.serve)
		if st := p.engine(testPeer).send(sample(1, 1)).end(); st.Code() != codes.Unavailable || p.ended(registry.ReasonNotSynced) != 1 {
			t.Errorf("ended as %v", st)
		}
	})
}

func TestDrainEndsSilentStreams(t *testing.T) {
	inBubble(t, []string{testAddr}, func(p *plane) {
		e := p.engine(testPeer).send(sample(1, 1))
		p.settle()
		p.registry.Drain()
		begin := time.Now()
		p.stop()
		if st := e.end(); st.Code() != codes.Unavailable || p.ended(registry.ReasonShuttingDown) != 1 {
			t.Errorf("ended as %v", st)
		}
		p.runs.Wait()
		if took := time.Since(begin); took > 100*time.Millisecond {
			t.Errorf("the plane stopped after %s", took)
		}
	})
}

func TestStopIsBounded(t *testing.T) {
	inBubble(t, []string{testAddr}, func(p *plane) {
		e := p.engine(testPeer) // never sends, so that a drain does not reach it
		synctest.Wait()
		begin := time.Now()
		p.stop()
		p.runs.Wait()
		if took := time.Since(begin); took < time.Second || took > 3*time.Second {
			t.Errorf("the plane stopped after %s", took)
		}
		if st := e.end(); st.Code() != codes.Unavailable {
			t.Errorf("ended as %v", st)
		}
	})
}

func TestTenRefusedInRowEndTheStream(t *testing.T) {
	inBubble(t, []string{testAddr}, func(p *plane) {
		e := p.engine(testPeer)
		bad := func(n int) {
			for range n {
				e.send([]byte("\xff"))
			}
		}
		bad(9)
		e.send(sample(1, 1))
		bad(9)
		p.settle()
		if got := testutil.ToFloat64(p.service.metrics.streams); got != 1 {
			t.Fatalf("%v streams are open", got)
		}
		bad(1)
		if st := e.end(); st.Code() != codes.InvalidArgument || p.ended(ingest.ReasonTooManyRefused) != 1 {
			t.Errorf("ended as %v", st)
		}
		if got := p.refused(ingest.ReasonMalformed); got != 19 {
			t.Errorf("%v reports were refused", got)
		}
	})
}

func TestTenRefusedBeforeBinding(t *testing.T) {
	inBubble(t, []string{testAddr}, func(p *plane) {
		e := p.engine(testPeer)
		for range ingest.MaxRefusedInRow {
			e.send([]byte("\xff"))
		}
		if st := e.end(); st.Code() != codes.InvalidArgument {
			t.Errorf("ended as %v", st)
		}
	})
}

func TestSpoofedOriginsChangeNothing(t *testing.T) {
	var workers []string
	for i := range 50 {
		workers = append(workers, fmt.Sprintf("http://127.0.1.%d:9", i+1))
	}
	inBubble(t, workers, func(p *plane) {
		for i, w := range workers {
			e := p.engine(fmt.Sprintf("127.0.1.%d:5000", i+1))
			e.send(change(1, func(r *loadmonitorv1.LoadReport) { r.Worker.WorkerAddr = w }))
		}
		p.settle()
		before, _ := p.store.Current()
		attacker := p.engine("127.0.2.1:5000")
		attacker.cancel()
		for _, w := range workers {
			attacker.open()
			attacker.send(change(99, func(r *loadmonitorv1.LoadReport) {
				r.Worker.WorkerAddr, r.SourceInstanceId, r.Ranks[0].NumRunningReqs = w, "attacker", 0
			}))
			if st := attacker.end(); st.Code() != codes.PermissionDenied {
				t.Errorf("%s: ended as %v", w, st)
			}
		}
		p.settle()
		after, _ := p.store.Current()
		if after.Content != before.Content || len(after.Entries) != 50 || after.Entries[49].Freshness != store.Fresh {
			t.Errorf("version %d became %d", before.Version, after.Version)
		}
		if got := testutil.ToFloat64(p.service.metrics.streams); got != 50 {
			t.Errorf("%v streams are left", got)
		}
	})
}

func TestTakeover(t *testing.T) {
	inBubble(t, []string{testAddr}, func(p *plane) {
		old := p.engine(testPeer).send(from("a", 10))
		p.settle()
		again := p.engine(testPeer).send(from("a", 11))
		if st := old.end(); st.Code() != codes.Aborted {
			t.Errorf("the older stream of a source ended as %v", st)
		}
		next := p.engine(testPeer).send(from("b", 1))
		if st := again.end(); st.Code() != codes.Aborted {
			t.Errorf("the stream of the older source ended as %v", st)
		}
		if st := p.engine(testPeer).send(from("a", 12)).end(); st.Code() != codes.FailedPrecondition {
			t.Errorf("a retired source ended as %v", st)
		}
		next.send(from("b", 2))
		p.settle()
		if e := p.entry(testAddr); e.Load.Source != "b" || p.ended(registry.ReasonSuperseded) != 2 || p.ended(registry.ReasonRetired) != 1 {
			t.Errorf("the worker speaks through %s", e.Load.Source)
		}
	})
}

func TestChangedClaimEndsTheStream(t *testing.T) {
	for name, f := range map[string]func(r *loadmonitorv1.LoadReport){
		"source":                       func(r *loadmonitorv1.LoadReport) { r.SourceInstanceId = "other" },
		"origin":                       func(r *loadmonitorv1.LoadReport) { r.Worker.WorkerAddr = "http://127.0.0.2:10" },
		"role":                         func(r *loadmonitorv1.LoadReport) { r.Worker.WorkerType = 3 },
		"with values that are refused": func(r *loadmonitorv1.LoadReport) { r.SourceInstanceId, r.Status = "other", 0 },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, []string{testAddr}, func(p *plane) {
				e := p.engine(testPeer).send(sample(1, 1), change(2, f))
				if st := e.end(); st.Code() != codes.InvalidArgument || p.ended(registry.ReasonClaimChanged) != 1 {
					t.Errorf("ended as %v", st)
				}
			})
		})
	}
}

func TestOldSequenceIsNoFault(t *testing.T) {
	inBubble(t, []string{testAddr}, func(p *plane) {
		e := p.engine(testPeer).send(sample(5, 1))
		for range 20 {
			e.send(sample(5, 2), sample(4, 2))
		}
		p.settle()
		if got := p.entry(testAddr); len(got.Ranks) != 1 || testutil.ToFloat64(p.service.metrics.streams) != 1 {
			t.Errorf("%d ranks", len(got.Ranks))
		}
	})
}

// withField adds a field to every rank of a report.
func withField(r *loadmonitorv1.LoadReport, raw []byte) *loadmonitorv1.LoadReport {
	for _, rank := range r.Ranks {
		rank.ProtoReflect().SetUnknown(raw)
	}
	return r
}

func TestFieldsOfOtherForks(t *testing.T) {
	inBubble(t, []string{testAddr}, func(p *plane) {
		fields := protowire.AppendVarint(protowire.AppendTag(nil, 14, protowire.VarintType), 77)
		p.engine(testPeer).send(withField(sample(1, 2), append(fields, slicesOf(15, 21)...)))
		p.settle()
		got := p.entry(testAddr)
		if got.Freshness != store.Fresh || got.Load.Ranks[0].Has(store.PrefillThroughput) || got.Partial {
			t.Errorf("%s, partial %v", got.Freshness, got.Partial)
		}
	})
}

func TestPrefillThroughputIsKnownOnceSent(t *testing.T) {
	inBubble(t, []string{testAddr}, func(p *plane) {
		expect := func(when string, want bool) {
			t.Helper()
			p.settle()
			for _, r := range p.entry(testAddr).Load.Ranks {
				if r.Has(store.PrefillThroughput) != want {
					t.Errorf("%s: known is %v on rank %d", when, !want, r.DPRank)
				}
			}
		}
		e := p.engine(testPeer).send(sample(1, 2))
		expect("never sent", false)
		r := sample(2, 2)
		r.Ranks[1].PrefillThroughput = 5
		r.Ranks[0].NumRunningReqs = 1000 // refused, so it does not count
		e.send(r)
		expect("sent in a refused report", false)
		r = sample(3, 2)
		r.Ranks[1].PrefillThroughput = 5
		e.send(r)
		expect("sent on one rank", true)
		e.send(change(4, func(r *loadmonitorv1.LoadReport) { r.Ranks[0].NumRunningReqs = 1 }))
		expect("zero again", true)
		e.cancel()
		p.engine(testPeer).send(change(5, func(r *loadmonitorv1.LoadReport) { r.Ranks[0].NumRunningReqs = 2 }))
		expect("in a new stream of the source", true)
		p.engine(testPeer).send(from("other", 1))
		expect("by another source", false)
	})
}

func TestEndsByTheEngine(t *testing.T) {
	inBubble(t, []string{testAddr}, func(p *plane) {
		e := p.engine(testPeer).send(sample(1, 1))
		p.settle()
		p.must(e.stream.CloseSend())
		if st := e.end(); st.Code() != codes.OK || p.ended(endClosed) != 1 {
			t.Errorf("a closed stream ended as %v", st)
		}
		e.open()
		e.send(sample(2, 1))
		p.settle()
		e.cancel()
		p.settle()
		if p.ended(endCanceled) != 1 || testutil.ToFloat64(p.service.metrics.streams) != 0 {
			t.Error("a cancelled stream is not over")
		}
		if got := p.entry(testAddr); got.Freshness != store.Fresh {
			t.Errorf("the last report is %s", got.Freshness)
		}
	})
}

func TestOverRateIsCountedOnly(t *testing.T) {
	inBubble(t, []string{testAddr}, func(p *plane) {
		e := p.engine(testPeer)
		for i := range 15 {
			e.send(sample(uint64(i+1), 1))
		}
		p.settle()
		m := p.service.metrics
		if testutil.ToFloat64(m.overRate) != 10 || testutil.ToFloat64(m.accepted) != 15 {
			t.Errorf("%v over rate of %v", testutil.ToFloat64(m.overRate), testutil.ToFloat64(m.accepted))
		}
		<-time.After(500 * time.Millisecond)
		e.send(sample(20, 1))
		p.settle()
		if got := testutil.ToFloat64(m.overRate); got != 10 {
			t.Errorf("%v over rate at twice the rate", got)
		}
	})
}

// crashing is a connection that panics.
type crashing struct{ grpc.ServerStream }

func (crashing) Context() context.Context { return context.Background() }
func (crashing) RecvMsg(any) error        { panic("boom") }

func TestPanicOfTheReceiverReachesTheHandler(t *testing.T) {
	s, err := New(Options{Registry: new(registry.Registry), Clock: store.NewClock()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if text, _ := recover().(string); !strings.HasPrefix(text, "boom\n") {
			t.Errorf("panicked with %q", text)
		}
	}()
	t.Errorf("returned %v", s.report(crashing{}))
}

// reset is a connection that breaks.
type reset struct{ crashing }

func (reset) RecvMsg(any) error { return status.Error(codes.Unavailable, "reset") }

func TestBrokenConnectionIsCounted(t *testing.T) {
	s, err := New(Options{Registry: new(registry.Registry), Clock: store.NewClock()})
	if err != nil {
		t.Fatal(err)
	}
	err = s.report(reset{})
	if got := testutil.ToFloat64(s.metrics.ended.WithLabelValues(endBroken)); got != 1 || status.Code(err) != codes.Unavailable {
		t.Errorf("%v counted, ended as %v", got, err)
	}
}

func TestNewRefusesOptions(t *testing.T) {
	r, c := new(registry.Registry), store.NewClock()
	for name, opts := range map[string]Options{
		"registry": {Clock: c},
		"clock":    {Registry: r},
		"interval": {Registry: r, Clock: c, Interval: -1},
		"ranks":    {Registry: r, Clock: c, MaxRanks: ingest.HardMaxRanks + 1},
	} {
		if _, err := New(opts); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	reg := prometheus.NewRegistry()
	for i, wantErr := range []bool{false, true} {
		if _, err := New(Options{Registry: r, Clock: c, Registerer: reg}); (err != nil) != wantErr {
			t.Errorf("registration %d: %v", i, err)
		}
	}
}

// TestRemovalOverTCP runs on loopback sockets: a worker leaves the workers
// file, another changes its role, and their silent streams end.
func TestRemovalOverTCP(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("workers:\n- url: http://127.0.0.1:9\n- url: http://127.0.0.1:19\n")
	p := newPlane(t, registry.Options{WorkersFile: path})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	p.must(err)
	p.run(p.store.Run, p.registry.Run, func(ctx context.Context) error { return p.server.Run(ctx, l) })
	open := func(addr string) *engine {
		return dialEngine(t, l.Addr().String()).send(change(1, func(r *loadmonitorv1.LoadReport) { r.Worker.WorkerAddr = addr }))
	}
	p.await(2, store.Missing)
	removed, changed := open("http://127.0.0.1:9"), open("http://127.0.0.1:19")
	p.await(2, store.Fresh)
	write("workers:\n- url: http://127.0.0.1:19\n  role: decode\n")
	if st := removed.end(); st.Code() != codes.NotFound || !strings.HasPrefix(st.Message(), string(registry.ReasonWorkerRemoved)) {
		t.Errorf("the stream of the removed worker ended as %v", st)
	}
	if st := changed.end(); st.Code() != codes.NotFound || !strings.HasPrefix(st.Message(), string(registry.ReasonIdentityChanged)) {
		t.Errorf("the stream of the changed worker ended as %v", st)
	}
	if st := open("http://127.0.0.1:9").end(); st.Code() != codes.InvalidArgument {
		t.Errorf("a late stream ended as %v", st)
	}
}

// await waits until the store has so many workers of a freshness.
func (p *plane) await(workers int, f store.Freshness) {
	p.t.Helper()
	for {
		st, stale := p.store.Current()
		n := 0
		for _, e := range st.Entries {
			if e.Freshness == f {
				n++
			}
		}
		if n == workers {
			return
		}
		select {
		case <-stale:
		case <-time.After(20 * time.Second):
			p.t.Fatalf("%d workers are %s, want %d", n, f, workers)
		}
	}
}
