package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

const testOrigin = "10.0.0.1:30000"

func (p *plane) wantState(state RegistrationState, status int) store.Diagnostics {
	p.t.Helper()
	d := p.diagnostics(testWorker)
	if d.Registration != string(state) || d.RegistrationStatus != status {
		p.t.Errorf("diagnostics %+v, want %s with status %d", d, state, status)
	}
	if (d.RegistrationError == "") != (state == StateRegistered) {
		p.t.Errorf("%s with the error %q", state, d.RegistrationError)
	}
	return d
}

func TestRegistrationRenewsAsGranted(t *testing.T) {
	inBubble(t, []string{testWorker + "/base/"}, func(p *plane) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		p.run()
		d := p.wantState(StateRegistered, 200)
		if next := d.NextRegistration.Sub(p.clock.Now()); next < 4900*time.Millisecond || next > 5*time.Second {
			t.Errorf("next registration in %s", next)
		}
		p.after(20 * time.Second)
		if got := fmt.Sprint(e.gaps()); got != "[5s 5s 5s 5s]" {
			t.Errorf("gaps %s", got)
		}
		want := `POST /base/v1/start_reporting {"ip":"192.0.2.7","port":7401,"report_interval_ms":1000,"lease_ttl_ms":15000}`
		if got := e.calls[0]; got.body != want || got.header.Get("Authorization") != "" || got.header.Get("Accept-Encoding") != "" {
			t.Errorf("call %+v, want %s", got, want)
		}
		if got := testutil.ToFloat64(p.metrics.registrations.WithLabelValues(string(StateRegistered))); got != 1 {
			t.Errorf("%v registered", got)
		}
	})
}

// TestReporterBesideTheEngine is asked to report in the engine's place, where
// the dialect and the port are configured, and speaks for the engine.
func TestReporterBesideTheEngine(t *testing.T) {
	for name, c := range map[string]struct{ worker, origin, path string }{
		"port":            {testWorker + "/base,dialect=push,reporter_port=7410", "10.0.0.1:7410", "/v1/start_reporting"},
		"no port":         {testWorker + "/base,dialect=push", testOrigin, "/base/v1/start_reporting"},
		"port by label":   {testWorker + "/base,dialect=push,label.reporter_port=7410", testOrigin, "/base/v1/start_reporting"},
		"IPv6":            {"http://[::2]:30000,dialect=push,reporter_port=7410", "[::2]:7410", "/v1/start_reporting"},
		"dialect is open": {testWorker + ",reporter_port=7410", testOrigin, "/v1/start_reporting"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{probe: offers(offered(store.DialectPush))}
			scripted(t, s, []string{c.worker}, func(p *plane) {
				p.net.report = nil
				e := p.net.add(c.origin, always(200, goodAnswer))
				p.after(time.Second)
				if e.count() != 1 || !strings.HasPrefix(e.calls[0].body, "POST "+c.path+" ") {
					t.Fatalf("calls %+v", e.calls)
				}
			})
		})
	}
	inBubble(t, []string{testWorker + ",dialect=push,reporter_port=7410"}, func(p *plane) {
		p.net.report = nil
		p.net.add("10.0.0.1:7410", always(200, goodAnswer))
		p.run()
		p.bindAs("s1", 1)
		p.wantState(StateRegistered, 200)
	})
}

func TestReportAddressIsTold(t *testing.T) {
	inBubbleWith(t, func(o *Options) {
		o.Workers, o.ReportAddress = []string{testWorker}, netip.MustParseAddr("::ffff:203.0.113.9")
	}, func(p *plane) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		p.run()
		if !strings.Contains(e.calls[0].body, `"ip":"203.0.113.9"`) {
			t.Error(e.calls[0].body)
		}
	})
}

func TestRenewalIsClamped(t *testing.T) {
	for renew, want := range map[string]time.Duration{
		"1": 1500 * time.Millisecond, "0": 5 * time.Second, "-1": 5 * time.Second, "9223372036854775808": 5 * time.Second,
		"1000": 1500 * time.Millisecond, "14999": 10 * time.Second, "15000": 5 * time.Second, "2.5": 5 * time.Second,
		`"7000"`: 5 * time.Second, "null": 5 * time.Second, "7000": 7 * time.Second,
	} {
		t.Run(renew, func(t *testing.T) {
			inBubble(t, []string{testWorker}, func(p *plane) {
				e := p.net.add(testOrigin, always(200, `{"lease_ttl_ms":15000,"renew_after_ms":`+renew+`}`))
				p.run()
				p.after(want + time.Second)
				if got := e.gaps(); len(got) != 1 || got[0] != want {
					t.Errorf("gaps %v, want %s", got, want)
				}
				bad := testutil.ToFloat64(p.metrics.calls.WithLabelValues(string(ReasonBadAnswer)))
				if good := renew[0] >= '1' && renew[0] <= '9' && len(renew) < 10 && renew != "2.5"; good != (bad == 0) {
					t.Errorf("%v bad answers counted", bad)
				}
			})
		})
	}
}

func TestRetriesBackOff(t *testing.T) {
	for name, answer := range map[string]func(int) string{
		"429": always(429, "busy"), "500": always(500, ""), "501": always(501, "no grpcio"), "503": always(503, ""),
		"broken": func(int) string { return "HTTP/1.1 what" },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, []string{testWorker}, func(p *plane) {
				e := p.net.add(testOrigin, func(n int) string {
					if n == 8 {
						return reply(200, goodAnswer)
					}
					return answer(n)
				})
				p.run()
				p.after(time.Minute)
				base := minBackoff
				for i, gap := range e.gaps()[:12] {
					switch {
					case i == 8: // after the good answer
						if gap != 5*time.Second {
							t.Errorf("renewal after %s", gap)
						}
						base = minBackoff
						continue
					case gap < base*4/5 || gap > base*6/5:
						t.Errorf("gap %d is %s, want %s within a fifth", i, gap, base)
					}
					base = min(2*base, maxBackoff)
				}
			})
		})
	}
}

func TestConflictWaitsOneLease(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		e := p.net.add(testOrigin, always(409, "taken"))
		p.run()
		p.wantState(StateConflict, 409)
		p.after(31 * time.Second)
		if got := fmt.Sprint(e.gaps()); got != "[15s 15s]" {
			t.Errorf("gaps %s", got)
		}
	})
}

func TestParkedForAMinuteOrUntilDiscoveryChanges(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		e := p.net.add(testOrigin, always(403, "admin key needed"))
		p.run()
		if d := p.wantState(StateParked, 403); !strings.Contains(d.RegistrationError, "admin key needed") {
			t.Errorf("error %q", d.RegistrationError)
		}
		if w, _ := p.entry(testWorker); w.Reason != ReasonAuth {
			t.Errorf("reason %s", w.Reason)
		}
		p.bindAs("s1", 1).Close() // asks early, which a parked worker ignores
		p.after(time.Minute)
		if got := fmt.Sprint(e.gaps()); got != "[1m0s]" {
			t.Fatalf("gaps %s", got)
		}
		p.after(10 * time.Second)
		p.discover(testWorker + ",zone=z")
		if e.count() != 3 {
			t.Errorf("%d calls after discovery changed, want 3", e.count())
		}
	})
}

func TestNoEngine(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		if w, _ := p.entry(testWorker); w.Reason != ReasonConnectFailed {
			t.Errorf("reason %s", w.Reason)
		}
		p.after(noEngineFor - time.Second)
		if w, _ := p.entry(testWorker); w.Reason != ReasonConnectFailed {
			t.Errorf("before five minutes: %s", w.Reason)
		}
		p.after(8 * time.Second)
		if w, _ := p.entry(testWorker); w.Reason != store.ReasonNoEngine {
			t.Errorf("after five minutes: %s", w.Reason)
		}
		p.net.add(testOrigin, always(200, goodAnswer)).mute.Store(true)
		p.after(8 * time.Second)
		if w, _ := p.entry(testWorker); w.Reason != store.ReasonNoReport {
			t.Errorf("after it came: %s", w.Reason)
		}
	})
}

func TestNoEngineNeedsFiveMinutesOfRefusals(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		p.after(4 * time.Minute)
		p.net.add(testOrigin, always(503, ""))
		p.after(10 * time.Second)
		p.net.mu.Lock()
		delete(p.net.engines, testOrigin)
		p.net.mu.Unlock()
		p.after(4 * time.Minute)
		if w, _ := p.entry(testWorker); w.Reason == store.ReasonNoEngine {
			t.Error("an engine that answered in between counts as none")
		}
	})
}

func TestStuckWorkerDelaysNobody(t *testing.T) {
	workers := []string{testWorker}
	for i := range 20 {
		workers = append(workers, fmt.Sprintf("http://10.0.1.%d:1", i))
	}
	inBubble(t, workers, func(p *plane) {
		stuck := p.net.add(testOrigin, nil)
		var engines []*engine
		for i := range 20 {
			engines = append(engines, p.net.add(fmt.Sprintf("10.0.1.%d:1", i), always(200, goodAnswer)))
		}
		p.run()
		for i, e := range engines {
			if e.count() != 1 {
				t.Errorf("engine %d was called %d times at once", i, e.count())
			}
		}
		p.discover(workers[1:]...) // the stuck one goes while it is called
		if w, _ := p.entry(testWorker); w != nil || stuck.count() != 0 {
			t.Error("the removed worker is still there")
		}
		p.after(11 * time.Second)
		for i, e := range engines {
			if got := fmt.Sprint(e.gaps()); got != "[5s 5s]" {
				t.Errorf("engine %d: gaps %s", i, got)
			}
		}
		if w, _ := p.entry(testWorker); w != nil {
			t.Error("the removed worker came back")
		}
	})
}

func TestStuckCallIsGivenUp(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.net.add(testOrigin, nil)
		p.run()
		p.after(2 * time.Second)
		d := p.wantState(StateRetrying, 0)
		if !strings.Contains(d.RegistrationError, "deadline") {
			t.Errorf("error %q", d.RegistrationError)
		}
	})
}

// TestEarlyRegistration: a stream that ends has the engine asked again, but
// never as fast as it reports.
func TestEarlyRegistration(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		p.run()
		for range 100 {
			p.bindAs("s1", 1).Close()
			p.after(50 * time.Millisecond)
		}
		for _, gap := range e.gaps() {
			if gap <= testInterval || gap > 2*testInterval {
				t.Errorf("gap %s", gap)
			}
		}
		if n := len(e.gaps()); n != 3 {
			t.Errorf("%d early calls in 5 s, want 3", n)
		}
	})
}

func TestRetiredInstanceHasTheEngineAskedEarly(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		p.run()
		p.bindAs("old", 1)
		p.bindAs("new", 1)
		_, err := p.Bind(claim("old"), p.load("old", 2))
		wantRefusal(t, err, ReasonRetired, false)
		p.after(2 * time.Second)
		if got := fmt.Sprint(e.gaps()); got != "[1.5s]" {
			t.Errorf("gaps %s", got)
		}
	})
}

func TestTokenIsReadAtEveryCall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	inBubble(t, []string{testWorker + ",token_file=" + path}, func(p *plane) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		p.run()
		write("two")
		p.after(5 * time.Second)
		write("two words")
		p.after(5 * time.Second)
		p.wantState(StateRetrying, 0)
		if e.count() != 2 || e.calls[0].header.Get("Authorization") != "Bearer one" || e.calls[1].header.Get("Authorization") != "Bearer two" {
			t.Errorf("calls %+v", e.calls)
		}
	})
}

// TestNamesResolve: the addresses of a name are those of the resolver and of
// the connection; the last good ones stay.
func TestNamesResolve(t *testing.T) {
	const name = "http://engine.test:30000"
	inBubble(t, []string{name}, func(p *plane) {
		p.net.add("engine.test:30000", always(200, goodAnswer))
		var fail atomic.Bool
		p.lookup = func(context.Context, string) ([]netip.Addr, error) {
			if fail.Load() {
				return nil, errors.New("resolver is down")
			}
			return []netip.Addr{netip.MustParseAddr("10.7.0.1")}, nil
		}
		c := Claim{Addr: name, Role: store.RoleRegular, Source: "s1", Peer: netip.MustParseAddrPort("10.7.0.1:9")}
		p.reconcile(func(*worker, time.Duration) {})
		_, err := p.Bind(c, p.load("s1", 1))
		wantRefusal(t, err, ReasonNotSynced, false)
		p.workers = nil
		p.run()
		if _, err := p.Bind(c, p.load("s1", 1)); err != nil {
			t.Error(err)
		}
		fail.Store(true)
		p.after(6 * time.Second)
		c.Peer = testPeer // of the connection
		if _, err := p.Bind(c, p.load("s1", 2)); err != nil {
			t.Error(err)
		}
		c.Peer = otherPeer
		_, err = p.Bind(c, p.load("s1", 3))
		wantRefusal(t, err, ReasonPeerMismatch, false)
	})
}

func TestManyWorkersAreSpread(t *testing.T) {
	var workers []string
	for i := range 200 {
		workers = append(workers, fmt.Sprintf("http://10.0.1.%d:1", i))
	}
	inBubble(t, workers, func(p *plane) {
		e := p.net.add("10.0.1.0:1", always(200, goodAnswer))
		for i := range 200 {
			p.net.engines[fmt.Sprintf("10.0.1.%d:1", i)] = e
		}
		p.run()
		if n := e.count(); n != spreadBatch {
			t.Errorf("%d calls at once", n)
		}
		p.after(100 * time.Millisecond)
		if n := e.count(); n != 200 {
			t.Errorf("%d calls soon after, want all", n)
		}
	})
}

func TestRefusedIsSeenThroughErrors(t *testing.T) {
	_, err := newNetwork().dial(t.Context(), "tcp", "x")
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
}

func FuzzParseAnswer(f *testing.F) {
	for _, s := range []string{goodAnswer, `{}`, `[]`, `{"renew_after_ms":9223372036854775808}`, `{"renew_after_ms":-1,"lease_ttl_ms":1}`, "\xff"} {
		f.Add([]byte(s), uint16(1000), uint32(15000))
	}
	f.Fuzz(func(t *testing.T, body []byte, intervalMs uint16, leaseMs uint32) {
		interval := max(minInterval, time.Duration(intervalMs)*time.Millisecond)
		lease := max(4*interval, time.Duration(leaseMs)*time.Millisecond)
		g, err := parseAnswer(body)
		if g.lease < 0 || g.renewAfter < 0 {
			t.Fatalf("granted %+v", g)
		}
		if err == nil && (!json.Valid(body) || g.lease == 0 || g.renewAfter == 0) {
			t.Fatalf("%q gave %+v without an error", body, g)
		}
		after := renewal(interval, lease, g)
		if after <= interval || after > lease*2/3 || after > max(maxRenewal, floorOf(interval)) {
			t.Fatalf("interval %s, lease %s, grant %+v: renewal after %s", interval, lease, g, after)
		}
	})
}

// TestSilentEngineIsAskedOnceMore: an engine that accepts and is not heard may
// have taken the call for a renewal of a stream that was ending.
func TestSilentEngineIsAskedOnceMore(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		e := p.net.add(testOrigin, always(200, goodAnswer))
		e.mute.Store(true)
		p.run()
		p.after(18 * time.Second)
		if got := fmt.Sprint(e.gaps()); got != "[2.2s 5s 5s 5s]" {
			t.Errorf("gaps %s", got)
		}
		p.speak(testOrigin)
		p.after(5 * time.Second)
		p.after(3 * time.Second)
		if got := fmt.Sprint(e.gaps()); got != "[2.2s 5s 5s 5s 5s 2.2s]" {
			t.Errorf("silent again after it was heard: gaps %s", got)
		}
	})
}

// TestNewIdentityWaitsForTheEndOfTheOld: the first call to an engine that had
// another identity comes after its stream ended.
func TestNewIdentityWaitsForTheEndOfTheOld(t *testing.T) {
	inBubble(t, []string{testWorker}, func(p *plane) {
		p.run()
		p.sources.flags, p.opts.Workers = nil, []string{testWorker + ",role=decode", "http://10.0.0.9:1"}
		if err := p.readSources(); err != nil {
			t.Fatal(err)
		}
		delays := map[string]time.Duration{}
		p.reconcile(func(w *worker, delay time.Duration) { delays[w.id] = delay })
		if delays[testWorker] != endGrace || delays["http://10.0.0.9:1"] != 0 {
			t.Errorf("delays %v, want %s for the engine that was known alone", delays, endGrace)
		}
	})
}

// TestEngineLearnsOfTheEndFirst: a call that comes before the engine knows that
// its stream ended would renew what is ending.
func TestEngineLearnsOfTheEndFirst(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(p *plane, b *Binding)
		want time.Duration
	}{
		"refused": {func(_ *plane, b *Binding) { _ = b.Check(claim("s2")) }, endGrace},
		"closed":  {func(_ *plane, b *Binding) { b.Close() }, endGrace},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, []string{testWorker}, func(p *plane) {
				e := p.net.add(testOrigin, always(200, goodAnswer))
				p.run()
				b := p.bindAs("s1", 1)
				p.after(3 * time.Second)
				before, ended := e.count(), time.Now()
				c.end(p, b)
				p.after(time.Second)
				if e.count() != before+1 {
					t.Fatalf("%d calls in the second after the end, want 1", e.count()-before)
				}
				e.mu.Lock()
				at := e.calls[before].at
				e.mu.Unlock()
				if got := at.Sub(ended); got < c.want || got > c.want+2*testSettle {
					t.Errorf("called %s after the end, want %s", got, c.want)
				}
			})
		})
	}
}
