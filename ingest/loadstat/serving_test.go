package loadstat

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

func count(t *testing.T, r *store.Rank, f store.Field) int64 {
	t.Helper()
	v, ok := r.Count(f)
	if !ok {
		t.Errorf("%s of rank %d is unknown", store.Fields[f].Name, r.DPRank)
	}
	return v
}

func TestAllRanksAreReported(t *testing.T) {
	inBubble(t, 4, func(p *plane, a, _ *engine) {
		after(3 * time.Second)
		w := p.wantFresh(workerA, 4)
		for i := range w.Ranks {
			r := &w.Ranks[i]
			usage, _ := r.Float(store.TokenUsage)
			if r.DPRank != int32(i) || count(t, r, store.NumRunningReqs) != int64(i+1) || count(t, r, store.NumUsedTokens) != 30 || usage != 0.3 {
				t.Errorf("rank %d is %+v", i, r)
			}
			if r.Has(store.GenThroughput) || r.Has(store.NumTotalTokens) || r.Has(store.CacheHitRate) {
				t.Errorf("rank %d knows what was not published: %+v", i, r)
			}
		}
		if !strings.HasPrefix(w.Load.Source, "loadstat-") || w.diag.Registration != string(registry.StateSubscribed) || w.diag.RegistrationError != "" {
			t.Errorf("got source %q, diagnostics %+v", w.Load.Source, w.diag)
		}
		a.rank(2).say(int64(7), int64(0), int64(50), int64(100), nil, int64(11), int64(61), int64(9), int64(1000), int64(2000))
		after(time.Second)
		r := p.wantFresh(workerA, 4).Ranks[2]
		if count(t, &r, store.NumRunningReqs) != 7 || count(t, &r, store.NumWaitingUncachedTokens) != 11 ||
			count(t, &r, store.NumTotalTokens) != 61 || count(t, &r, store.MaxRunningRequests) != 9 {
			t.Errorf("rank 2 is %+v", r)
		}
	})
}

// TestPrefillRateOfTheCounters holds that the cumulative counters reach the
// store.
func TestPrefillRateOfTheCounters(t *testing.T) {
	inBubble(t, 1, func(p *plane, a, _ *engine) {
		values := func(tokens, busy int64) []any {
			return []any{int64(1), int64(0), int64(1), int64(100), nil, int64(0), int64(1), int64(8), tokens, busy}
		}
		a.rank(0).set(func(r *publisher) { r.values = values(1000, 1_000_000) })
		after(3 * time.Second)
		a.rank(0).say(values(3000, 2_000_000)...)
		after(600 * time.Millisecond)
		r := p.wantFresh(workerA, 1).Ranks[0]
		if rate, ok := r.Float(store.PrefillThroughput); !ok || rate != 2000 {
			t.Errorf("prefill throughput is %g, %v, want 2000", rate, ok)
		}
	})
}

// TestBug27AddressHasNoRank holds that what is dialled is the worker's own host
// and a port for each rank, once each while all goes well.
func TestBug27AddressHasNoRank(t *testing.T) {
	inBubble(t, 8, func(p *plane, _, _ *engine) {
		after(10 * time.Second)
		got := p.net.dials()
		slices.Sort(got)
		var want []string
		for _, host := range []string{hostA, hostB} {
			for i := range 8 {
				s := sockets{host: host, port: basePort}
				want = append(want, s.addr(i))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("dialled %q\nwant    %q", got, want)
		}
		if strings.Contains(strings.Join(got, ""), "@") {
			t.Errorf("an address names a rank: %q", got)
		}
	})
}

// TestRankNeverHeard has one rank that nobody serves: there is no report
// without it.
func TestRankNeverHeard(t *testing.T) {
	inBubble(t, 4, func(p *plane, a, _ *engine) {
		a.listen(3, nil)
		after(8 * time.Second)
		w := p.wantNothing(workerA, ReasonRanksMissing)
		if !strings.Contains(w.diag.RegistrationError, "missing are the ranks 3 of 4") {
			t.Errorf("shown is %q", w.diag.RegistrationError)
		}
		p.wantFresh(workerB, 4)
		a.listen(3, a.rank(3))
		after(7 * time.Second)
		p.wantFresh(workerA, 4)
	})
}

// TestFrozenRank has one rank that publishes nothing any more on an open
// connection. The worker ages, though all others go on.
func TestFrozenRank(t *testing.T) {
	inBubble(t, 4, func(p *plane, a, _ *engine) {
		after(3 * time.Second)
		source := p.wantFresh(workerA, 4).Load.Source
		a.rank(1).set(func(r *publisher) { r.frozen = true })
		for range 12 {
			a.rank(0).publish(int64(1), int64(1), int64(1), int64(100))
			after(500 * time.Millisecond)
			p.wantFresh(workerB, 4)
		}
		w := p.worker(workerA)
		if w.Freshness != store.Stale || w.Reason != store.ReasonAge || w.diag.Registration != string(registry.StateFailing) ||
			!strings.Contains(w.diag.RegistrationError, "missing are the ranks 1 of 4") {
			t.Errorf("got %s, %s, %+v", w.Freshness, w.Reason, w.diag)
		}
		a.rank(1).set(func(r *publisher) { r.frozen = false })
		after(7 * time.Second)
		if w := p.wantFresh(workerA, 4); w.Load.Source != source {
			t.Errorf("the source became %s after a pause of one rank, it was %s", w.Load.Source, source)
		}
	})
}

// TestOldestRankAges holds that the receipt of a report is that of the rank
// that was not heard for longest.
func TestOldestRankAges(t *testing.T) {
	inBubble(t, 2, func(p *plane, a, _ *engine) {
		after(3 * time.Second)
		a.rank(1).set(func(r *publisher) { r.frozen = true })
		after(time.Second)
		before := p.worker(workerA)
		for range 10 {
			a.rank(0).publish(int64(5), int64(5), int64(5), int64(100))
			after(100 * time.Millisecond)
		}
		w := p.wantFresh(workerA, 2)
		if w.Load.Sequence <= before.Load.Sequence || count(t, &w.Ranks[0], store.NumRunningReqs) != 5 {
			t.Errorf("the rank that changed is not reported: %+v", w.Load)
		}
		if w.live.Received != before.live.Received {
			t.Errorf("received at %v, want %v, that of the silent rank", w.live.Received, before.live.Received)
		}
	})
}

// TestReconnect cuts the connections of a process that goes on.
func TestReconnect(t *testing.T) {
	inBubble(t, 4, func(p *plane, a, _ *engine) {
		after(3 * time.Second)
		before := p.wantFresh(workerA, 4)
		asks := p.facts.asks(workerA)
		for _, r := range a.publishers() {
			r.end()
		}
		after(3 * time.Second)
		w := p.wantFresh(workerA, 4)
		if w.Load.Source != before.Load.Source || w.live.Sequence <= before.live.Sequence || p.metric(p.sub.metrics.restarts) != 0 {
			t.Errorf("got source %s, sequence %d after %s, %d", w.Load.Source, w.live.Sequence, before.Load.Source, before.live.Sequence)
		}
		if n := p.facts.asks(workerA); n != asks {
			t.Errorf("the engine was asked %d times what it is after a reconnect", n-asks)
		}
	})
}

// TestRestart has another process behind the ports: it is another source, no
// report mixes both, and the engine is asked again what it is.
func TestRestart(t *testing.T) {
	inBubble(t, 4, func(p *plane, a, _ *engine) {
		after(5 * time.Second)
		before := p.wantFresh(workerA, 4)
		asks := p.facts.asks(workerA)
		a.restart(4)
		// The new process is heard on one rank only.
		for _, r := range a.publishers()[1:] {
			r.set(func(r *publisher) { r.frozen = true })
		}
		after(8 * time.Second)
		if w := p.worker(workerA); w.Load.Source != before.Load.Source || w.Freshness != store.Stale {
			t.Errorf("source %s, %s while three ranks of the new process are not heard", w.Load.Source, w.Freshness)
		}
		for _, r := range a.publishers() {
			r.set(func(r *publisher) { r.frozen, r.values = false, []any{int64(90), int64(0), int64(1), int64(100)} })
		}
		after(9 * time.Second)
		w := p.wantFresh(workerA, 4)
		if w.Load.Source == before.Load.Source {
			t.Error("another process has the same source")
		}
		for i := range w.Ranks {
			if count(t, &w.Ranks[i], store.NumRunningReqs) != 90 {
				t.Errorf("rank %d is of the process before", i)
			}
		}
		if p.facts.asks(workerA) == asks {
			t.Error("the engine was not asked again what it is")
		}
		p.wantFresh(workerB, 4)
	})
}

// TestRestartWithHigherSequence has another process that published more than
// the one before until it is heard. That the port was closed tells.
func TestRestartWithHigherSequence(t *testing.T) {
	inBubble(t, 2, func(p *plane, a, _ *engine) {
		after(3 * time.Second)
		before := p.wantFresh(workerA, 2)
		a.down()
		after(time.Second)
		a.up(2)
		for _, r := range a.publishers() {
			r.set(func(r *publisher) { r.sequence = 1000 })
		}
		after(7 * time.Second)
		if w := p.wantFresh(workerA, 2); w.Load.Source == before.Load.Source || p.metric(p.sub.metrics.restarts) != 1 {
			t.Errorf("source %s, before %s; %d restarts", w.Load.Source, before.Load.Source, p.metric(p.sub.metrics.restarts))
		}
	})
}

// TestSequenceBackOnAConnection has a proxy before two processes. The load of
// one is never shown beside that of the other.
func TestSequenceBackOnAConnection(t *testing.T) {
	inBubble(t, 2, func(p *plane, a, _ *engine) {
		after(5 * time.Second)
		before := p.wantFresh(workerA, 2)
		a.rank(0).set(func(r *publisher) { r.sequence = 0 })
		after(5 * time.Second)
		if w := p.wantFresh(workerA, 2); w.Load.Source == before.Load.Source || p.metric(p.sub.metrics.restarts) != 1 {
			t.Errorf("the source is %s, it was %s", w.Load.Source, before.Load.Source)
		}
	})
}

// TestRepeatedSequence changes nothing and does not count as heard.
func TestRepeatedSequence(t *testing.T) {
	inBubble(t, 1, func(p *plane, a, _ *engine) {
		after(3 * time.Second)
		a.rank(0).set(func(r *publisher) { r.frozen = true })
		last := a.rank(0).sequence - 1
		for range 8 {
			a.rank(0).send([]byte("load"), sequence(last), array(int64(77), int64(0), int64(0), int64(100)))
			after(500 * time.Millisecond)
		}
		w := p.worker(workerA)
		if w.Freshness == store.Fresh || count(t, &w.Ranks[0], store.NumRunningReqs) != 1 || p.metric(p.sub.metrics.old) == 0 {
			t.Errorf("%s with %+v", w.Freshness, w.Ranks[0])
		}
	})
}

// TestBug26RanksFewer has an engine restart with half of its ranks.
func TestBug26RanksFewer(t *testing.T) {
	for _, pause := range []time.Duration{0, 2 * time.Second, 10 * time.Second, time.Minute} {
		t.Run("away for "+pause.String(), func(t *testing.T) {
			inBubble(t, 8, func(p *plane, a, _ *engine) {
				after(5 * time.Second)
				before := p.wantFresh(workerA, 8)
				a.down()
				after(pause)
				a.up(4)
				p.facts.set(workerA, registry.LoadStat{Port: basePort, Topic: "load", Ranks: 4})
				for range 20 {
					after(time.Second)
					if w := p.worker(workerA); w.Load.Source != before.Load.Source && len(w.Ranks) != 4 {
						t.Errorf("the new process has %d ranks", len(w.Ranks))
					}
				}
				if w := p.wantFresh(workerA, 4); w.Load.Source == before.Load.Source {
					t.Error("another process has the same source")
				}
				p.net.dials()
				after(20 * time.Second)
				if got := p.net.dials(); len(got) != 0 {
					t.Errorf("%q are still dialled", got)
				}
			})
		})
	}
}

// TestRestartOnOtherPorts has an engine come back with its sockets elsewhere. The
// plane learns it by asking, well before it would give the old ones up.
func TestRestartOnOtherPorts(t *testing.T) {
	inBubble(t, 4, func(p *plane, a, _ *engine) {
		after(5 * time.Second)
		before := p.wantFresh(workerA, 4)
		a.down()
		a.port = basePort + 100
		a.up(2)
		p.facts.set(workerA, registry.LoadStat{Port: a.port, Topic: "load", Ranks: 2})
		after(4 * time.Second)
		if w := p.wantFresh(workerA, 2); w.Load.Source == before.Load.Source {
			t.Error("another process has the same source")
		}
		p.wantFresh(workerB, 4)
	})
}

// TestClosedIsToldNowAndThen holds that an engine that stays away is not asked
// what it is all the time.
func TestClosedIsToldNowAndThen(t *testing.T) {
	inBubble(t, 2, func(p *plane, a, _ *engine) {
		after(3 * time.Second)
		asked := p.facts.asks(workerA)
		a.down()
		after(time.Minute)
		if got := p.facts.asks(workerA) - asked; got < 1 || got > 8 {
			t.Errorf("asked %d times in a minute", got)
		}
	})
}

// TestRanksMore keeps the connections of the ranks that stay.
func TestRanksMore(t *testing.T) {
	inBubble(t, 4, func(p *plane, a, _ *engine) {
		p.facts.set(workerA, registry.LoadStat{Port: basePort, Topic: "load", Ranks: 2})
		after(3 * time.Second)
		source := p.wantFresh(workerA, 2).Load.Source
		p.net.dials()
		p.facts.set(workerA, registry.LoadStat{Port: basePort, Topic: "load", Ranks: 4})
		a.rank(0).set(func(r *publisher) { r.frozen = true })
		after(6 * time.Second) // it fails, so the engine is asked what it is
		a.rank(0).set(func(r *publisher) { r.frozen = false })
		after(6 * time.Second)
		if w := p.wantFresh(workerA, 4); w.Load.Source != source {
			t.Error("the source changed with the number of ranks")
		}
		kept := sockets{host: hostA, port: basePort}
		if slices.Contains(p.net.dials(), kept.addr(1)) {
			t.Error("a rank whose socket stayed was dialled again")
		}
	})
}

func TestNothingToDial(t *testing.T) {
	cases := map[string]struct {
		stat   registry.LoadStat
		reason store.Reason
	}{
		"another host":   {registry.LoadStat{Host: hostB, Port: basePort, Ranks: 1}, ReasonForeignEndpoint},
		"no ranks":       {registry.LoadStat{Port: basePort}, ReasonBadEndpoint},
		"too many ranks": {registry.LoadStat{Port: basePort, Ranks: 513}, ReasonBadEndpoint},
		"beyond ports":   {registry.LoadStat{Port: 65530, Ranks: 8}, ReasonBadEndpoint},
		"negative port":  {registry.LoadStat{Port: -1, Ranks: 1}, ReasonBadEndpoint},
		"long topic":     {registry.LoadStat{Port: basePort, Ranks: 1, Topic: strings.Repeat("x", 256)}, ReasonBadEndpoint},
		"none":           {registry.LoadStat{}, registry.ReasonUnsupported},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(p *plane, _, _ *engine) {
				p.facts.set(workerA, c.stat)
				after(3 * time.Second)
				w := p.wantNothing(workerA, c.reason)
				if w.diag.Registration != string(registry.StateParked) {
					t.Errorf("the state is %s", w.diag.Registration)
				}
				for _, addr := range p.net.dials() {
					if strings.HasPrefix(addr, hostA) {
						t.Errorf("dialled %s", addr)
					}
				}
				p.wantFresh(workerB, 1)
			})
		})
	}
}

// TestPace holds that a flood of one engine makes no more reports than two in
// an interval, that the last message is in one, and that nobody else waits.
func TestPace(t *testing.T) {
	inBubble(t, 2, func(p *plane, a, _ *engine) {
		after(3 * time.Second)
		own, other := p.worker(workerA).live.Sequence, p.worker(workerB).live.Sequence
		const messages = 2000
		for i := range messages {
			a.rank(0).publish(int64(i), int64(0), int64(0), int64(100))
			<-time.After(time.Millisecond)
		}
		if n := p.worker(workerA).live.Sequence - own; n < 3 || n > 5 {
			t.Errorf("%d reports in two seconds", n)
		}
		if n := p.wantFresh(workerB, 2).live.Sequence - other; n < 2 || n > 5 {
			t.Errorf("the other engine has %d reports in two seconds", n)
		}
		if n := p.metric(p.sub.metrics.coalesced); n < messages-100 {
			t.Errorf("%d messages are counted as coalesced", n)
		}
		after(600 * time.Millisecond)
		w := p.wantFresh(workerA, 2)
		if got := count(t, &w.Ranks[0], store.NumRunningReqs); got != messages-1 && got != 1 {
			t.Errorf("the last message is not reported, but %d", got)
		}
	})
}

// TestChangeIsReportedAtOnce holds that a change after a quiet time does not
// wait.
func TestChangeIsReportedAtOnce(t *testing.T) {
	inBubble(t, 2, func(p *plane, a, b *engine) {
		after(3 * time.Second)
		a.rank(0).set(func(r *publisher) { r.frozen = true })
		a.rank(1).set(func(r *publisher) { r.frozen = true })
		after(700 * time.Millisecond)
		a.rank(0).publish(int64(42), int64(0), int64(0), int64(100))
		after(15 * time.Millisecond)
		if w := p.wantFresh(workerA, 2); count(t, &w.Ranks[0], store.NumRunningReqs) != 42 {
			t.Errorf("got %+v", w.Ranks[0])
		}
	})
}

// TestGivesUp has an engine whose ports are gone for good: after a while it is
// asked anew what it offers.
func TestGivesUp(t *testing.T) {
	inBubble(t, 2, func(p *plane, a, _ *engine) {
		after(3 * time.Second)
		a.down()
		after(giveUpAfter + 3*time.Second)
		w := p.worker(workerA)
		if w.Freshness != store.Stale || w.diag.RegistrationError == "" {
			t.Errorf("got %s, %+v", w.Freshness, w.diag)
		}
		a.up(2)
		after(10 * time.Second)
		p.wantFresh(workerA, 2)
	})
}

// TestMemoryOutlivesServe has a rank pause for so long that the serving is given
// up. It is the same life of the engine when it is served again.
func TestMemoryOutlivesServe(t *testing.T) {
	inBubble(t, 2, func(p *plane, a, _ *engine) {
		after(3 * time.Second)
		before := p.wantFresh(workerA, 2)
		asked := p.facts.asks(workerA)
		a.rank(1).set(func(r *publisher) { r.frozen = true })
		after(giveUpAfter + 5*time.Second)
		if p.facts.asks(workerA) == asked {
			t.Error("the engine was not asked again what it is")
		}
		a.rank(1).set(func(r *publisher) { r.frozen = false })
		after(10 * time.Second)
		w := p.wantFresh(workerA, 2)
		if w.Load.Source != before.Load.Source || w.live.Sequence <= before.live.Sequence {
			t.Errorf("source %s at %d, before %s at %d", w.Load.Source, w.live.Sequence, before.Load.Source, before.live.Sequence)
		}
	})
}

// TestStop holds that Serve leaves nothing behind at any moment.
func TestStop(t *testing.T) {
	for _, d := range []time.Duration{0, time.Millisecond, 100 * time.Millisecond, 2 * time.Second, 4 * time.Second} {
		t.Run(d.String(), func(t *testing.T) {
			inBubble(t, 3, func(_ *plane, _, _ *engine) { after(d) })
		})
	}
}
