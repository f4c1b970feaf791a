package node

import (
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/build"
	"github.com/loadplane/loadplane/cmd/loadreporter/control"
	"github.com/loadplane/loadplane/cmd/loadreporter/push"
	"github.com/loadplane/loadplane/cmd/loadreporter/source"
	"github.com/loadplane/loadplane/ingest"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// options are those of a node whose engine nobody has sampled.
func options(t *testing.T) Options {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	src, err := source.New(source.Options{Target: registry.Target{URL: "http://192.0.2.1:1"}, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Source: src, Advertise: "http://10.0.0.1:30000", Origin: "http://10.0.0.1:30000",
		Interval: time.Second, StaleAfter: 3 * time.Second, Logger: logger,
	}
}

func newNode(t *testing.T, opts Options) *Node {
	t.Helper()
	n, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNewRefuses(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no source": func(o *Options) { o.Source = nil }, "no URL": func(o *Options) { o.Advertise = "" },
		"no interval": func(o *Options) { o.Interval = 0 }, "no origin": func(o *Options) { o.Origin = "" },
		"no age": func(o *Options) { o.StaleAfter = 0 }, "no target": func(o *Options) { o.MaxTargets = -1 },
		"bad plane": func(o *Options) { o.Planes = []string{"plane:1"} },
	} {
		opts := options(t)
		change(&opts)
		if n, err := New(opts); err == nil || n != nil {
			t.Errorf("%s: %v, %v", name, n, err)
		}
	}
}

func TestNodeThatDoesNotRun(t *testing.T) {
	n := newNode(t, options(t))
	if err := n.Ready(); err == nil || err.Error() != build.NoSample {
		t.Errorf("ready: %v", err)
	}
	r := push.Registration{Target: netip.MustParseAddrPort("192.0.2.9:1"), Interval: time.Second, Lease: time.Second}
	if err := n.Register(t.Context(), r); !errors.Is(err, push.ErrClosed) {
		t.Errorf("registration: %v", err)
	}
	st, ok := n.Status().(Status)
	if !ok || st.Sample.Status != "unreachable" || st.Sample.AgeMs != nil || st.Targets == nil || st.Planes == nil {
		t.Errorf("status %+v", st)
	}
}

func TestRegistrationSaysWhatIsKnown(t *testing.T) {
	opts := options(t)
	opts.Labels = map[string]string{"rack": "r1"}
	n := newNode(t, opts)
	s := source.Snapshot{Facts: registry.Facts{Family: "vllm", Version: "0.26", Models: []string{"m"}, Role: store.RoleDecode}}
	r := n.registration(&s)
	if r.GetUrl() != opts.Advertise || r.GetEngine() != "vllm" || r.GetEngineVersion() != "0.26" || r.GetModels()[0] != "m" ||
		r.GetRole() != loadplanev1.Role_ROLE_DECODE || r.GetReportIntervalMs() != 1000 || r.GetLabels()["rack"] != "r1" || r.GetZone() != "" {
		t.Errorf("%v", r)
	}
	opts = options(t)
	opts.Identity = build.Identity{Role: store.RolePrefill, Models: []string{"own"}, Zone: "z"}
	r = newNode(t, opts).registration(&s)
	if r.GetRole() != loadplanev1.Role_ROLE_PREFILL || r.GetModels()[0] != "own" || r.GetZone() != "z" {
		t.Errorf("%v, want what is configured", r)
	}
}

func load(running int64, taken time.Time) source.Snapshot {
	r := ingest.RankReport{}
	r.Rank.SetCount(store.NumRunningReqs, running)
	return source.Snapshot{Source: "life", Ranks: []ingest.RankReport{r}, Taken: taken}
}

// early returns how often reports went out early at each of the samples.
func early(n *Node, samples ...source.Snapshot) (counts []float64) {
	f := follower{node: n}
	for i := range samples {
		f.see(&samples[i])
		counts = append(counts, testutil.ToFloat64(n.metrics.hurried))
	}
	return counts
}

func TestChangesThatGoOutEarly(t *testing.T) {
	now := time.Now()
	gone, failed := load(1, now), load(1, now)
	gone.Refused, failed.Reason = true, "timeout"
	for _, test := range []struct {
		name    string
		hint    bool
		samples []source.Snapshot
		want    []float64
	}{
		{"load alone", false, []source.Snapshot{load(1, now), load(2, now)}, []float64{0, 0}},
		{"load after a hint", true, []source.Snapshot{load(1, now.Add(-time.Hour)), load(2, now.Add(time.Hour))}, []float64{0, 1}},
		{"nothing new after a hint", true, []source.Snapshot{load(1, now), load(1, now.Add(time.Hour))}, []float64{0, 0}},
		{"first sample", false, []source.Snapshot{{}, load(1, now)}, []float64{0, 1}},
		{"engine gone and back", false, []source.Snapshot{load(1, now), gone, gone, load(1, now)}, []float64{0, 1, 1, 2}},
		{"engine slow, then gone", false, []source.Snapshot{load(1, now), failed, gone}, []float64{0, 1, 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t, options(t))
			if test.hint {
				n.mu.Lock()
				n.hinted = now.Add(time.Minute)
				n.mu.Unlock()
			}
			if got := early(n, test.samples...); !slices.Equal(got, test.want) {
				t.Errorf("%v early reports, want %v", got, test.want)
			}
		})
	}
}

func TestHintsAreAnsweredByLaterSamples(t *testing.T) {
	n := newNode(t, options(t))
	now := time.Now()
	old, failed, late := load(1, now.Add(-time.Second)), load(1, now.Add(time.Second)), load(1, now.Add(time.Second))
	failed.Reason = "timeout"
	if n.answered(&late) {
		t.Error("a sample answers a hint that did not come")
	}
	if err := n.Refresh(control.Hint{Count: 3}); err != nil {
		t.Fatal(err)
	}
	if n.answered(&old) || n.answered(&failed) {
		t.Error("a hint is answered by a sample from before it, or by a failed one")
	}
	if !n.answered(&late) || n.answered(&late) {
		t.Error("a hint is not answered exactly once")
	}
}

// Hints that never cease must not put off the answer to the first one.
func TestHintsUnderLoadAreAnswered(t *testing.T) {
	n := newNode(t, options(t))
	hint := func() {
		if err := n.Refresh(control.Hint{Count: 1}); err != nil {
			t.Fatal(err)
		}
	}
	hint()
	for i := range 10 {
		s := load(int64(i), time.Now())
		hint() // while the sample is under way
		if !n.answered(&s) {
			t.Fatalf("sample %d answers no hint", i)
		}
	}
	// The last one came after the last sample began.
	s := load(1, time.Now())
	if !n.answered(&s) || n.answered(&s) {
		t.Error("the last hint is not answered exactly once")
	}
}

func TestSameLoad(t *testing.T) {
	now := time.Now()
	a, b, c := load(1, now), load(1, now.Add(time.Second)), load(2, now)
	other := load(1, now)
	other.Source = "another life"
	if !sameLoad(&a, &b) || sameLoad(&a, &c) || sameLoad(&a, &other) || sameLoad(&a, &source.Snapshot{Source: "life"}) {
		t.Error("samples are not compared by their values")
	}
}

func TestUnknownFieldsAreRefusedByName(t *testing.T) {
	s := load(1, time.Now())
	missing := build.Missing(&s)
	fault := &control.Fault{Status: http.StatusNotImplemented, Message: build.CannotSay(missing)}
	if len(missing) != 10 || !strings.Contains(fault.Error(), "num_waiting_reqs") || strings.Contains(fault.Error(), "num_running_reqs") {
		t.Errorf("%v: %s", missing, fault)
	}
}
