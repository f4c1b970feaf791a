package dns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// script answers in place of a server, in fake time.
type script struct {
	t  *testing.T
	mu sync.Mutex
	// answers are by name, each a list of addresses with the time to live before
	// them; rcodes and errs win over them, hangs over all.
	answers map[string]string
	rcodes  map[string]int
	errs    map[string]error
	hangs   map[string]bool
	panics  map[string]bool
	asked   map[string][]time.Time
}

func (s *script) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *script) times(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked[name])
}

// moments returns when a name was asked for.
func (s *script) moments(name string) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked[name])
}

func (s *script) exchange(ctx context.Context, _ string, _ bool, q *dns.Msg) (*dns.Msg, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := q.Question[0].Name
	if q.Question[0].Qtype == dns.TypeA {
		s.asked[name] = append(s.asked[name], time.Now())
	}
	if s.hangs[name] {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return nil, ctx.Err()
	}
	if s.panics[name] {
		panic("as asked for")
	}
	if err := s.errs[name]; err != nil {
		return nil, err
	}
	var records []string
	ttl, addrs, _ := strings.Cut(s.answers[name], " ")
	for addr := range strings.FieldsSeq(addrs) {
		if q.Question[0].Qtype == dns.TypeA {
			records = append(records, fmt.Sprintf("%s %s IN A %s", name, ttl, addr))
		}
	}
	return reply(s.t, q, s.rcodes[name], records...), nil
}

// run is a source that runs in a bubble.
type run struct {
	*script
	source *Source
	log    bytes.Buffer
	// got are the deliveries since they were last taken: ids, or an error; those
	// equal to the last one are only counted.
	got     []string
	last    string
	renewed int
}

func inBubble(t *testing.T, change func(*Options), answers map[string]string, body func(r *run)) {
	t.Helper()
	inBubbleFrom(t, nil, change, answers, body)
}

// inBubbleFrom changes the answers before the first question.
func inBubbleFrom(t *testing.T, begin func(*script), change func(*Options), answers map[string]string, body func(r *run)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &run{script: &script{
			t: t, answers: answers, rcodes: map[string]int{}, errs: map[string]error{}, hangs: map[string]bool{}, panics: map[string]bool{}, asked: map[string][]time.Time{},
		}}
		opts := Options{Servers: []string{"server"}, Exchange: r.exchange, Registerer: prometheus.NewRegistry(),
			Logger: slog.New(slog.NewTextHandler(&r.log, nil))}
		for _, name := range []string{"a", "b"} {
			if answers[name+"."] != "" {
				opts.Records = append(opts.Records, *record(t, name+".:80"))
			}
		}
		if change != nil {
			change(&opts)
		}
		if begin != nil {
			begin(r.script)
		}
		var err error
		if r.source, err = New(opts); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.source.Run(ctx, r.deliver) })
		synctest.Wait()
		body(r)
		stop()
		running.Wait()
	})
}

func (r *run) deliver(l registry.Listing) {
	text := "list"
	if l.Err != nil {
		text = "error " + l.Err.Error()
	}
	for _, s := range l.Specs {
		text += " " + strings.TrimPrefix(s.ID, "http://10.0.0.")
	}
	r.set(func() {
		if text == r.last {
			r.renewed++
			return
		}
		r.got, r.last = append(r.got, text), text
	})
}

// take returns the deliveries since the last call.
func (r *run) take() (list []string) {
	synctest.Wait()
	r.set(func() { list, r.got = r.got, nil })
	return list
}

// want checks the deliveries since the last call.
func (r *run) want(list ...string) {
	r.t.Helper()
	if got := r.take(); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", list) {
		r.t.Errorf("delivered %q, want %q", got, list)
	}
}

func (r *run) lookups(result string) float64 {
	return testutil.ToFloat64(r.source.metrics.lookups.WithLabelValues(result))
}

func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestChangesAreDelivered(t *testing.T) {
	inBubble(t, nil, map[string]string{"a.": "10 10.0.0.1 10.0.0.2", "b.": "10 10.0.0.3"}, func(r *run) {
		r.want("list 1:80 2:80 3:80")
		r.set(func() { r.answers["a."] = "10 10.0.0.2 10.0.0.1 10.0.0.2" })
		after(11 * time.Second)
		r.want() // another order is no change
		if r.renewed < 2 {
			t.Errorf("the list was renewed %d times", r.renewed)
		}
		r.set(func() { r.answers["a."] = "10 10.0.0.4 10.0.0.1" })
		after(11 * time.Second)
		r.want("list 1:80 4:80 3:80")
		r.set(func() { r.answers["b."] = "10 10.0.0.1" })
		after(11 * time.Second)
		r.want("list 1:80 4:80") // one worker for one address
		if r.lookups("ok") < 6 {
			t.Errorf("%v lookups", r.lookups("ok"))
		}
	})
}

func TestTimesToLiveAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		ttl      string
		min, max time.Duration
		// least and most are the waits.
		least, most time.Duration
	}{
		"zero":             {"0", 0, 0, 5 * time.Second, 5500 * time.Millisecond},
		"the least":        {"5", 0, 0, 5 * time.Second, 5500 * time.Millisecond},
		"as it is":         {"20", 0, 0, 18 * time.Second, 20 * time.Second},
		"the most":         {"60", 0, 0, 54 * time.Second, time.Minute},
		"a day":            {"86400", 0, 0, 54 * time.Second, time.Minute},
		"a narrower bound": {"1", 10 * time.Second, 10 * time.Second, 10 * time.Second, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(o *Options) { o.MinTTL, o.MaxTTL = c.min, c.max }, map[string]string{"a.": c.ttl + " 10.0.0.1"}, func(r *run) {
				after(10 * time.Minute)
				at := r.moments("a.")
				if least := int(10 * time.Minute / c.most); len(at) < least {
					t.Errorf("asked %d times in ten minutes, want %d", len(at), least)
				}
				for i := range at[1:] {
					if d := at[i+1].Sub(at[i]); d < c.least || d > c.most {
						t.Errorf("wait %d is %v", i, d)
					}
				}
				r.want("list 1:80")
			})
		})
	}
}

// TestBug24FailuresNeverWipe: whatever a server does, the last workers stay, the
// reason is said and counted, and another name goes on.
func TestBug24FailuresNeverWipe(t *testing.T) {
	cases := map[store.Reason]func(s *script){
		ReasonNoRecords:    func(s *script) { s.answers["a."] = "10" },
		ReasonNoName:       func(s *script) { s.rcodes["a."] = dns.RcodeNameError },
		ReasonServerFailed: func(s *script) { s.rcodes["a."] = dns.RcodeServerFailure },
		ReasonNoAnswer:     func(s *script) { s.hangs["a."] = true },
		ReasonBadAnswer:    func(s *script) { s.errs["a."] = errors.New("dns: overflow unpacking uint16") },
		ReasonPanic:        func(s *script) { s.panics["a."] = true },
	}
	for reason, fail := range cases {
		t.Run(string(reason), func(t *testing.T) {
			inBubble(t, nil, map[string]string{"a.": "10 10.0.0.1", "b.": "10 10.0.0.2"}, func(r *run) {
				r.want("list 1:80 2:80")
				r.set(func() { fail(r.script) })
				after(14 * time.Second)
				got := r.take()
				if len(got) != 1 || !strings.HasPrefix(got[0], "error a.: ") {
					t.Fatalf("delivered %q", got)
				}
				failing := got[0]
				r.set(func() { r.answers["b."] = "10 10.0.0.3" })
				after(12 * time.Second)
				r.want("list 1:80 3:80", failing)
				asked := r.times("a.")
				after(30 * time.Minute)
				r.want()
				if n := r.times("a.") - asked; n < 28 || n > 34 {
					t.Errorf("asked %d times in half an hour", n)
				}
				if n := r.lookups(string(reason)); n < 28 {
					t.Errorf("%v lookups are counted", n)
				}
				if n := strings.Count(r.log.String(), "panicked"); n > 1 || (n == 1) != (reason == ReasonPanic) {
					t.Errorf("%d lines of the log tell of panics", n)
				}
				r.set(func() {
					r.answers["a."] = "10 10.0.0.1"
					r.rcodes, r.errs, r.hangs, r.panics = nil, nil, nil, nil
				})
				after(time.Minute)
				r.want("list 1:80 3:80") // that it works again is said
			})
		})
	}
}

// TestNothingYet: a name that failed from the start is no empty list.
func TestNothingYet(t *testing.T) {
	inBubble(t, nil, map[string]string{"a.": "10 10.0.0.1"}, func(r *run) {
		r.want("list 1:80")
	})
	inBubble(t, func(o *Options) { o.Records = []Record{*record(t, "c.:80")} }, map[string]string{}, func(r *run) {
		r.want("error c.: AAAA of c.: there is no record")
		r.set(func() { r.answers["c."] = "10 10.0.0.1" })
		after(6 * time.Second)
		r.want("list 1:80") // bug 73: the first worker arrives as a change
	})
}

// TestFirstListWaitsForEachName: half a fleet is not taken for the whole, and
// what is there is not withheld for ever.
func TestFirstListWaitsForEachName(t *testing.T) {
	fails := func(s *script) { s.rcodes["b."] = dns.RcodeServerFailure }
	two := func() map[string]string { return map[string]string{"a.": "10 10.0.0.1", "b.": "10 10.0.0.2"} }
	const failing = "error b.: A of b.: the server answers SERVFAIL"
	inBubbleFrom(t, fails, nil, two(), func(r *run) {
		r.want(failing)
		after(29 * time.Second)
		r.want()
		after(time.Second)
		r.want("list 1:80", failing)
		r.set(func() { r.answers["a."] = "10 10.0.0.3" })
		after(10 * time.Second)
		r.want("list 3:80", failing)
		r.set(func() { r.rcodes["b."] = 0 })
		after(time.Minute)
		r.want("list 3:80 2:80")
	})
	inBubbleFrom(t, fails, nil, two(), func(r *run) {
		r.want(failing)
		r.set(func() { r.rcodes["b."] = 0 })
		after(6 * time.Second)
		r.want("list 1:80 2:80")
	})
	t.Run("no outcome at all", func(t *testing.T) {
		long := func(o *Options) { o.Timeout = time.Hour }
		inBubbleFrom(t, func(s *script) { s.hangs["b."] = true }, long, two(), func(r *run) {
			after(29 * time.Second)
			r.want()
			after(time.Second)
			r.want("list 1:80", "error b.: no answer yet")
		})
		inBubbleFrom(t, func(s *script) { s.hangs["a."], s.hangs["b."] = true, true }, long, two(), func(r *run) {
			after(10 * time.Minute)
			r.want("error a.: no answer yet; b.: no answer yet")
		})
	})
}

// TestKeepsToTheSuffix: a suffix that does not know the name for a moment does
// not give way to the wildcard of another.
func TestKeepsToTheSuffix(t *testing.T) {
	records := func(o *Options) { o.Records = []Record{*record(t, "engines:80")} }
	search := func(r *run) { r.source.resolver.config.Search = []string{"ns.local", "corp.example"} }
	begin := func(s *script) {
		s.hangs["engines."] = true
		s.answers["engines.ns.local."], s.answers["engines.corp.example."] = "10 10.0.0.1", "10 10.0.0.99"
	}
	inBubbleFrom(t, begin, records, map[string]string{}, func(r *run) {
		// The suffixes are set while the bare name hangs.
		search(r)
		after(3 * time.Second)
		r.want("error engines: server does not answer for engines.: context deadline exceeded")
		after(6 * time.Second)
		r.want("list 1:80")
		r.set(func() { r.rcodes["engines.ns.local."] = dns.RcodeNameError })
		after(10 * time.Minute)
		r.want("error engines: engines.ns.local. does not exist")
		if n := r.times("engines.corp.example."); n != 0 {
			t.Errorf("the other suffix was asked %d times", n)
		}
		r.set(func() { r.rcodes["engines.ns.local."] = 0 })
		after(time.Minute)
		r.want("list 1:80")
	})
}

// TestBug63SlowNameDelaysNobody once each was asked for.
func TestBug63SlowNameDelaysNobody(t *testing.T) {
	inBubble(t, nil, map[string]string{"a.": "5 10.0.0.1", "b.": "5 10.0.0.2"}, func(r *run) {
		r.want("list 1:80 2:80")
		r.set(func() { r.hangs["a."], r.answers["b."] = true, "5 10.0.0.3" })
		after(6 * time.Second)
		r.want("list 1:80 3:80")
	})
}

func TestNewRefuses(t *testing.T) {
	records := []Record{*record(t, "a:80")}
	taken := prometheus.NewRegistry()
	if _, err := New(Options{Records: records, Servers: []string{"s"}, Registerer: taken}); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Options{
		"Records is required": {},
		"MinTTL":              {Records: records, MinTTL: time.Millisecond},
		"in order":            {Records: records, MinTTL: time.Minute, MaxTTL: time.Second},
		"Timeout":             {Records: records, Timeout: -1},
		"duplicate":           {Records: records, Servers: []string{"s"}, Registerer: taken},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestNamesThatFailAreInTheLog: once for each way to fail, and once when they are
// answered again.
func TestNamesThatFailAreInTheLog(t *testing.T) {
	inBubble(t, func(o *Options) { o.Records = []Record{*record(t, "c.:80")} }, map[string]string{}, func(r *run) {
		said := func(want ...string) {
			t.Helper()
			defer r.log.Reset()
			lines := strings.Split(strings.TrimSuffix(r.log.String(), "\n"), "\n")
			if len(lines) != len(want) {
				t.Fatalf("%d lines, want %d: %q", len(lines), len(want), lines)
			}
			for i, w := range want {
				if !strings.Contains(lines[i], w) || !strings.Contains(lines[i], "name=c.") {
					t.Errorf("line %q, want %q", lines[i], w)
				}
			}
		}
		after(10 * time.Minute)
		said("it has no workers yet")
		r.set(func() { r.answers["c."] = "10 10.0.0.1" })
		after(2 * time.Minute)
		said("answered again")
		r.set(func() { r.rcodes["c."] = dns.RcodeServerFailure })
		after(10 * time.Minute)
		said("its last workers kept")
		r.set(func() { delete(r.rcodes, "c."); r.answers["c."] = "" })
		after(2 * time.Minute)
		if got := r.log.String(); !strings.Contains(got, string(ReasonNoRecords)) {
			t.Errorf("another failure: %q", got)
		}
	})
}
