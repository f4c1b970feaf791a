package picks

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	interval   = time.Second
	staleAfter = 3 * time.Second
	settle     = 10 * time.Millisecond

	unknownParameter store.Reason = "unknown_parameter"
	badParameter     store.Reason = "bad_parameter"
)

// plane is a running store with a Picks over it.
type plane struct {
	testing.TB
	*Picks
	clock *store.Clock
	reg   *prometheus.Registry
	slots map[string]*store.Slot
	// sequences are the last ones of each worker.
	sequences map[string]uint64
	stopStore func()
}

// inBubble runs body on a plane in fake time.
func inBubble(t *testing.T, body func(p *plane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := start(t, staleAfter)
		synctest.Wait()
		body(p)
	})
}

func start(t testing.TB, stale time.Duration) *plane {
	t.Helper()
	p := &plane{
		TB: t, clock: store.NewClock(), reg: prometheus.NewRegistry(),
		slots: make(map[string]*store.Slot), sequences: make(map[string]uint64),
	}
	st, err := store.New(store.Options{
		Lineage: "lineage-1", Epoch: 7, Clock: p.clock, StaleAfter: stale, Settle: settle,
		ReportInterval: interval, Discovery: true, SleptFor: func() time.Duration { return 0 },
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Picks, err = New(Options{
		Snapshots: snapshot.New(st), UnknownParameter: unknownParameter, BadParameter: badParameter, Registerer: p.reg,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := st.Run(ctx); err != nil {
			t.Error("store:", err)
		}
	}()
	p.stopStore = func() {
		stop()
		<-stopped
	}
	t.Cleanup(p.stopStore)
	return p
}

// after lets d pass in a bubble.
func (p *plane) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// commit lets the store take what it was given.
func (p *plane) commit() { p.after(settle) }

func worker(id string, change ...func(*store.Worker)) *store.Worker {
	w := &store.Worker{
		ID: id, URL: "http://" + id, Origin: id, Role: store.RoleRegular, Models: []string{"qwen3"},
		Dialect: store.DialectPush, Interval: interval, DiscoveredBy: "flag",
	}
	for _, c := range change {
		c(w)
	}
	return w
}

// add discovers workers and binds a stream to each.
func (p *plane) add(workers ...*store.Worker) {
	d := store.Discovery{Synced: true}
	for _, w := range workers {
		slot := p.store.NewSlot(w)
		slot.Bind(store.Stream{Source: "source-" + w.ID, Peer: "127.0.0.1:9", Generation: 1})
		p.slots[w.ID] = slot
		d.Added = append(d.Added, slot)
	}
	p.store.Apply(d)
}

// load is a healthy report in which every rank runs n requests.
func (p *plane) load(id string, n int64, ranks int) *store.Load {
	p.sequences[id]++
	l := &store.Load{
		Source: "source-" + id, Sequence: p.sequences[id], Status: store.StatusHealthy,
		ReportUnixMs: time.Now().UnixMilli(), Received: p.clock.Now(), ReceivedUnixMs: time.Now().UnixMilli(),
	}
	for i := range ranks {
		r := store.Rank{DPRank: int32(i)}
		r.SetCount(store.NumRunningReqs, n)
		r.SetCount(store.NumWaitingReqs, 0)
		r.SetCount(store.NumUsedTokens, 100*n)
		r.SetCount(store.NumTotalTokens, 100*n)
		r.SetCount(store.MaxTotalNumTokens, 1_000_000)
		r.SetCount(store.MaxRunningRequests, 100)
		l.Ranks = append(l.Ranks, r)
		l.Samples = append(l.Samples, store.Sample{TimeUnixMs: -1, PrefillUncachedTokens: -1, PrefillBusyUs: -1, GeneratedTokens: -1})
	}
	return l
}

func (p *plane) report(id string, n int64, ranks int) { p.slots[id].Offer(1, p.load(id, n, ranks)) }

// fleet adds workers that each report n requests a rank.
func (p *plane) fleet(n int64, ranks int, workers ...*store.Worker) {
	p.add(workers...)
	for _, w := range workers {
		p.report(w.ID, n, ranks)
	}
	p.commit()
}

// reply is what a request was answered with.
type reply struct {
	*httptest.ResponseRecorder
	answer
	Picks  []answer
	Code   string
	Reason string
}

func (p *plane) ask(method, query string) reply {
	p.Helper()
	out := reply{ResponseRecorder: httptest.NewRecorder()}
	p.ServeHTTP(out, httptest.NewRequest(method, "/v1/pick?"+query, nil))
	if err := json.Unmarshal(out.Body.Bytes(), &out.answer); err != nil {
		p.Fatalf("%s: %v in %s", query, err, out.Body)
	}
	rest := struct {
		Picks        *[]answer
		Code, Reason *string
	}{&out.Picks, &out.Code, &out.Reason}
	if err := json.Unmarshal(out.Body.Bytes(), &rest); err != nil {
		p.Fatal(err)
	}
	return out
}

// got asks for a pick that must be there.
func (p *plane) got(query string) reply {
	p.Helper()
	r := p.ask(http.MethodGet, query)
	if r.ResponseRecorder.Code != http.StatusOK {
		p.Fatalf("%s: status %d: %s", query, r.ResponseRecorder.Code, r.Body)
	}
	return r
}

// score returns the score of the next pick, which has no effect.
func (p *plane) score(query string) float64 {
	p.Helper()
	r := p.got(query + "&credit=0")
	if r.Score == nil {
		p.Fatalf("%s: no score in %s", query, r.Body)
	}
	return *r.Score
}

// metric returns the value of a counter, by its name and one label.
func (p *plane) metric(name, label string) float64 {
	p.Helper()
	families, err := p.reg.Gather()
	if err != nil {
		p.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue()
			}
		}
	}
	p.Fatalf("no metric %s{%s}", name, label)
	return 0
}
