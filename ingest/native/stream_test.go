package native

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/ingest"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// sample returns a healthy report of engine "a" whose rank 0 knows a few fields.
func sample(sequence uint64) *loadplanev1.EngineReport {
	return &loadplanev1.EngineReport{
		SourceInstanceId: "a", Sequence: sequence, Status: loadplanev1.Status_STATUS_HEALTHY,
		ReportTimeUnixMs: new(int64(1_700_000_000_100)),
		Ranks: []*loadplanev1.RankSample{{
			Load: &loadplanev1.RankLoad{
				NumRunningReqs: new(int64(sequence)), NumWaitingReqs: new(int64(0)), MaxTotalNumTokens: new(int64(1000)),
			},
			SnapshotTimeUnixMs: new(int64(1_700_000_000_000)),
		}},
	}
}

func encoded(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// change returns a report with a change.
func change(sequence uint64, f func(r *loadplanev1.EngineReport)) *loadplanev1.EngineReport {
	r := sample(sequence)
	f(r)
	return r
}

func TestReportReachesStore(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered()
		p.settle()
		if e := p.entry(testURL); e.Freshness != store.Missing || e.Worker.URL != testURL {
			t.Errorf("after the registration: %s", e.Freshness)
		}
		r.send(sample(1))
		p.settle()
		e := p.entry(testURL)
		if e.Freshness != store.Fresh || e.Worker.Dialect != store.DialectNative || e.Load.Sequence != 1 {
			t.Fatalf("%s (%s), dialect %s", e.Freshness, e.Reason, e.Worker.Dialect)
		}
		if v, ok := e.Ranks[0].Count(store.NumRunningReqs); v != 1 || !ok {
			t.Errorf("running requests are %d %v", v, ok)
		}
		if v, ok := e.Ranks[0].Count(store.NumWaitingReqs); v != 0 || !ok {
			t.Errorf("a known zero is %d %v", v, ok)
		}
		for _, f := range []store.Field{store.NumUsedTokens, store.TokenUsage, store.GenThroughput, store.PrefillThroughput} {
			if e.Ranks[0].Has(f) {
				t.Errorf("%s was not reported and is known", store.Fields[f].Name)
			}
		}
		if e.Load.ReceivedUnixMs != time.Now().UnixMilli()-testSettle.Milliseconds() || e.Load.Received == 0 {
			t.Errorf("received %d, %d", e.Load.Received, e.Load.ReceivedUnixMs)
		}
		m := p.service.metrics
		if testutil.ToFloat64(m.accepted) != 1 || testutil.ToFloat64(m.streams) != 1 || testutil.ToFloat64(m.bytes) < 50 || testutil.ToFloat64(m.grants) < 1 {
			t.Error("the metrics do not show one report of one stream")
		}
		r.send(change(2, func(r *loadplanev1.EngineReport) {
			r.Status, r.Ranks, r.LastError = loadplanev1.Status_STATUS_UNREACHABLE, nil, "engine is gone"
		}))
		p.settle()
		if e := p.entry(testURL); e.Freshness != store.Unreachable {
			t.Errorf("%s (%s)", e.Freshness, e.Reason)
		}
	})
}

// TestBug36And37RolesOfDisaggregation: what a prefill engine holds in flight and
// what a decode engine waits for arrive as they are, under the role of the
// registration; nothing is added to the tokens in use.
func TestBug36And37RolesOfDisaggregation(t *testing.T) {
	cases := []struct {
		name string
		role loadplanev1.Role
		load *loadplanev1.RankLoad
		want map[store.Field]int64
	}{
		{"bug 36: prefill runs nothing", loadplanev1.Role_ROLE_PREFILL, &loadplanev1.RankLoad{
			NumRunningReqs: new(int64(0)), PrefillInflightReqs: new(int64(12)), PrefillBootstrapReqs: new(int64(4)),
		}, map[store.Field]int64{store.NumRunningReqs: 0, store.PrefillInflightReqs: 12, store.PrefillBootstrapReqs: 4}},
		{"bug 37: decode waits for transfers", loadplanev1.Role_ROLE_DECODE, &loadplanev1.RankLoad{
			NumUsedTokens: new(int64(90_000)), NumTotalTokens: new(int64(97_000)),
			NumWaitingUncachedTokens: new(int64(7_000)), DecodeTransferReqs: new(int64(19)),
		}, map[store.Field]int64{store.NumUsedTokens: 90_000, store.NumTotalTokens: 97_000, store.DecodeTransferReqs: 19}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, setup{}, func(t *testing.T, p *plane) {
				r := p.reporter(testPeer)
				r.register(&loadplanev1.RegisterRequest{Url: testURL, Role: c.role})
				r.open().send(&loadplanev1.ReportRequest{LeaseId: r.lease}, change(1, func(r *loadplanev1.EngineReport) {
					r.Ranks[0].Load = c.load
				}))
				p.settle()
				e := p.entry(testURL)
				if e.Freshness != store.Fresh || int32(e.Worker.Role) != int32(c.role) {
					t.Fatalf("%s (%s) as %s", e.Freshness, e.Reason, e.Worker.Role)
				}
				for f, want := range c.want {
					if v, ok := e.Ranks[0].Count(f); v != want || !ok {
						t.Errorf("%s is %d %v, want %d", store.Fields[f].Name, v, ok, want)
					}
				}
				if e.Ranks[0].Has(store.NumWaitingReqs) || e.Ranks[0].Has(store.GenThroughput) {
					t.Error("what was not reported is known")
				}
			})
		})
	}
}

// The first frame may have a report, which then is received before the grant.
func TestReportInTheFirstFrame(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.reporter(testPeer)
		r.register(&loadplanev1.RegisterRequest{Url: testURL})
		r.open().send(&loadplanev1.ReportRequest{LeaseId: r.lease, Report: sample(1)}, &loadplanev1.ReportRequest{LeaseId: r.lease, Report: sample(2)})
		g := r.answer().GetGrant()
		if g.GetLeaseTtlMs() == 6000 {
			g = r.answer().GetGrant() // that before the report was told already
		}
		if g.GetReportIntervalMs() != 1000 || g.GetLeaseTtlMs() != 15_000 || g.GetRenewAfterMs() != 5000 {
			t.Errorf("granted %v", g)
		}
		p.settle()
		if e := p.entry(testURL); e.Freshness != store.Fresh || e.Load.Sequence != 2 {
			t.Errorf("%s, sequence %d", e.Freshness, e.Load.Sequence)
		}
	})
}

// dropped are reports that are refused while the stream goes on.
var dropped = []struct {
	reason store.Reason
	frame  any
}{
	{ingest.ReasonMalformed, []byte("\xff")},
	{ingest.ReasonMessageTooLarge, make([]byte, 64<<10+1)},
	{ingest.ReasonTooManyRanks, change(2, func(r *loadplanev1.EngineReport) { r.Ranks = make([]*loadplanev1.RankSample, 513) })},
	{ingest.ReasonBadStatus, change(2, func(r *loadplanev1.EngineReport) { r.Status = 0 })},
	{ingest.ReasonBadTime, change(2, func(r *loadplanev1.EngineReport) { r.ReportTimeUnixMs = new(int64(-1)) })},
	{ingest.ReasonUnreachableWithRanks, change(2, func(r *loadplanev1.EngineReport) { r.Status = 3 })},
	{ingest.ReasonMissingError, change(2, func(r *loadplanev1.EngineReport) { r.Status, r.Ranks = 3, nil })},
	{ingest.ReasonNoRanks, change(2, func(r *loadplanev1.EngineReport) { r.Ranks = nil })},
	{ingest.ReasonBadRank, change(2, func(r *loadplanev1.EngineReport) { r.Ranks[0].Load = nil })},
	{ingest.ReasonBadRank, change(2, func(r *loadplanev1.EngineReport) { r.Ranks[0].Load.DpRank = 4096 })},
	{ingest.ReasonDuplicateRank, change(2, func(r *loadplanev1.EngineReport) { r.Ranks = append(r.Ranks, r.Ranks[0]) })},
	{ingest.ReasonCountOutOfRange, change(2, func(r *loadplanev1.EngineReport) { r.Ranks[0].Load.NumRunningReqs = new(int64(-1)) })},
	{ingest.ReasonCountOutOfRange, change(2, func(r *loadplanev1.EngineReport) { r.Ranks[0].TotalGeneratedTokens = new(int64(-1)) })},
	{ingest.ReasonFloatOutOfRange, change(2, func(r *loadplanev1.EngineReport) { r.Ranks[0].Load.TokenUsage = new(math.NaN()) })},
	{ingest.ReasonUsedOverCapacity, change(2, func(r *loadplanev1.EngineReport) { r.Ranks[0].Load.NumUsedTokens = new(int64(1001)) })},
	{ingest.ReasonRunningOverMaximum, change(2, func(r *loadplanev1.EngineReport) { r.Ranks[0].Load.MaxRunningRequests = new(int64(1)) })},
	{registry.ReasonSequenceJump, change(2, func(r *loadplanev1.EngineReport) { r.Sequence = 1 << 63 })},
}

func TestInvalidReportsAreDropped(t *testing.T) {
	for i, tt := range dropped {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d %s/first=%v", i, tt.reason, first), func(t *testing.T) {
				inBubble(t, setup{}, func(t *testing.T, p *plane) {
					r := p.registered()
					if !first {
						r.send(sample(1))
					}
					p.settle()
					before, _ := p.store.Current()
					r.send(tt.frame)
					if got := r.refusal(); got.GetReason() != string(tt.reason) || got.GetMessage() == "" {
						t.Errorf("answered %v, want %s", got, tt.reason)
					}
					p.settle()
					if after, _ := p.store.Current(); after.Content != before.Content {
						t.Errorf("version %d became %d", before.Version, after.Version)
					}
					if got := p.refused(tt.reason); got != 1 {
						t.Errorf("%v were refused as %s", got, tt.reason)
					}
					r.send(sample(3))
					p.settle()
					if e := p.entry(testURL); e.Freshness != store.Fresh || e.Load.Sequence != 3 {
						t.Errorf("the next report leaves %s", e.Freshness)
					}
				})
			})
		}
	}
}

// fatal are frames that end their stream: the first one, and those after a
// report.
var fatal = []struct {
	name   string
	reason store.Reason
	code   codes.Code
	first  any
	later  any
}{
	{"no lease", ingest.ReasonMissingLease, codes.InvalidArgument, &loadplanev1.ReportRequest{Report: sample(1)}, nil},
	{"no lease that is known", registry.ReasonUnknownLease, codes.NotFound, &loadplanev1.ReportRequest{LeaseId: "guess"}, nil},
	{"long lease", ingest.ReasonIdentityTooLong, codes.InvalidArgument, &loadplanev1.ReportRequest{LeaseId: strings.Repeat("x", 129)}, nil},
	{"no frame", ingest.ReasonMalformed, codes.InvalidArgument, []byte("\xff"), nil},
	{"large frame", ingest.ReasonMessageTooLarge, codes.ResourceExhausted, make([]byte, 64<<10+1), nil},
	{"4 MiB", ingest.ReasonMessageTooLarge, codes.ResourceExhausted, make([]byte, 4<<20), nil},
	{"no source", ingest.ReasonMissingSource, codes.InvalidArgument, nil, change(2, func(r *loadplanev1.EngineReport) { r.SourceInstanceId = "" })},
	{"long source", ingest.ReasonIdentityTooLong, codes.InvalidArgument, nil, change(2, func(r *loadplanev1.EngineReport) { r.SourceInstanceId = strings.Repeat("x", 129) })},
	{"another source", registry.ReasonClaimChanged, codes.InvalidArgument, nil, change(2, func(r *loadplanev1.EngineReport) { r.SourceInstanceId = "b" })},
	{"another lease", registry.ReasonClaimChanged, codes.InvalidArgument, nil, &loadplanev1.ReportRequest{LeaseId: "guess", Report: sample(2)}},
	{"4 MiB later", ingest.ReasonMessageTooLarge, codes.ResourceExhausted, nil, make([]byte, 4<<20)},
}

func TestFatalFramesEndTheStream(t *testing.T) {
	for _, tt := range fatal {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, setup{}, func(t *testing.T, p *plane) {
				var r *reporter
				if tt.first != nil {
					r = p.reporter(testPeer).open().send(tt.first)
				} else {
					r = p.registered().send(sample(1))
					p.settle()
				}
				before, _ := p.store.Current()
				r.send(tt.later)
				st := r.end()
				if st.Code() != tt.code || !strings.HasPrefix(st.Message(), string(tt.reason)) && st.Code() != codes.ResourceExhausted {
					t.Fatalf("ended as %v, want %v", st, tt.code)
				}
				p.settle()
				if e := p.find(testURL); e != nil && tt.first == nil {
					if _, d, _ := p.store.Inspect(e.Row); d.Refused != 1 || d.LastRefusal != tt.reason {
						t.Errorf("the worker shows %d refused, the last %q", d.Refused, d.LastRefusal)
					}
				}
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

func TestTenRefusedInRowEndTheStream(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered()
		bad := func(n int) {
			for range n {
				r.send([]byte("\xff"))
				<-time.After(time.Second)
				r.renew()
			}
		}
		bad(9)
		r.send(sample(1))
		bad(9)
		p.settle()
		if got := testutil.ToFloat64(p.service.metrics.streams); got != 1 {
			t.Fatalf("%v streams are open", got)
		}
		r.send([]byte("\xff"))
		if st := r.end(); st.Code() != codes.InvalidArgument || p.ended(ingest.ReasonTooManyRefused) != 1 {
			t.Errorf("ended as %v", st)
		}
		if got := p.refused(ingest.ReasonMalformed); got != 19 {
			t.Errorf("%v reports were refused", got)
		}
	})
}

// A new stream of a lease takes the place of the one before.
func TestNewStreamSupersedes(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered().send(sample(1))
		p.settle()
		old := r.stream
		r.open().send(&loadplanev1.ReportRequest{LeaseId: r.lease, Report: change(1, func(r *loadplanev1.EngineReport) { r.SourceInstanceId = "b" })})
		if st := (&reporter{t: t, stream: old}).end(); st.Code() != codes.Aborted || p.ended(registry.ReasonSuperseded) != 1 {
			t.Errorf("the older stream ended as %v", st)
		}
		p.settle()
		if e := p.entry(testURL); e.Load.Source != "b" {
			t.Errorf("the worker speaks through %s", e.Load.Source)
		}
	})
}

func TestStreamEndsByItself(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered().send(sample(1))
		p.must(r.stream.CloseSend())
		if st := r.end(); st.Code() != codes.OK || p.ended(endClosed) != 1 {
			t.Errorf("closed: %v", st)
		}
		r.open().send(&loadplanev1.ReportRequest{LeaseId: r.lease, Report: sample(2)})
		p.settle()
		r.cancel()
		p.settle()
		if p.ended(endCanceled) != 1 {
			t.Error("a cancelled stream is not counted")
		}
		if e := p.entry(testURL); e.Freshness != store.Fresh || e.Load.Sequence != 2 {
			t.Errorf("%s, sequence %d", e.Freshness, e.Load.Sequence)
		}
	})
}

// A reporter that goes on reporting but does not renew loses its lease, and the
// worker that only the lease added.
func TestLeaseEnds(t *testing.T) {
	for _, bound := range []bool{true, false} {
		t.Run(fmt.Sprintf("bound=%v", bound), func(t *testing.T) {
			inBubble(t, setup{}, func(t *testing.T, p *plane) {
				r, begin := p.registered(), time.Now()
				if bound {
					r.send(sample(1))
				}
				st := r.end()
				if st.Code() != codes.NotFound || !strings.HasPrefix(st.Message(), string(registry.ReasonLeaseExpired)) {
					t.Errorf("ended as %v", st)
				}
				want := lease
				if !bound {
					want = 2 * staleAfter // nobody has reported by it
				}
				if took := time.Since(begin); took < want-time.Second || took > want+time.Second {
					t.Errorf("the lease ended after %s", took)
				}
				p.settle()
				if e := p.find(testURL); e != nil {
					t.Errorf("the worker is still there: %s", e.Freshness)
				}
				if p.ended(registry.ReasonLeaseExpired) != 1 {
					t.Error("the end is not counted")
				}
				if _, err := r.calls.Register(t.Context(), &loadplanev1.RegisterRequest{Url: testURL, LeaseId: r.lease}); status.Code(err) != codes.NotFound {
					t.Errorf("a renewal then: %v", err)
				}
			})
		})
	}
}

func TestRenewalKeepsTheLease(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered()
		for i := range 20 {
			r.send(sample(uint64(i + 1)))
			if i == 0 {
				if g := r.answer().GetGrant(); g.GetRenewAfterMs() != 5000 {
					t.Errorf("the first report is granted %v", g)
				}
			}
			<-time.After(5 * time.Second)
			if g := r.renew().GetGrant(); g.GetRenewAfterMs() != 5000 {
				t.Fatalf("granted %v", g)
			}
		}
		r.send(sample(21))
		p.settle()
		if e := p.entry(testURL); e.Freshness != store.Fresh || e.Load.Sequence != 21 {
			t.Errorf("%s, sequence %d", e.Freshness, e.Load.Sequence)
		}
		m := p.service.metrics
		if got := testutil.ToFloat64(m.registrations.WithLabelValues(outcomeRenewed)); got != 20 {
			t.Errorf("%v renewals", got)
		}
		// The grant did not change since the first report: it was told twice.
		if got := testutil.ToFloat64(m.grants); got != 2 {
			t.Errorf("%v grants", got)
		}
	})
}

func TestDeregister(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered().send(sample(1))
		p.settle()
		if _, err := r.calls.Deregister(t.Context(), &loadplanev1.DeregisterRequest{LeaseId: r.lease}); err != nil {
			t.Fatal(err)
		}
		if st := r.end(); st.Code() != codes.NotFound {
			t.Errorf("the stream ended as %v", st)
		}
		p.settle()
		if p.find(testURL) != nil {
			t.Error("the worker is still there")
		}
		if _, err := r.calls.Deregister(t.Context(), &loadplanev1.DeregisterRequest{LeaseId: r.lease}); status.Code(err) != codes.NotFound {
			t.Errorf("once more: %v", err)
		}
	})
}

func TestDrainEndsStreams(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered().send(sample(1))
		p.settle()
		p.registry.Drain()
		if st := r.end(); st.Code() != codes.Unavailable || p.ended(registry.ReasonShuttingDown) != 1 {
			t.Errorf("ended as %v", st)
		}
		if _, err := r.calls.Register(t.Context(), &loadplanev1.RegisterRequest{Url: testURL}); status.Code(err) != codes.Unavailable {
			t.Errorf("a registration then: %v", err)
		}
	})
}

// Two reporters of one engine, by a copied configuration: the one that is heard
// owns it, and the other one is told so. It takes over when the owner is silent,
// and never mixes into what is known.
func TestBug23TwoReportersOfOneEngine(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		owner := p.registered().send(sample(7))
		p.settle()
		other := p.reporter("127.0.0.2:6000")
		ask := func() error {
			_, err := other.calls.Register(t.Context(), &loadplanev1.RegisterRequest{Url: testURL})
			return err
		}
		for i := range 5 {
			if err := ask(); status.Code(err) != codes.AlreadyExists {
				t.Fatalf("the other one gets %v", err)
			}
			<-time.After(time.Second)
			owner.send(sample(uint64(i + 8)))
		}
		if got := p.denied(registry.ReasonLeaseHeld); got != 5 {
			t.Errorf("%v conflicts were counted", got)
		}
		e := p.entry(testURL)
		if _, shown, _ := p.store.Inspect(e.Row); e.Load.Source != "a" || shown.LastRefusal != registry.ReasonLeaseHeld {
			t.Errorf("the worker speaks through %s, and shows %q", e.Load.Source, shown.LastRefusal)
		}
		<-time.After(staleAfter + time.Second)
		if err := ask(); err != nil {
			t.Errorf("once the owner is silent: %v", err)
		}
		if st := owner.end(); st.Code() != codes.Aborted {
			t.Errorf("the owner's stream ended as %v", st)
		}
	})
}

// A worker that discovery lists keeps what discovery says, and stays when the
// lease ends.
func TestReporterOfDiscoveredWorker(t *testing.T) {
	listed := registry.Options{Workers: []string{testURL + ",id=engine-1,role=decode,model=m,dialect=native"}}
	inBubble(t, setup{registry: listed}, func(t *testing.T, p *plane) {
		r := p.reporter(testPeer)
		answer := r.register(&loadplanev1.RegisterRequest{Url: testURL, Models: []string{"other"}})
		if answer.GetWorkerId() != "engine-1" {
			t.Errorf("registered as %s", answer.GetWorkerId())
		}
		r.open().send(&loadplanev1.ReportRequest{LeaseId: r.lease, Report: sample(1)})
		p.settle()
		if e := p.entry("engine-1"); e.Freshness != store.Fresh || e.Worker.Role != store.RoleDecode || e.Worker.Models[0] != "m" {
			t.Errorf("%s, %s, %s", e.Freshness, e.Worker.Role, e.Worker.Models)
		}
		if st := r.end(); st.Code() != codes.NotFound {
			t.Errorf("ended as %v", st)
		}
		p.settle()
		if e := p.entry("engine-1"); e.Freshness != store.Stale {
			t.Errorf("once the lease ended: %s", e.Freshness)
		}
	})
}

// Under load the plane grants longer intervals, also to those that report
// already, and shorter ones when the load is gone.
func TestGrantChangesUnderLoad(t *testing.T) {
	inBubble(t, setup{registry: registry.Options{MaxReportsPerSecond: 20}}, func(t *testing.T, p *plane) {
		wish := &loadplanev1.RegisterRequest{Url: testURL, ReportIntervalMs: 100}
		r := p.reporter(testPeer)
		r.register(wish)
		r.open().send(&loadplanev1.ReportRequest{LeaseId: r.lease, Report: sample(1)})
		if g := r.answer().GetGrant(); g.GetReportIntervalMs() != 100 {
			t.Fatalf("granted %v", g)
		}
		var others []*reporter
		for i := range 9 {
			o := p.reporter(fmt.Sprintf("127.0.1.%d:1", i+1))
			o.register(&loadplanev1.RegisterRequest{Url: fmt.Sprintf("http://127.0.1.%d:1", i+1), ReportIntervalMs: 100})
			o.open().send(&loadplanev1.ReportRequest{LeaseId: o.lease, Report: sample(1)})
			others = append(others, o)
		}
		longest := uint32(0)
		for longest < 450 {
			longest = max(longest, r.answer().GetGrant().GetReportIntervalMs())
		}
		for _, o := range others {
			if _, err := o.calls.Deregister(t.Context(), &loadplanev1.DeregisterRequest{LeaseId: o.lease}); err != nil {
				t.Fatal(err)
			}
		}
		for shortest := longest; shortest > 100; {
			shortest = r.answer().GetGrant().GetReportIntervalMs()
		}
		r.send(sample(2))
		p.settle()
		if e := p.entry(testURL); e.Load.Sequence != 2 {
			t.Errorf("sequence %d", e.Load.Sequence)
		}
	})
}

// Reports above twice the granted rate are merged: the newest counts, and it is
// taken as soon as the rate allows.
func TestReportsAboveTheRateAreMerged(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered()
		for i := range 20 {
			r.send(sample(uint64(i + 1)))
		}
		p.settle()
		if e := p.entry(testURL); e.Load.Sequence != rateBurst {
			t.Errorf("sequence %d of a burst of 20", e.Load.Sequence)
		}
		<-time.After(500 * time.Millisecond)
		p.settle()
		if e := p.entry(testURL); e.Load.Sequence != 20 {
			t.Errorf("sequence %d when the rate allows another one", e.Load.Sequence)
		}
		m := p.service.metrics
		if testutil.ToFloat64(m.accepted) != rateBurst+1 || testutil.ToFloat64(m.merged) != 15 {
			t.Errorf("%v accepted, %v merged", testutil.ToFloat64(m.accepted), testutil.ToFloat64(m.merged))
		}
		// At twice the rate nothing is merged.
		<-time.After(5 * time.Second)
		r.renew()
		for i := range 10 {
			r.send(sample(uint64(i + 21)))
			<-time.After(500 * time.Millisecond)
		}
		if got := testutil.ToFloat64(m.merged); got != 15 {
			t.Errorf("%v merged at twice the rate", got)
		}
	})
}

// A newer report takes the place of one that is held back.
func TestHeldReportIsReplaced(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered()
		for i := range rateBurst + 1 {
			r.send(sample(uint64(i + 1)))
		}
		synctest.Wait()
		<-time.After(300 * time.Millisecond)
		r.send(sample(100))
		<-time.After(300 * time.Millisecond)
		p.settle()
		if e := p.entry(testURL); e.Load.Sequence != 100 || testutil.ToFloat64(p.service.metrics.accepted) != rateBurst+1 {
			t.Errorf("sequence %d", e.Load.Sequence)
		}
	})
}

// A reporter that floods is ended with a hint when to come back, and costs the
// others nothing.
func TestFloodEndsTheStream(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		calm := p.reporter("127.0.0.3:1")
		calm.register(&loadplanev1.RegisterRequest{Url: "http://127.0.0.3:1"})
		calm.open().send(&loadplanev1.ReportRequest{LeaseId: calm.lease})
		r := p.registered()
		sequence := uint64(0)
		for p.ended(ingest.ReasonReportRate) == 0 && sequence < 20_000 {
			sequence++
			r.send(sample(sequence))
			if sequence%10_000 == 0 {
				calm.send(sample(sequence))
			}
			<-time.After(100 * time.Microsecond)
		}
		st := r.end()
		if st.Code() != codes.ResourceExhausted || sequence > 1000 {
			t.Fatalf("ended as %v after %d reports", st, sequence)
		}
		hinted := false
		for _, d := range st.Details() {
			info, ok := d.(*errdetails.RetryInfo)
			hinted = hinted || ok && info.RetryDelay.AsDuration() > 0
		}
		if !hinted {
			t.Error("there is no hint")
		}
		calm.send(sample(1))
		p.settle()
		if e := p.entry("http://127.0.0.3:1"); e.Freshness != store.Fresh {
			t.Errorf("the other one is %s", e.Freshness)
		}
	})
}

// A reporter that was granted a longer interval, and reports at the old one for
// a while, is not ended.
func TestOldRateIsBorne(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered()
		for i := range 400 {
			r.send(sample(uint64(i + 1)))
			<-time.After(10 * time.Millisecond)
		}
		if got := testutil.ToFloat64(p.service.metrics.streams); got != 1 {
			t.Errorf("%v streams are open", got)
		}
		<-time.After(time.Second)
		p.settle()
		if e := p.entry(testURL); e.Load.Sequence != 400 {
			t.Errorf("sequence %d", e.Load.Sequence)
		}
	})
}

func TestStreamWithoutAFirstFrame(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		other := p.registered().send(sample(1))
		r := p.reporter(testPeer).open()
		<-time.After(openTimeout - time.Second)
		other.renew()
		p.settle()
		if p.ended(ingest.ReasonMissingLease) != 0 {
			t.Error("it ended early")
		}
		<-time.After(2 * time.Second)
		p.settle()
		if st := r.end(); st.Code() != codes.InvalidArgument || p.ended(ingest.ReasonMissingLease) != 1 {
			t.Errorf("ended as %v", st)
		}
		other.send(sample(2)) // one that named its lease stays
		p.settle()
		if e := p.entry(testURL); e.Freshness != store.Fresh {
			t.Errorf("the other one is %s (%s)", e.Freshness, e.Reason)
		}
	})
}

// A reporter that never reads is heard nevertheless, until what it is answered
// fills its windows; its stream ends then.
func TestNeverReadingPeer(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.reporter(testPeer)
		r.register(&loadplanev1.RegisterRequest{Url: testURL})
		r.open().send(&loadplanev1.ReportRequest{LeaseId: r.lease})
		bad := change(1, func(r *loadplanev1.EngineReport) { r.Ranks[0].Load.NumUsedTokens = new(int64(1 << 50)) })
		sequence := uint64(0)
		for ; p.ended(ingest.ReasonAnswersUnread) == 0 && sequence < 10_000; sequence++ {
			r.send(bad, sample(sequence+1))
			<-time.After(time.Second)
			p.settle()
			if p.ended(ingest.ReasonAnswersUnread) > 0 {
				break
			}
			if e := p.entry(testURL); e.Load.Sequence != sequence+1 {
				t.Fatalf("report %d is not taken, the last one is %d", sequence+1, e.Load.Sequence)
			}
			if sequence%5 == 0 {
				r.renew()
			}
		}
		if st := r.end(); st.Code() != codes.ResourceExhausted || sequence < 100 {
			t.Errorf("ended as %v after %d reports", st, sequence)
		}
	})
}

// TestReporterThatWasSilentStaysConnected while it is not believed yet, and is
// told why.
func TestReporterThatWasSilentStaysConnected(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered()
		ss := &session{stream: &stream{service: p.service}, answers: newAnswers(nil)}
		unsteady := &registry.Refusal{Reason: registry.ReasonUnsteady, Message: "m", Drop: true}
		for range 10 * ingest.MaxRefusedInRow {
			if why := ss.refused(1, unsteady); why != nil {
				t.Fatalf("the stream ends: %v", why)
			}
		}
		if m := ss.answers.take(true); m.GetRefusal().GetReason() != string(registry.ReasonUnsteady) {
			t.Errorf("told %v", m)
		}
		r.cancel()
	})
}

// The lease is a secret: who reads the log cannot report.
func TestLeaseIsNotLogged(t *testing.T) {
	inBubble(t, setup{}, func(t *testing.T, p *plane) {
		r := p.registered().send(sample(1), []byte("\xff"))
		r.renew()
		p.settle()
		r.open().send(&loadplanev1.ReportRequest{LeaseId: r.lease}, &loadplanev1.ReportRequest{LeaseId: r.lease + "x"})
		r.end()
		other := p.reporter("127.0.0.9:1")
		for _, id := range []string{r.lease, r.lease + "y"} {
			_, err := other.calls.Register(t.Context(), &loadplanev1.RegisterRequest{Url: testURL, LeaseId: id})
			if err == nil || strings.Contains(err.Error(), r.lease) {
				t.Errorf("another peer with the lease: %v", err)
			}
		}
		<-time.After(lease + time.Second)
		p.settle()
		if log := p.log.String(); strings.Contains(log, r.lease) || !strings.Contains(log, "reporter registered") {
			t.Error("the log has the lease, or nothing")
		}
	})
}
