package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/store"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// line is what a test reads of a line of the log.
type line struct {
	Level, Msg, Worker, Reason, Was, Changed, Error, URL string
	WasReason                                            string `json:"was_reason"`
	Found, Stale, Heard, Draining, Undrained, Ranks      int
}

// plane is a running store whose journal writes to log.
type plane struct {
	*store.Store
	t     *testing.T
	clock *store.Clock
	log   output
	stop  func()
	// journal is read once it was stopped.
	journal *Journal
}

// output is what was written. It is safe for concurrent use.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

// take returns what was written since the last call.
func (o *output) take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.text.Reset()
	return o.text.String()
}

// run runs a store and its journal in a bubble of fake time.
func run(t *testing.T, body func(p *plane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &plane{t: t, clock: store.NewClock()}
		var err error
		p.Store, err = store.New(store.Options{
			Lineage: "test", Clock: p.clock, StaleAfter: 3 * time.Second, Settle: 10 * time.Millisecond,
			ReportInterval: time.Second, SleptFor: func() time.Duration { return 0 },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 2)
		p.journal = New(Options{Store: p.Store, Logger: slog.New(slog.NewJSONHandler(&p.log, nil))})
		go func() { done <- p.Run(ctx) }()
		go func() { done <- p.journal.Run(ctx) }()
		p.stop = func() {
			stop()
			for range 2 {
				if err := <-done; err != nil {
					t.Error("Run:", err)
				}
			}
			p.stop = func() {}
		}
		body(p)
		p.stop()
	})
}

// after lets d pass.
func (p *plane) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// settled lets what is queued be committed and told.
func (p *plane) settled() { p.after(300 * time.Millisecond) }

// lines returns the lines since the last call.
func (p *plane) lines() (all []line) {
	p.t.Helper()
	for text := range strings.Lines(p.log.take()) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			p.t.Fatalf("%q: %v", text, err)
		}
		if strings.Contains(text, `"error":""`) {
			p.t.Errorf("an error that is none: %s", text)
		}
		all = append(all, l)
	}
	return all
}

// want holds the next lines, each "LEVEL message worker", against what is wanted.
func (p *plane) want(want ...string) []line {
	p.t.Helper()
	all := p.lines()
	var got []string
	for _, l := range all {
		got = append(got, strings.TrimSpace(l.Level+" "+l.Msg+" "+l.Worker))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		p.t.Errorf("lines\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	return all
}

func worker(id string) *store.Worker {
	return &store.Worker{
		ID: id, URL: "http://" + id + ":30000", Origin: id + ":30000", Role: store.RoleRegular,
		Dialect: store.DialectPush, Interval: time.Second, DiscoveredBy: "file",
	}
}

// add adds workers and returns their slots, each bound to a stream.
func (p *plane) add(workers ...*store.Worker) (slots []*store.Slot) {
	for _, w := range workers {
		slots = append(slots, p.NewSlot(w))
	}
	p.Apply(store.Discovery{Added: slots, Synced: true})
	p.settled()
	for _, sl := range slots {
		sl.Bind(store.Stream{Source: "s1", Generation: 1})
	}
	return slots
}

// report leaves a report of a slot.
func (p *plane) report(sl *store.Slot, seq uint64, status store.Status) {
	r := store.Rank{}
	r.SetCount(store.NumRunningReqs, 1)
	l := &store.Load{
		Source: "s1", Sequence: seq, Status: status, Received: p.clock.Now(), ReceivedUnixMs: time.Now().UnixMilli(),
	}
	if status == store.StatusUnreachable {
		l.LastError = "connection refused\n" + strings.Repeat("x", 1000)
	} else {
		l.Ranks, l.Samples = []store.Rank{r}, []store.Sample{{TimeUnixMs: -1, PrefillUncachedTokens: -1, PrefillBusyUs: -1, GeneratedTokens: -1}}
	}
	sl.Offer(1, l)
}

func TestEachChangeOfAWorkerIsOneLine(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.add(worker("a"))[0]
		if got := p.want("INFO worker found a"); got[0].URL != "http://a:30000" {
			t.Errorf("found: %+v", got[0])
		}
		p.report(sl, 1, store.StatusHealthy)
		p.settled()
		if got := p.want("INFO worker heard a"); got[0].Ranks != 1 {
			t.Errorf("heard: %+v", got[0])
		}
		p.report(sl, 2, store.StatusHealthy)
		p.settled()
		p.want()
		p.after(4 * time.Second)
		if got := p.want("WARN worker stale a"); got[0].Reason != "age" || got[0].Was != "fresh" {
			t.Errorf("stale: %+v", got[0])
		}
		p.report(sl, 3, store.StatusHealthy)
		p.settled()
		if got := p.want("INFO worker fresh again a"); got[0].Was != "stale" || got[0].WasReason != "age" {
			t.Errorf("fresh again: %+v", got[0])
		}
		p.report(sl, 4, store.StatusUnreachable)
		p.settled()
		if got := p.want("WARN worker unreachable a"); got[0].Reason != "engine_unreachable" || len(got[0].Error) != maxText {
			t.Errorf("unreachable: %+v", got[0])
		}
		w := worker("a")
		w.Draining = true
		p.Apply(store.Discovery{Updated: []store.Update{{Slot: sl, Worker: w}}})
		p.settled()
		p.want("INFO worker drains a")
		p.Apply(store.Discovery{Updated: []store.Update{{Slot: sl, Worker: worker("a")}}})
		p.settled()
		p.want("INFO worker takes new work again a")
		p.Apply(store.Discovery{Removed: []*store.Slot{sl}})
		p.settled()
		p.want("INFO worker removed a")
		p.stop()
		if n := len(p.journal.lines.of); n != 0 {
			t.Errorf("the bounds of %d workers are kept", n)
		}
	})
}

// A worker that is stale for another reason than before is told of again.
func TestAnotherReasonIsALine(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.add(worker("a"))[0]
		p.report(sl, 1, store.StatusStale)
		p.settled()
		if got := p.want("INFO worker found a", "INFO worker heard a", "WARN worker stale a"); got[2].Reason != "engine_stale" || got[2].Was != "missing" {
			t.Errorf("stale when heard: %+v", got[2])
		}
		p.after(4 * time.Second)
		if got := p.want("WARN worker stale a"); got[0].Reason != "age" || got[0].Was != "stale" {
			t.Errorf("stale by age: %+v", got[0])
		}
	})
}

// What comes and goes within the wait is no line.
func TestABlinkIsNoLine(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.add(worker("a"))[0]
		p.report(sl, 1, store.StatusHealthy)
		p.settled()
		p.lines()
		p.report(sl, 2, store.StatusHealthy) // The wait begins.
		p.after(20 * time.Millisecond)
		p.report(sl, 3, store.StatusUnreachable)
		p.after(20 * time.Millisecond)
		p.report(sl, 4, store.StatusHealthy)
		p.settled()
		p.want()
	})
}

// A worker whose first report is in the same state as itself is heard as well.
func TestFoundAndHeardAtOnce(t *testing.T) {
	run(t, func(p *plane) {
		p.add(worker("a"))
		p.lines()
		sl := p.NewSlot(worker("b"))
		p.Apply(store.Discovery{Added: []*store.Slot{sl}, Synced: true})
		p.after(15 * time.Millisecond)
		sl.Bind(store.Stream{Source: "s1", Generation: 1})
		p.report(sl, 1, store.StatusUnreachable)
		p.settled()
		p.want("INFO worker found b", "INFO worker heard b", "WARN worker unreachable b")
	})
}

// Changes without a line are counted by what they were, and the sum is as loud
// as the loudest of them.
func TestTheSumSaysWhatChanged(t *testing.T) {
	run(t, func(p *plane) {
		p.stop()
		for range 2 {
			p.journal.lines.counted[drains]++
		}
		p.journal.lines.counted[undrained]++
		p.journal.sum(t.Context())
		if got := p.want("INFO further changes of workers"); got[0].Draining != 2 || got[0].Undrained != 1 {
			t.Errorf("%+v", got[0])
		}
		p.journal.lines.counted[unreachable]++
		p.journal.lines.counted[fresh]++
		p.journal.sum(t.Context())
		p.want("WARN further changes of workers")
		p.journal.sum(t.Context())
		p.want()
	})
}

func TestAnotherIdentityIsSaid(t *testing.T) {
	for want, change := range map[string]func(*store.Worker){
		"url":      func(w *store.Worker) { w.Origin = "a:1" },
		"role":     func(w *store.Worker) { w.Role = store.RoleDecode },
		"origin":   func(w *store.Worker) { w.Duplicate = true },
		"engine":   func(w *store.Worker) { w.NoEngine = true },
		"dialect":  func(w *store.Worker) { w.Dialect = store.DialectPoll },
		"instance": func(*store.Worker) {},
	} {
		t.Run(want, func(t *testing.T) {
			run(t, func(p *plane) {
				old := p.add(worker("a"))
				p.lines()
				w := worker("a")
				change(w)
				p.Apply(store.Discovery{Removed: old, Added: []*store.Slot{p.NewSlot(w)}})
				p.settled()
				if got := p.want("INFO worker is another one a"); got[0].Changed != want {
					t.Errorf("changed %q, want %q", got[0].Changed, want)
				}
			})
		})
	}
}

func TestAFleetThatFlipsAtOnceIsFewLines(t *testing.T) {
	const n = 1000
	run(t, func(p *plane) {
		var workers []*store.Worker
		for i := range n {
			workers = append(workers, worker(fmt.Sprintf("w%04d", i)))
		}
		slots := p.add(workers...)
		p.after(time.Minute)
		got := p.lines()
		last := got[len(got)-1]
		if len(got) > lineBurst+1 || last.Msg != "further changes of workers" || last.Found+len(got)-1 != n {
			t.Errorf("%d lines, the last %+v", len(got), last)
		}
		for _, sl := range slots {
			p.report(sl, 1, store.StatusHealthy)
		}
		p.after(2 * time.Second)
		p.after(time.Minute)
		lines, heardSum, staleSum := p.lines(), 0, 0
		for _, l := range lines {
			switch l.Msg {
			case "worker heard":
				heardSum++
			case "worker stale":
				staleSum++
			}
			heardSum, staleSum = heardSum+l.Heard, staleSum+l.Stale
		}
		if heardSum != n || staleSum != n || len(lines) > 2*lineBurst+20 {
			t.Errorf("%d lines tell of %d heard and %d stale, want %d each", len(lines), heardSum, staleSum, n)
		}
	})
}

func TestAWorkerThatFlapsIsFewLines(t *testing.T) {
	run(t, func(p *plane) {
		sl := p.add(worker("a"))[0]
		const minutes = 10
		for i := range uint64(minutes * 60) {
			status := store.StatusHealthy
			if i%2 == 1 {
				status = store.StatusUnreachable
			}
			p.report(sl, i+1, status)
			p.after(time.Second)
		}
		own := 0
		for _, l := range p.lines() {
			if l.Worker == "a" {
				own++
			}
		}
		if own < firstLines || own > firstLines+minutes {
			t.Errorf("%d lines of a worker that flaps for %d minutes", own, minutes)
		}
	})
}

func TestWhatWasCountedIsToldAtTheEnd(t *testing.T) {
	run(t, func(p *plane) {
		var workers []*store.Worker
		for i := range lineBurst + 7 {
			workers = append(workers, worker(fmt.Sprintf("w%04d", i)))
		}
		p.add(workers...)
		p.stop()
		got := p.lines()
		if last := got[len(got)-1]; last.Found == 0 || last.Found+len(got)-1 != len(workers) {
			t.Errorf("%d lines, the last %+v", len(got), last)
		}
	})
}

func TestBoundsOfWorkersThatAreGoneAreForgotten(t *testing.T) {
	l := newLines()
	for i := range 100 {
		c := change{worker: fmt.Sprint(i), kind: found}
		l.allow(&c)
		l.forget(c.worker)
	}
	if len(l.of) != 0 {
		t.Errorf("%d bounds are kept", len(l.of))
	}
}

func TestCutKeepsWholeRunes(t *testing.T) {
	for _, text := range []string{"", "a", strings.Repeat("é", 300), "a" + strings.Repeat("é", 300)} {
		if got := cut(text); len(got) > maxText || !strings.HasPrefix(text, got) || strings.ToValidUTF8(got, "!") != got {
			t.Errorf("cut(%d bytes) = %q", len(text), got)
		}
	}
}
