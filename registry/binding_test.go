package registry

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
)

func TestBindLeavesTheReportInTheStore(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		b := p.bindAs("s1", 5)
		p.settle()
		e, live := p.entry(testWorker)
		if e.Load == nil || e.Load.Source != "s1" || live.Sequence != 5 {
			t.Fatalf("entry %+v, live %+v", e, live)
		}
		st, _, _ := p.st.Inspect(e.Row)
		if st.Source != "s1" || st.Peer != testPeer.String() || st.Generation != 1 || b.Err() != nil {
			t.Errorf("stream %+v, err %v", st, b.Err())
		}
		b.Close()
		p.settle()
		if st, _, _ = p.st.Inspect(e.Row); st.Peer != "" || st.Source != "s1" {
			t.Errorf("after Close: %+v", st)
		}
		if e, _ = p.entry(testWorker); e.Freshness != store.Unreachable {
			t.Errorf("the last report must stay, got %v", e.Freshness)
		}
	})
}

// TestPermutedSequences sends one source's reports in every kind of disorder:
// what stays is the highest.
func TestPermutedSequences(t *testing.T) {
	for seed := range uint64(20) {
		inBubble(t, []string{testWorker}, func(p *plane) {
			p.run()
			rnd := rand.New(rand.NewPCG(seed, 1))
			sequences := rnd.Perm(200)
			b := p.bindAs("s1", uint64(sequences[0]))
			highest, old := uint64(sequences[0]), 0.0
			for i, q := range sequences[1:] {
				if i%50 == 49 { // the engine reconnects
					p.settle()
					b = p.bindAs("s1", uint64(q))
				} else if err := b.Admit(p.load("s1", uint64(q))); err != nil {
					t.Fatal(err)
				}
				if uint64(q) <= highest {
					old++
				}
				highest = max(highest, uint64(q))
			}
			p.settle()
			if _, live := p.entry(testWorker); live.Sequence != highest {
				t.Errorf("seed %d: sequence %d, want %d", seed, live.Sequence, highest)
			}
			if got := p.refusals(ReasonOldSequence); got != old {
				t.Errorf("seed %d: %v old sequences counted, want %v", seed, got, old)
			}
		})
	}
}

func TestOldSequenceDoesNotRefreshTheReceipt(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		b := p.bindAs("s1", 9)
		p.settle()
		_, before := p.entry(testWorker)
		p.after(time.Second)
		for _, q := range []uint64{9, 8, 0} {
			if err := b.Admit(p.load("s1", q)); err != nil {
				t.Fatal(err)
			}
		}
		p.settle()
		if _, after := p.entry(testWorker); after.Received != before.Received || after.Sequence != 9 {
			t.Errorf("before %+v, after %+v", before, after)
		}
	})
}

func TestSequenceZeroIsLegal(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		p.bindAs("s1", 0)
		p.settle()
		if e, _ := p.entry(testWorker); e.Load == nil {
			t.Error("a first sequence of 0 was not taken")
		}
	})
}

func TestSequenceJumps(t *testing.T) {
	const far = uint64(1) << 33
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		for _, q := range []uint64{1<<62 + 1, 1<<64 - 1} {
			_, err := p.Bind(claim("s1"), p.load("s1", q))
			wantRefusal(t, err, ReasonSequenceJump, true)
		}
		b := p.bindAs("s1", 10)
		if err := b.Admit(p.load("s1", 10+1<<32)); err != nil {
			t.Errorf("a jump of 2^32: %v", err)
		}
		wantRefusal(t, b.Admit(p.load("s1", 11+far)), ReasonSequenceJump, true)
		if err := b.Admit(p.load("s1", 11+1<<32)); err != nil || b.Err() != nil {
			t.Errorf("the stream must go on after a jump: %v, %v", err, b.Err())
		}
		p.after(testStale - time.Millisecond)
		wantRefusal(t, b.Admit(p.load("s1", 1<<40)), ReasonSequenceJump, true)
		p.after(time.Millisecond)
		wantRefusal(t, b.Admit(p.load("s1", 1<<62+1)), ReasonSequenceJump, true)
		if err := b.Admit(p.load("s1", 1<<40)); err != nil {
			t.Errorf("a jump after silence: %v", err)
		}
		if got := testutil.ToFloat64(p.metrics.rebased); got != 1 {
			t.Errorf("%v new bases counted", got)
		}
		if got := p.refusals(ReasonSequenceJump); got != 5 {
			t.Errorf("%v jumps counted, want 5", got)
		}
	})
}

func TestSecondStreamOfTheSameSourceReplacesTheFirst(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		first := p.bindAs("s1", 1)
		second := p.bindAs("s1", 1) // an old sequence binds
		<-first.Ended()
		wantRefusal(t, first.Err(), ReasonSuperseded, false)
		wantRefusal(t, first.Admit(p.load("s1", 2)), ReasonSuperseded, false)
		if err := second.Admit(p.load("s1", 2)); err != nil {
			t.Error(err)
		}
		first.Close() // must not take the right of the second
		if err := second.Admit(p.load("s1", 3)); err != nil {
			t.Error(err)
		}
		if got := p.refusals(ReasonSuperseded); got != 1 {
			t.Errorf("superseded counted %v times", got)
		}
	})
}

func TestRetiredInstance(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		p.bindAs("old", 7)
		p.bindAs("new", 100)
		_, err := p.Bind(claim("old"), p.load("old", 8))
		wantRefusal(t, err, ReasonRetired, false)
		p.after(testStale - time.Millisecond)
		_, err = p.Bind(claim("old"), p.load("old", 9))
		wantRefusal(t, err, ReasonRetired, false)
		p.after(time.Millisecond)
		b := p.bindAs("old", 7) // not above its own last
		p.settle()
		if e, live := p.entry(testWorker); e.Load.Source != "new" || live.Sequence != 100 {
			t.Errorf("an old report of a returning instance was taken: %+v", live)
		}
		if err := b.Admit(p.load("old", 8)); err != nil {
			t.Error(err)
		}
		p.settle()
		e, live := p.entry(testWorker)
		st, _, _ := p.st.Inspect(e.Row)
		if e.Load.Source != "old" || live.Sequence != 8 || fmt.Sprint(st.Retired) != "[new]" {
			t.Errorf("source %s, sequence %d, stream %+v", e.Load.Source, live.Sequence, st)
		}
		if testutil.ToFloat64(p.metrics.flaps) != 1 {
			t.Error("the flap was not counted")
		}
	})
}

// TestTakeovers holds the set of retired instances to its bound, and the
// newest instance to the worker.
func TestTakeovers(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		const takeovers = 1000
		for i := range takeovers + 1 {
			p.bindAs(fmt.Sprint("s", i), uint64(takeovers-i))
		}
		p.settle()
		e, live := p.entry(testWorker)
		st, _, _ := p.st.Inspect(e.Row)
		if e.Load.Source != "s1000" || live.Sequence != 0 {
			t.Errorf("source %s, sequence %d", e.Load.Source, live.Sequence)
		}
		if len(st.Retired) != maxRetired || st.Retired[0] != "s984" || st.Retired[15] != "s999" {
			t.Errorf("retired %v", st.Retired)
		}
		if got := testutil.ToFloat64(p.metrics.takeovers); got != takeovers {
			t.Errorf("%v takeovers counted", got)
		}
		if got := testutil.ToFloat64(p.metrics.bound); got != 1 {
			t.Errorf("%v streams bound", got)
		}
	})
}

func TestCheck(t *testing.T) {
	for name, change := range map[string]func(*Claim){
		"origin":     func(c *Claim) { c.Addr = "http://10.0.0.1:30001" },
		"no address": func(c *Claim) { c.Addr = "::" },
		"role":       func(c *Claim) { c.Role = store.RoleDecode },
		"source":     func(c *Claim) { c.Source = "s2" },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, []string{testWorker}, func(p *plane) {
				p.run()
				b := p.bindAs("s1", 1)
				same := claim("s1")
				same.Addr = "HTTP://10.0.0.1:30000/"
				if err := b.Check(same); err != nil {
					t.Fatalf("another spelling of the origin: %v", err)
				}
				other := claim("s1")
				change(&other)
				wantRefusal(t, b.Check(other), ReasonClaimChanged, false)
				<-b.Ended()
				wantRefusal(t, b.Check(claim("s1")), ReasonClaimChanged, false)
				wantRefusal(t, b.Admit(p.load("s1", 2)), ReasonClaimChanged, false)
				if got := p.refusals(ReasonClaimChanged); got != 1 {
					t.Errorf("counted %v times", got)
				}
			})
		})
	}
}

func TestPeers(t *testing.T) {
	for name, c := range map[string]struct {
		worker, peer string
		ok           bool
	}{
		"own address":         {"http://10.0.0.1:30000", "10.0.0.1:1", true},
		"mapped address":      {"http://10.0.0.1:30000", "[::ffff:10.0.0.1]:1", true},
		"another address":     {"http://10.0.0.1:30000", "10.0.0.2:1", false},
		"in peers":            {"http://10.0.0.1:30000,peers=10.0.0.0/30", "10.0.0.2:1", true},
		"outside peers":       {"http://10.0.0.1:30000,peers=10.0.0.0/30", "10.0.0.4:1", false},
		"peers add to own":    {"http://10.0.0.1:30000,peers=10.9.0.1", "10.0.0.1:1", true},
		"zoned peer":          {"http://[fe80::1]:30000", "[fe80::1%eth0]:1", true},
		"localhost over IPv4": {"http://localhost:30000", "127.0.0.1:1", true},
		"localhost over IPv6": {"http://localhost:30000", "[::1]:1", true},
		"localhost elsewhere": {"http://localhost:30000", "127.0.0.2:1", false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, []string{c.worker}, func(p *plane) {
				p.run()
				url, _, _ := strings.Cut(c.worker, ",")
				_, err := p.Bind(Claim{Addr: url, Role: store.RoleRegular, Source: "s", Peer: netip.MustParseAddrPort(c.peer)}, p.load("s", 1))
				if !c.ok {
					wantRefusal(t, err, ReasonPeerMismatch, false)
					p.settle()
					peer, shown := netip.MustParseAddrPort(c.peer).Addr().String(), p.diagnostics(url).LastRefusalDetail
					for _, part := range []string{peer, "peers="} {
						if !strings.Contains(shown, part) || !strings.Contains(err.Error(), part) {
							t.Errorf("operators are shown %q and the peer %q, which both should name %s", shown, err, part)
						}
					}
					if strings.Contains(err.Error(), "expected") {
						t.Errorf("a stranger is told %q", err)
					}
				} else if err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestSpoofs sends reports of other hosts' workers from one address: nothing
// changes.
func TestSpoofs(t *testing.T) {
	var workers []string
	for i := range 50 {
		workers = append(workers, fmt.Sprintf("http://10.0.1.%d:30000", i))
	}
	inBubble(t, workers, func(p *plane) {
		p.run()
		before, _ := p.st.Current()
		for i := range 10_000 {
			c := Claim{Addr: workers[i%50], Role: store.RoleRegular, Source: fmt.Sprint(i), Peer: otherPeer}
			_, err := p.Bind(c, p.load(c.Source, 1))
			wantRefusal(t, err, ReasonPeerMismatch, false)
		}
		p.settle()
		if after, _ := p.st.Current(); after.Version != before.Version {
			t.Errorf("version %d became %d", before.Version, after.Version)
		}
		if d := p.diagnostics(workers[0]); d.Refused != 200 || d.LastRefusal != ReasonPeerMismatch {
			t.Errorf("diagnostics %+v", d)
		}
	})
}

func TestOriginOnlySkipsThePeer(t *testing.T) {
	inBubbleWith(t, func(o *Options) { o.Workers, o.OriginOnly = []string{testWorker}, true }, func(p *plane) {
		p.run()
		c := claim("s1")
		c.Peer = otherPeer
		if _, err := p.Bind(c, p.load("s1", 1)); err != nil {
			t.Error(err)
		}
	})
}

func TestDrain(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		b := p.bindAs("s1", 1)
		p.Drain()
		<-b.Ended()
		wantRefusal(t, b.Err(), ReasonShuttingDown, false)
		_, err := p.Bind(claim("s1"), p.load("s1", 2))
		wantRefusal(t, err, ReasonShuttingDown, false)
	})
}

func TestRefuseCountsForeignReasons(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		b := p.bindAs("s1", 1)
		p.Refuse(nil, claim("s1"), &Refusal{Reason: "invalid"})
		p.Refuse(b, claim("s1"), &Refusal{Reason: "invalid", Message: "it is"})
		if d := p.diagnostics(testWorker); d.Refused != 1 || d.LastRefusal != "invalid" || d.LastRefusalDetail != "it is" || p.refusals("invalid") != 2 {
			t.Errorf("diagnostics %+v, counted %v", d, p.refusals("invalid"))
		}
		for i := range 3 * maxReasons {
			p.Refuse(nil, Claim{}, &Refusal{Reason: store.Reason(fmt.Sprint("r", i))})
		}
		if got := testutil.CollectAndCount(p.metrics.refused); got > maxReasons+2 {
			t.Errorf("%d series", got)
		}
	})
}

func TestAdmitDoesNotAllocate(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		b := p.bindAs("s1", 1)
		c := claim("s1")
		loads := make([]*store.Load, 200)
		for i := range loads {
			loads[i] = p.load("s1", uint64(i+2))
		}
		i := 0
		if n := testing.AllocsPerRun(100, func() {
			if b.Check(c) != nil || b.Admit(loads[i]) != nil {
				t.Fatal("refused")
			}
			i++
		}); n != 0 {
			t.Errorf("%v allocations for a report", n)
		}
	})
}

func BenchmarkAdmit(b *testing.B) {
	st, err := store.New(store.Options{
		Lineage: "bench", Epoch: 1, Clock: store.NewClock(), StaleAfter: testStale, Settle: testSettle, ReportInterval: testInterval,
	})
	if err != nil {
		b.Fatal(err)
	}
	r, err := New(testOptions(st, testWorker))
	if err != nil {
		b.Fatal(err)
	}
	r.reconcile(func(*worker, time.Duration) {})
	l := &store.Load{Source: "s1", Received: 1}
	bound, err := r.Bind(claim("s1"), l)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		l.Sequence++
		if err := bound.Admit(l); err != nil {
			b.Fatal(err)
		}
	}
}

// TestHeardIsTheLastReport holds the right of the current instance to its last
// report, not to its first.
func TestHeardIsTheLastReport(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		p.bindAs("old", 7)
		b := p.bindAs("new", 100)
		p.after(testStale - time.Second)
		if err := b.Admit(p.load("new", 101)); err != nil {
			t.Fatal(err)
		}
		p.after(testStale - time.Millisecond)
		_, err := p.Bind(claim("old"), p.load("old", 8))
		wantRefusal(t, err, ReasonRetired, false)
		wantRefusal(t, b.Admit(p.load("new", 1<<40)), ReasonSequenceJump, true)
		p.after(time.Millisecond)
		p.bindAs("old", 8)
	})
}

func TestHighestFirstSequence(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		p.bindAs("s1", maxFirstSequence)
		p.settle()
		if _, live := p.entry(testWorker); live == nil || live.Sequence != maxFirstSequence {
			t.Errorf("live %+v", live)
		}
	})
}

// TestEndedStreamEndsNoOther changes the claim on a stream that was superseded.
func TestEndedStreamEndsNoOther(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		first := p.bindAs("s1", 1)
		second := p.bindAs("s1", 2)
		wantRefusal(t, first.Check(claim("s2")), ReasonSuperseded, false)
		if err := second.Err(); err != nil {
			t.Error(err)
		}
		if err := second.Admit(p.load("s1", 3)); err != nil {
			t.Error(err)
		}
		if got := p.refusals(ReasonClaimChanged); got != 0 {
			t.Errorf("counted %v changed claims", got)
		}
	})
}

// TestChangedClaimFreesTheWorker: the peer is gone from the row of streams,
// and the engine is asked early.
func TestChangedClaimFreesTheWorker(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		p.run()
		b := p.bindAs("s1", 1)
		wantRefusal(t, b.Check(claim("s2")), ReasonClaimChanged, false)
		p.after(2 * time.Second)
		entry, _ := p.entry(testWorker)
		if st, _, _ := p.st.Inspect(entry.Row); st.Peer != "" || st.Source != "s1" {
			t.Errorf("stream %+v", st)
		}
		if got := fmt.Sprint(e.gaps()); got != "[1.5s]" {
			t.Errorf("gaps %s", got)
		}
	})
}

// TestRefusedBidChangesNothing: a first report that jumps does not take over.
func TestRefusedBidChangesNothing(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		b := p.bindAs("s1", 5)
		_, err := p.Bind(claim("s2"), p.load("s2", 1<<63))
		wantRefusal(t, err, ReasonSequenceJump, true)
		if err := b.Admit(p.load("s1", 4)); err != nil || b.Err() != nil {
			t.Errorf("%v, %v", err, b.Err())
		}
		p.bindAs("s1", 5)
		p.settle()
		e, live := p.entry(testWorker)
		if st, _, _ := p.st.Inspect(e.Row); st.Source != "s1" || len(st.Retired) != 0 || live.Sequence != 5 {
			t.Errorf("stream %+v, sequence %d", st, live.Sequence)
		}
		if got := testutil.ToFloat64(p.metrics.takeovers); got != 0 {
			t.Errorf("%v takeovers counted", got)
		}
	})
}

// Reports that are missing between two of one source instance are seen; the
// first of an instance, a new base and an old one are no gap.
func TestSequenceGaps(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		b := p.bindAs("s1", 9)
		admit := func(sequences ...uint64) {
			for _, q := range sequences {
				if err := b.Admit(p.load("s1", q)); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := func(gaps uint64, missing float64) {
			t.Helper()
			var m dto.Metric
			if err := p.metrics.gaps.Write(&m); err != nil {
				t.Fatal(err)
			}
			if h := m.GetHistogram(); h.GetSampleCount() != gaps || h.GetSampleSum() != missing {
				t.Errorf("%d gaps of %v reports, want %d of %v", h.GetSampleCount(), h.GetSampleSum(), gaps, missing)
			}
		}
		admit(10, 11, 11, 10)
		want(0, 0)
		admit(13, 23)
		want(2, 10)
		p.after(testStale)
		admit(1 << 40) // a new base
		want(2, 10)
		p.bindAs("s2", 77) // another process
		want(2, 10)
	})
}
