package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// teller is a source that delivers what a test tells it.
type teller struct {
	name string
	say  chan Listing
	// end makes it panic where it is not empty, and return where it is.
	end chan string
}

func newTeller(name string) *teller {
	return &teller{name: name, say: make(chan Listing), end: make(chan string)}
}

func (s *teller) Name() string { return s.name }

func (s *teller) Run(ctx context.Context, deliver func(Listing)) {
	for {
		select {
		case <-ctx.Done():
			return
		case l := <-s.say:
			deliver(l)
		case why := <-s.end:
			if why != "" {
				panic(why)
			}
			return
		}
	}
}

// specsOf reads workers as flags name them; uid=, no_engine and guarded are keys
// beside those of flags.
func specsOf(t *testing.T, values ...string) []WorkerSpec {
	t.Helper()
	specs := []WorkerSpec{}
	for _, v := range values {
		var kept []string
		var more WorkerSpec
		for part := range strings.SplitSeq(v, ",") {
			switch uid, isUID := strings.CutPrefix(part, "uid="); {
			case isUID:
				more.UID = uid
			case part == "no_engine":
				more.NoEngine = true
			case part == "guarded":
				more.Guarded = true
			default:
				kept = append(kept, part)
			}
		}
		s, err := ParseWorkerFlag(strings.Join(kept, ","))
		if err != nil {
			t.Fatal(err)
		}
		s.UID, s.NoEngine, s.Guarded = more.UID, more.NoEngine, more.Guarded
		specs = append(specs, s)
	}
	return specs
}

// list has a source deliver workers, and lets them be taken up.
func (p *plane) list(s *teller, values ...string) {
	p.t.Helper()
	s.say <- Listing{Specs: specsOf(p.t, values...)}
	p.after(settleDiscovery + 2*testSettle)
}

// fail has a source deliver an error.
func (p *plane) fail(s *teller, why string) {
	s.say <- Listing{Err: errors.New(why)}
	p.after(settleDiscovery + 2*testSettle)
}

// sourced runs body with a running plane and two sources, the first of which
// wins.
func sourced(t *testing.T, body func(p *plane, a, b *teller)) {
	t.Helper()
	sourcedWith(t, func(*Options) {}, body)
}

func sourcedWith(t *testing.T, change func(*Options), body func(p *plane, a, b *teller)) {
	t.Helper()
	var a, b *teller
	inBubbleWith(t, func(o *Options) {
		a, b = newTeller("alpha"), newTeller("beta")
		o.Sources = []Source{a, b}
		change(o)
	}, func(p *plane) {
		p.runAll()
		body(p, a, b)
	})
}

// status returns how a source is shown.
func (p *plane) status(name string) store.SourceStatus {
	p.t.Helper()
	for _, s := range p.st.Sources() {
		if s.Name == name {
			return s
		}
	}
	p.t.Fatalf("no source %s in %+v", name, p.st.Sources())
	return store.SourceStatus{}
}

func TestSourceNames(t *testing.T) {
	for name, want := range map[string]string{"": "empty", "flag": "taken", "a+b": "contains", "twice": "taken"} {
		opts := testOptions(newStore(t))
		opts.Sources = []Source{newTeller("twice"), newTeller(name)}
		if _, err := New(opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error that mentions %s", name, err, want)
		}
	}
	opts := testOptions(newStore(t))
	opts.Sources = []Source{nil}
	if _, err := New(opts); err == nil {
		t.Error("a nil source was taken")
	}
}

func TestMergeOfSources(t *testing.T) {
	const at = "http://10.0.0.1:1"
	for name, c := range map[string]struct {
		lists   [][]string
		want    []string
		clashes []string
	}{
		"apart": {
			lists: [][]string{{at + ",id=a"}, {"http://10.0.0.2:1,id=b"}},
			want:  []string{"a 10.0.0.1:1 s0", "b 10.0.0.2:1 s1"},
		},
		"one origin": {
			lists: [][]string{{at + ",id=a,zone=x"}, {at + ",id=pod,zone=y,role=decode,model=m,uid=u,draining=true"}},
			want:  []string{"a 10.0.0.1:1 s0+s1 zone=x role=decode models=[m] uid=u draining"},
		},
		"one origin and one id": {
			lists: [][]string{{at}, {at + ",zone=y"}},
			want:  []string{at + " 10.0.0.1:1 s0+s1 zone=y"},
		},
		"three sources": {
			lists: [][]string{{at + ",id=a"}, {at + ",id=b,zone=y"}, {at + ",id=c,zone=z,role=prefill"}},
			want:  []string{"a 10.0.0.1:1 s0+s1+s2 zone=y role=prefill"},
		},
		"one id of two origins": {
			lists:   [][]string{{at + ",id=a"}, {"http://10.0.0.2:1,id=a,zone=y"}},
			want:    []string{"a 10.0.0.1:1 s0"},
			clashes: []string{"a"},
		},
		"two of one source": {
			lists: [][]string{{at + ",id=b", at + ",id=a"}, {}},
			want:  []string{"a 10.0.0.1:1 s0", "b 10.0.0.1:1 s0 duplicate"},
		},
		"two of one source below another": {
			lists: [][]string{{at + ",id=x"}, {at + ",id=b,zone=b", at + ",id=a,zone=a"}},
			want:  []string{"x 10.0.0.1:1 s0+s1 zone=a", "b 10.0.0.1:1 s1 zone=b duplicate"},
		},
		"follower named by the lower": {
			lists: [][]string{{at + ",id=x"}, {at + ",id=b,no_engine"}},
			want:  []string{"x 10.0.0.1:1 s0+s1 no_engine"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var lists []listed
			for i, values := range c.lists {
				lists = append(lists, listed{fmt.Sprint("s", i), specsOf(t, values...)})
			}
			all, clashes := mergeLists(lists)
			var got []string
			for i := range all {
				got = append(got, all[i].text())
			}
			if !slices.Equal(got, c.want) || !slices.Equal(slices.Collect(maps.Keys(clashes)), c.clashes) {
				t.Errorf("got %q, clashes %v", got, clashes)
			}
		})
	}
}

// text shows what a merge decides.
func (f *found) text() string {
	s := f.ID + " " + f.Origin + " " + f.by
	add := func(on bool, format string, v any) {
		if on {
			s += fmt.Sprintf(format, v)
		}
	}
	add(f.Zone != "", " zone=%s", f.Zone)
	add(f.Role != 0, " role=%s", f.Role)
	add(f.Models != nil, " models=%v", f.Models)
	add(f.UID != "", " uid=%s", f.UID)
	add(f.Draining, " %s", "draining")
	add(f.NoEngine, " %s", "no_engine")
	add(f.duplicate, " %s", "duplicate")
	return s
}

func TestJoinedFields(t *testing.T) {
	specs := specsOf(t,
		"http://a:1,label.x=high,label.reporter_port=9,peers=10.0.0.1",
		"http://a:1,label.x=low,label.y=low,reporter_port=7,peers=10.0.0.1+10.0.0.2,interval=500ms,dialect=none,max_running=4,token_file=/t,ca_file=/c,guarded",
	)
	s := specs[0]
	s.join(&specs[1])
	if s.reporterPort() != 9 || !maps.Equal(s.Labels, map[string]string{"x": "high", "y": "low", "reporter_port": "9"}) ||
		len(s.Peers) != 2 || s.Interval != 500*time.Millisecond || s.Dialect != store.DialectNone || s.MaxRunning != 4 ||
		s.TokenFile != "/t" || s.CAFile != "/c" || s.Guarded {
		t.Errorf("%+v", s)
	}
	if len(specs[0].Labels) != 2 || len(specs[0].Peers) != 1 {
		t.Errorf("what was joined is shared: %+v", specs[0])
	}
	many := WorkerSpec{Labels: map[string]string{"k": "v"}}
	other := WorkerSpec{Labels: map[string]string{}}
	for i := range 2 * maxListed {
		other.Labels[fmt.Sprint(i)] = "v"
	}
	for i := range 2 * maxListed {
		other.Peers = append(other.Peers, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), 32))
	}
	if many.join(&other); len(many.Labels) != maxListed || many.Labels["k"] != "v" || len(many.Peers) != maxListed {
		t.Errorf("%d labels, %d peers", len(many.Labels), len(many.Peers))
	}
}

// TestBug73FirstWorkerOfASource: a reader that waited with nothing there is woken
// by the first worker.
func TestBug73FirstWorkerOfASource(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a)
		p.list(b)
		p.after(time.Minute)
		before, stale := p.st.Current()
		if len(before.Entries) != 0 || before.Warming {
			t.Fatalf("%d workers, warming %v", len(before.Entries), before.Warming)
		}
		p.list(b, testWorker)
		if !isClosed(stale) {
			t.Error("nobody was woken")
		}
		if e, _ := p.entry(testWorker); e == nil || e.Worker.DiscoveredBy != "beta" {
			t.Errorf("entry %+v", e)
		}
	})
}

// TestBug53EmptyListIsAList: scaling to zero is seen, and no set replaces that of
// another source.
func TestBug53EmptyListIsAList(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a, testWorker)
		p.list(b, "http://10.0.0.2:1", testWorker)
		if p.listed() != 2 {
			t.Fatalf("%d workers", p.listed())
		}
		p.list(b)
		if e, _ := p.entry(testWorker); p.listed() != 1 || e.Worker.DiscoveredBy != "alpha" {
			t.Errorf("%d workers, %+v", p.listed(), e)
		}
		if p.list(a); p.listed() != 0 {
			t.Errorf("%d workers", p.listed())
		}
	})
}

func TestFailingSourceKeepsItsList(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a, testWorker)
		p.list(b)
		p.fail(a, "the server is away")
		for range 10 {
			p.fail(a, "the server is away")
			p.after(time.Minute)
		}
		st := p.status("alpha")
		age := p.clock.Now().Sub(st.Listed)
		if p.listed() != 1 || st.Error != "the server is away" || !st.Synced || st.Workers != 1 || age < 10*time.Minute {
			t.Errorf("%d workers, %+v, list %s old", p.listed(), st, age)
		}
		if got := p.st.DiscoveryError(); got != "alpha: the server is away" {
			t.Errorf("discovery error %q", got)
		}
		p.list(a, testWorker)
		if st := p.status("alpha"); st.Error != "" || p.clock.Now().Sub(st.Listed) > time.Second || p.st.DiscoveryError() != "" {
			t.Errorf("%+v", st)
		}
	})
}

// TestAnEqualListChangesNothing but its age.
func TestAnEqualListChangesNothing(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a, testWorker, "http://10.0.0.2:1")
		p.list(b)
		p.after(time.Minute)
		before, _ := p.st.Current()
		p.list(a, "http://10.0.0.2:1", testWorker)
		if after, _ := p.st.Current(); after.Version != before.Version {
			t.Errorf("version %d became %d", before.Version, after.Version)
		}
		if st := p.status("alpha"); p.clock.Now().Sub(st.Listed) > time.Second {
			t.Errorf("%+v", st)
		}
	})
}

func TestSyncWaitsForEverySource(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a, testWorker)
		p.bindAs("s1", 1)
		p.after(20 * time.Second)
		st, _ := p.st.Current()
		if !st.Warming || p.status("beta").Synced {
			t.Errorf("warming %v, %+v", st.Warming, p.status("beta"))
		}
		c := claim("s1")
		c.Addr = "http://10.0.0.9:1"
		_, err := p.Bind(c, p.load("s1", 1))
		wantRefusal(t, err, ReasonNotSynced, false)
		p.fail(b, "forbidden")
		if st := p.status("beta"); st.Error != "no list yet: forbidden" {
			t.Errorf("%+v", st)
		}
		p.list(b)
		if st, _ := p.st.Current(); st.Warming || !p.status("beta").Synced {
			t.Errorf("warming %v, %+v", st.Warming, p.status("beta"))
		}
		_, err = p.Bind(c, p.load("s1", 1))
		wantRefusal(t, err, ReasonUnknownWorker, false)
	})
}

func TestSyncGoesOnWithoutASource(t *testing.T) {
	for name, failing := range map[string]bool{"that fails": true, "that is silent": false} {
		t.Run(name, func(t *testing.T) {
			sourced(t, func(p *plane, a, b *teller) {
				p.list(a, testWorker)
				p.bindAs("s1", 1)
				want := "no list yet"
				if failing {
					p.fail(b, "forbidden")
					want += ": forbidden"
				}
				p.after(sourcePatience - 2*time.Second)
				if st, _ := p.st.Current(); !st.Warming {
					t.Error("it did not wait")
				}
				p.after(3 * time.Second)
				if st, _ := p.st.Current(); st.Warming || p.listed() != 1 {
					t.Error("it waits on")
				}
				if st := p.status("beta"); st.Synced || st.Error != want {
					t.Errorf("%+v", st)
				}
				p.list(b, "http://10.0.0.2:1")
				if !p.status("beta").Synced || p.listed() != 2 {
					t.Error("a late list is not taken")
				}
			})
		})
	}
}

func TestWarmingWaitsForReportersToComeBack(t *testing.T) {
	for name, c := range map[string]struct {
		rule   RegistrationRule
		values []string
		want   time.Duration
	}{
		"nothing else listed":       {RegistrationOpen, nil, testStale},
		"registration off":          {RegistrationOff, nil, 0},
		"another source lists some": {RegistrationOpen, []string{testWorker + ",dialect=none"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleWith(t, func(o *Options) { o.Workers, o.Registration = c.values, c.rule }, func(p *plane) {
				p.runAll()
				began := time.Now()
				_, stale := p.st.Current()
				for st, _ := p.st.Current(); st.Warming; st, stale = p.st.Current() {
					<-stale
				}
				if took := time.Since(began); took < c.want-testSettle || took > c.want+3*testSettle {
					t.Errorf("warming took %s", took)
				}
				if c.rule != RegistrationOff && !p.status("registration").Synced {
					t.Error("registration is not synced")
				}
			})
		})
	}
}

func TestRegistrationIsShownAsASource(t *testing.T) {
	registered(t, func(p *plane) {
		if st := p.status("registration"); st.Synced || st.Error != "" || st.Listed != 0 {
			t.Errorf("%+v", st)
		}
		l := p.register(nil)
		p.after(settleFacts + testSettle)
		if st := p.status("registration"); st.Workers != 1 {
			t.Errorf("%+v", st)
		}
		if err := p.Deregister(l.ID, testPeer); err != nil {
			t.Fatal(err)
		}
		p.after(settleFacts + testSettle)
		if st := p.status("registration"); st.Workers != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestSourceThatPanicsOrEnds(t *testing.T) {
	for _, why := range []string{"out of range", ""} {
		sourced(t, func(p *plane, a, b *teller) {
			p.list(a, testWorker)
			p.list(b)
			a.end <- why
			p.after(settleDiscovery + testSettle)
			if st := p.status("alpha"); !strings.Contains(st.Error, why) || st.Error == "" || p.listed() != 1 {
				t.Errorf("%q: %+v, %d workers", why, st, p.listed())
			}
			if p.list(b, "http://10.0.0.2:1"); p.listed() != 2 {
				t.Error("the other source is not heard any more")
			}
		})
	}
}

// TestBug16SameNameNewUID: the same name and address with another UID is another
// worker: its load is gone at once, and who spoke for the old one is refused.
func TestBug16SameNameNewUID(t *testing.T) {
	const pod = testWorker + ",id=ns/pod/30000"
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a, pod+",uid=1")
		p.list(b)
		stream := p.bindAs("s1", 7)
		p.keeper(testOrigin).learnFacts(&Finding{Complete: true, Facts: Facts{Models: []string{"m"}}})
		p.after(settleFacts + testSettle)
		old, _ := p.entry("ns/pod/30000")
		before, _ := p.st.Current()
		p.list(a, pod+",uid=2")
		e, _ := p.entry("ns/pod/30000")
		after, _ := p.st.Current()
		if len(old.Worker.Models) != 1 || e.Worker.Models != nil {
			t.Errorf("models %v became %v", old.Worker.Models, e.Worker.Models)
		}
		if old.Load == nil || e.Row == old.Row || e.Load != nil || after.Version != before.Version+1 {
			t.Errorf("row %d -> %d, load %v, version %d -> %d", old.Row, e.Row, e.Load, before.Version, after.Version)
		}
		wantRefusal(t, stream.Err(), ReasonIdentityChanged, false)
		_, err := p.Bind(claim("s1"), p.load("s1", 8))
		wantRefusal(t, err, ReasonRetired, false)
		if p.refusals(ReasonRetired) != 1 {
			t.Errorf("counted %v times", p.refusals(ReasonRetired))
		}
		p.bindAs("s2", 1)
		p.after(testLease)
		p.after(testLease)
		if _, err := p.Bind(claim("s1"), p.load("s1", 9)); err != nil {
			t.Errorf("an instance with a fixed name is refused for ever: %v", err)
		}
	})
}

// TestUIDComesAndGoes: only another UID is another worker.
func TestUIDComesAndGoes(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a, testWorker)
		p.list(b)
		stream := p.bindAs("s1", 1)
		for _, uid := range []string{",uid=1", "", ",uid=1"} {
			if p.list(a, testWorker+uid); stream.Err() != nil {
				t.Fatalf("%q ended the stream: %v", uid, stream.Err())
			}
		}
		p.list(a, testWorker)
		p.list(a, testWorker+",uid=2")
		wantRefusal(t, stream.Err(), ReasonIdentityChanged, false)
	})
}

// TestBug25SameNameNewAddress: one version with the new address and no load.
func TestBug25SameNameNewAddress(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a, testWorker+",id=pod,uid=1")
		p.list(b)
		stream := p.bindAs("s1", 1)
		p.settle()
		before, _ := p.st.Current()
		p.list(a, "http://10.0.0.2:30000,id=pod,uid=1")
		after, _ := p.st.Current()
		if e, _ := p.entry("pod"); after.Version != before.Version+1 || e.Load != nil || e.Worker.Origin != "10.0.0.2:30000" {
			t.Errorf("version %d -> %d, %+v", before.Version, after.Version, e)
		}
		wantRefusal(t, stream.Err(), ReasonIdentityChanged, false)
	})
}

// TestBug26RemovedWithAllRanks: a worker that is gone takes all its ranks along
// in one version.
func TestBug26RemovedWithAllRanks(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a, testWorker)
		p.list(b)
		l := p.load("s1", 1)
		l.Status, l.LastError = store.StatusHealthy, ""
		for i := range 8 {
			l.Ranks = append(l.Ranks, store.Rank{DPRank: int32(i)})
		}
		if _, err := p.Bind(claim("s1"), l); err != nil {
			t.Fatal(err)
		}
		p.settle()
		before, _ := p.st.Current()
		if len(before.Entries[0].Ranks) != 8 {
			t.Fatalf("%+v", before.Entries[0])
		}
		p.list(a)
		if after, _ := p.st.Current(); len(after.Entries) != 0 || after.Version != before.Version+1 {
			t.Errorf("%d workers, version %d -> %d", len(after.Entries), before.Version, after.Version)
		}
	})
}

// TestBug24OneBadWorkerOfAList: the others are taken, and it is counted.
func TestBug24OneBadWorkerOfAList(t *testing.T) {
	const other = "http://10.0.0.2:1"
	sourced(t, func(p *plane, a, b *teller) {
		p.list(b)
		a.say <- Listing{Specs: append(specsOf(t, other, other+",zone=z"), WorkerSpec{}, WorkerSpec{ID: "x", URL: "http://x"})}
		p.after(settleDiscovery + testSettle)
		got := testutil.ToFloat64(p.metrics.specsRefused.WithLabelValues("alpha"))
		if e, _ := p.entry(other); p.listed() != 1 || got != 3 || e.Worker.Zone != "" {
			t.Errorf("%d workers, %v refused, %+v", p.listed(), got, e)
		}
	})
}

// TestBug14BadFieldCostsNothingElse: a field that cannot be had is left out,
// counted and told once, and what else the list says of the worker counts.
func TestBug14BadFieldCostsNothingElse(t *testing.T) {
	for name, c := range map[string]struct {
		bad    string
		change func(*WorkerSpec)
	}{
		"interval above the lease": {bad: ",interval=1h"},
		"interval above the age":   {bad: ",interval=2s"},
		"interval below the least": {change: func(s *WorkerSpec) { s.Interval = -time.Second }},
		"dialect not available":    {bad: ",dialect=poll"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			sourcedWith(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&out, nil)) }, func(p *plane, a, b *teller) {
				list := func(value string) {
					specs := specsOf(t, value+c.bad)
					if c.change != nil {
						c.change(&specs[0])
					}
					a.say <- Listing{Specs: specs}
					p.after(settleDiscovery + 2*testSettle)
				}
				p.list(b)
				list(testWorker + ",zone=z")
				e, _ := p.entry(testWorker)
				if e == nil || e.Worker.Zone != "z" || e.Worker.Interval != testInterval {
					t.Fatalf("%+v", e)
				}
				stream := p.bindAs("s1", 1)
				p.list(a, testWorker)
				list(testWorker + ",draining=true")
				if e, _ := p.entry(testWorker); !e.Worker.Draining || stream.Err() != nil {
					t.Errorf("draining %v, stream %v", e.Worker.Draining, stream.Err())
				}
				list(testWorker + ",zone=y")
				if got := testutil.ToFloat64(p.metrics.fieldsIgnored.WithLabelValues("alpha")); got != 3 {
					t.Errorf("%v ignored", got)
				}
			})
			if n := strings.Count(out.String(), "field of a worker"); n != 2 { // it was gone in between
				t.Errorf("%d lines:\n%s", n, &out)
			}
		})
	}
}

// TestBadFieldOfAFleetLogsLittle: one mark may be that of a thousand workers.
func TestBadFieldOfAFleetLogsLittle(t *testing.T) {
	var out bytes.Buffer
	sourcedWith(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&out, nil)) }, func(p *plane, a, b *teller) {
		var values []string
		for i := range 100 {
			values = append(values, fmt.Sprintf("http://10.0.1.%d:1,interval=1h,no_engine", i))
		}
		p.list(b)
		for range 3 {
			p.list(a, values...)
		}
		if got := testutil.ToFloat64(p.metrics.fieldsIgnored.WithLabelValues("alpha")); got != 300 || p.listed() != 100 {
			t.Errorf("%v ignored of %d workers", got, p.listed())
		}
	})
	if n := strings.Count(out.String(), "field of a worker"); n != maxListLines {
		t.Errorf("%d lines", n)
	}
}

// TestSourceOfAWorkerChanges: a worker that is listed by another source than
// before, or by more, is the same.
func TestSourceOfAWorkerChanges(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a, testWorker)
		p.list(b)
		stream := p.bindAs("s1", 1)
		p.settle()
		old, _ := p.entry(testWorker)
		for _, step := range []struct{ a, b, by, zone string }{
			{testWorker, testWorker + ",zone=z,guarded", "alpha+beta", "z"},
			{"", testWorker + ",zone=z,guarded", "beta", "z"},
			{testWorker + ",zone=y", testWorker + ",zone=z", "alpha+beta", "y"},
		} {
			b.say <- Listing{Specs: specsOf(t, step.b)}
			p.list(a, strings.Fields(step.a)...)
			e, _ := p.entry(testWorker)
			if e == nil || e.Row != old.Row || e.Load == nil || stream.Err() != nil || e.Worker.DiscoveredBy != step.by || e.Worker.Zone != step.zone {
				t.Fatalf("%+v: %+v, stream %v", step, e, stream.Err())
			}
		}
	})
}

func TestFollowerWithoutEngine(t *testing.T) {
	const follower = testWorker + ",no_engine"
	sourced(t, func(p *plane, a, b *teller) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		p.list(a, follower)
		p.list(b)
		p.after(time.Minute)
		shown, _ := p.entry(testWorker)
		st, _ := p.st.Current()
		if shown.Freshness != store.Missing || shown.Reason != store.ReasonNoEngine || st.Warming || e.count() != 0 ||
			p.diagnostics(testWorker).Registration != string(StateOff) {
			t.Errorf("%+v, warming %v, %d calls", shown, st.Warming, e.count())
		}
		_, err := p.Bind(claim("s1"), p.load("s1", 1))
		wantRefusal(t, err, store.ReasonNoEngine, false)
		_, err = p.tryRegister(nil)
		wantRefusal(t, err, store.ReasonNoEngine, false)
		p.list(a, testWorker) // it leads by now
		p.after(time.Second)
		if shown, _ = p.entry(testWorker); shown.Reason == store.ReasonNoEngine || e.count() == 0 {
			t.Errorf("%+v after %d calls", shown, e.count())
		}
	})
}

// TestGuardedWorkerIsNotDialled: an address from outside does not lead the plane
// to itself, unless it is allowed or the operator names it as well.
func TestGuardedWorkerIsNotDialled(t *testing.T) {
	const at = "http://127.0.0.1:1"
	for name, c := range map[string]struct {
		value  string
		also   string
		allow  string
		reason store.Reason
	}{
		"denied":          {value: at + ",guarded", reason: ReasonEgressDenied},
		"mapped":          {value: "http://[::ffff:127.0.0.1]:1,id=" + at + ",guarded", reason: ReasonEgressDenied},
		"not guarded":     {value: at, reason: ReasonConnectFailed},
		"allowed":         {value: at + ",guarded", allow: "127.0.0.0/8", reason: ReasonConnectFailed},
		"named by a flag": {value: at + ",guarded", also: at, reason: ReasonConnectFailed},
	} {
		t.Run(name, func(t *testing.T) {
			sourcedWith(t, func(o *Options) {
				if c.also != "" {
					o.Workers = []string{c.also}
				}
				if c.allow != "" {
					o.EgressAllow = append(o.EgressAllow, specsOf(t, at+",peers="+c.allow)[0].Peers...)
				}
			}, func(p *plane, a, b *teller) {
				p.dial = egress.DefaultDial
				p.list(b)
				p.list(a, c.value)
				p.after(time.Second)
				e, _ := p.entry(at)
				if e.Reason != c.reason || (c.reason == ReasonEgressDenied) != strings.Contains(p.diagnostics(at).RegistrationError, "deny list") {
					t.Errorf("the worker shows %s: %q", e.Reason, p.diagnostics(at).RegistrationError)
				}
			})
		})
	}
}

// TestLimitDropsTheSameWorkers: those that are there stay.
func TestLimitDropsTheSameWorkers(t *testing.T) {
	var out bytes.Buffer
	defer func() {
		if n := strings.Count(out.String(), "workers above the limit"); n != 1 {
			t.Errorf("%d lines:\n%s", n, &out)
		}
	}()
	sourcedWith(t, func(o *Options) {
		o.MaxWorkers, o.Logger = 2, slog.New(slog.NewTextHandler(&out, nil))
	}, func(p *plane, a, b *teller) {
		p.list(a)
		p.list(b, "http://c:1", "http://d:1")
		for _, more := range []string{"http://a:1", "http://b:1"} {
			p.list(a, more)
			c, _ := p.entry("http://c:1")
			d, _ := p.entry("http://d:1")
			if c == nil || d == nil || p.listed() != 2 || testutil.ToFloat64(p.metrics.dropped) != 1 {
				t.Errorf("%s: %d workers", more, p.listed())
			}
		}
		p.list(b, "http://d:1")
		if got, _ := p.entry("http://b:1"); got == nil || p.listed() != 2 {
			t.Errorf("%d workers", p.listed())
		}
	})
}

// TestBug51DeleteAndAdd: an engine that is deleted and added while the settings
// are read again.
func TestBug51DeleteAndAdd(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.list(b)
		var both sync.WaitGroup
		both.Go(func() {
			for i := range 1000 {
				a.say <- Listing{Specs: specsOf(t, []string{testWorker}[:i%2]...)}
				<-time.After(time.Duration(i%7) * 20 * time.Millisecond)
			}
		})
		both.Go(func() {
			for i := range 1000 {
				flags := specsOf(t, fmt.Sprintf("http://10.0.1.%d:1", i%3))
				p.discovering.Lock()
				p.sources.flags = flags
				p.discovering.Unlock()
				p.reconcile(p.start)
				<-time.After(37 * time.Millisecond)
			}
		})
		both.Wait()
		p.after(time.Second)
		flag, _ := p.entry("http://10.0.1.0:1") // of the last, 999
		pod, _ := p.entry(testWorker)
		if flag == nil || pod == nil || p.listed() != 2 {
			t.Errorf("%d workers: flag %+v, pod %+v", p.listed(), flag, pod)
		}
	})
}

// TestBug52FactsComeLate: an engine that cannot say what it is for 20 s is known
// later, without an event of discovery.
func TestBug52FactsComeLate(t *testing.T) {
	var a *teller
	began := time.Time{}
	s := &script{probe: offers(offered(store.DialectPoll)), facts: func(context.Context, Target, int) Finding {
		if time.Since(began) < 20*time.Second {
			return Finding{}
		}
		return Finding{Complete: true, Facts: Facts{Family: "sglang", Models: []string{"m"}, Role: store.RoleDecode}}
	}}
	s.probe = func(context.Context, Target, int) Finding {
		return Finding{Offers: []Offer{offered(store.DialectPoll)}}
	}
	inBubbleWith(t, func(o *Options) {
		a, began = newTeller("alpha"), time.Now()
		o.Sources, o.Prober, o.Dialers = []Source{a}, s, map[store.Dialect]Dialer{store.DialectPoll: s}
	}, func(p *plane) {
		s.plane = p
		p.runAll()
		p.list(a, testWorker)
		p.after(15 * time.Second)
		if e, _ := p.entry(testWorker); e.Worker.Models != nil {
			t.Fatalf("%+v", e.Worker)
		}
		p.after(40 * time.Second)
		if e, _ := p.entry(testWorker); !slices.Equal(e.Worker.Models, []string{"m"}) || e.Worker.Role != store.RoleDecode {
			t.Errorf("%+v", e.Worker)
		}
	})
}

// TestBug63SlowIntrospection: an engine that takes 30 s to say what it is holds up
// no other one, and does not come back once it was removed.
func TestBug63SlowIntrospection(t *testing.T) {
	const other = "http://10.0.0.2:1"
	var a *teller
	s := &script{probe: func(ctx context.Context, target Target, _ int) Finding {
		if target.ID == testWorker {
			<-time.After(30 * time.Second) // whatever ctx says
		}
		return Finding{Complete: true, Offers: []Offer{offered(store.DialectPoll)}, Facts: Facts{Models: []string{"m"}}}
	}}
	inBubbleWith(t, func(o *Options) {
		a = newTeller("alpha")
		o.Sources, o.Prober, o.Dialers = []Source{a}, s, map[store.Dialect]Dialer{store.DialectPoll: s}
	}, func(p *plane) {
		s.plane = p
		p.runAll()
		p.list(a, testWorker)
		p.list(a, testWorker, other)
		p.after(settleFacts + testSettle)
		if e, _ := p.entry(other); e == nil || e.Load == nil || !slices.Equal(e.Worker.Models, []string{"m"}) {
			t.Errorf("the other one waits: %+v", e)
		}
		if p.list(a, other); p.listed() != 1 {
			t.Errorf("%d workers", p.listed())
		}
		for range 60 {
			if p.after(time.Second); p.listed() != 1 {
				t.Fatal("it came back")
			}
		}
	})
}

func TestSourceMetrics(t *testing.T) {
	sourced(t, func(p *plane, a, b *teller) {
		p.list(a, testWorker, "http://10.0.0.2:1")
		p.fail(b, "away")
		want := `
# HELP loadplane_registry_source_failing 1 while a source of discovery cannot deliver a new list and the last one is kept.
# TYPE loadplane_registry_source_failing gauge
loadplane_registry_source_failing{source="alpha"} 0
loadplane_registry_source_failing{source="beta"} 1
loadplane_registry_source_failing{source="registration"} 0
# HELP loadplane_registry_source_synced 1 once a source of discovery delivered a list.
# TYPE loadplane_registry_source_synced gauge
loadplane_registry_source_synced{source="alpha"} 1
loadplane_registry_source_synced{source="beta"} 0
loadplane_registry_source_synced{source="registration"} 0
# HELP loadplane_registry_source_workers Workers of the list of a source of discovery.
# TYPE loadplane_registry_source_workers gauge
loadplane_registry_source_workers{source="alpha"} 2
loadplane_registry_source_workers{source="beta"} 0
loadplane_registry_source_workers{source="registration"} 0
`
		if err := testutil.CollectAndCompare(p.metrics.sources, strings.NewReader(want),
			"loadplane_registry_source_failing", "loadplane_registry_source_synced", "loadplane_registry_source_workers"); err != nil {
			t.Error(err)
		}
		if n := testutil.CollectAndCount(p.metrics.sources, "loadplane_registry_source_list_age_seconds"); n != 1 {
			t.Errorf("%d ages", n)
		}
	})
}

// BenchmarkMerge is one reconciliation's part that grows with the lists: 5,000
// workers of a source, half of which another one names as well.
func BenchmarkMerge(b *testing.B) {
	var lists [2]listed
	for i := range 5000 {
		s, err := ParseWorkerFlag(fmt.Sprintf("http://10.1.%d.%d:30000,id=ns/pod-%d/30000,label.a=b", i/250, i%250, i))
		if err != nil {
			b.Fatal(err)
		}
		lists[1].specs = append(lists[1].specs, s)
		if s.ID = s.URL; i%2 == 0 {
			lists[0].specs = append(lists[0].specs, s)
		}
	}
	for i := range lists {
		slices.SortFunc(lists[i].specs, byID) // as they are in force
	}
	for b.Loop() {
		if all, _ := mergeLists(lists[:]); len(all) != 5000 {
			b.Fatal(len(all))
		}
	}
}
