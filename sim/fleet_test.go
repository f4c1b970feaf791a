package sim

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/push"
)

func TestOptionsAreChecked(t *testing.T) {
	tests := map[string]Options{
		"Engines is -1":      {Engines: -1},
		"Engines is 10001":   {Engines: 10_001},
		"Ranks is -2":        {Ranks: -2},
		"Ranks is 4097":      {Ranks: 4097},
		"BasePort is -1":     {BasePort: -1},
		"BasePort is 65530":  {BasePort: 65_530},
		"FirstSample is -1s": {FirstSample: -time.Second},
		"unknown kind \"x\"": {Kinds: []Kind{KindTGI, "x"}},
		"native\" needs a":   {Kinds: []Kind{KindTGI, KindNative}},
		"unknown fault":      {Faults: []Fault{{Kind: "x"}}},
		"ranks must be 1":    {Faults: []Fault{{Kind: FaultRerank}}},
		"engine 8 of 8":      {Faults: []Fault{{Kind: FaultFreeze, Engine: 8}}},
		"engine is negative": {Faults: []Fault{{Kind: FaultFreeze, Engine: -2}}},
		"engine 0 cannot":    {Listen: "nowhere"},
	}
	for want, opts := range tests {
		opts.Logger = quiet()
		if _, err := newFleet(opts, newMemNet().network()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v gives %v, want %s", opts, err, want)
		}
	}
}

func TestAFailedNewGivesItsListenersBack(t *testing.T) {
	n := newMemNet()
	if _, err := n.listen("127.0.0.1:30002"); err != nil {
		t.Fatal(err)
	}
	if _, err := newFleet(Options{Engines: 3, BasePort: 30_000, Logger: quiet()}, n.network()); err == nil {
		t.Fatal("a taken port is no error")
	}
	if len(n.listeners) != 1 {
		t.Errorf("%d listeners left", len(n.listeners))
	}
}

func TestWorkersOfFleets(t *testing.T) {
	tests := []struct {
		name string
		opts Options
		want []string // kind and flag without the URL
	}{
		{"mixed", Options{Engines: 11, Mixed: true, Zones: []string{"a", "b"}, Plane: func() string { return "" }}, []string{
			"sglang role=plain,model=sim-model,zone=a", "sglang-monitor role=prefill,model=sim-model,zone=b",
			"sglang-loadstat role=decode,model=sim-model,zone=a", "vllm model=sim-model,zone=b", "native model=sim-model,zone=a",
			"sglang role=prefill,model=sim-model,zone=b", "sglang-poll role=decode,model=sim-model,zone=a",
			"tgi model=sim-model,zone=b", "llamacpp model=sim-model,zone=a", "trtllm model=sim-model,zone=b", "triton model=sim-model,zone=a",
		}},
		{"mixed without a plane", Options{Engines: 5, Mixed: true}, []string{
			"sglang role=plain,model=sim-model", "sglang-monitor role=prefill,model=sim-model",
			"sglang-loadstat role=decode,model=sim-model", "vllm model=sim-model", "sglang role=plain,model=sim-model",
		}},
		{"default", Options{Engines: 2}, []string{"sglang role=plain,model=sim-model", "sglang role=plain,model=sim-model"}},
		{"kinds in turn", Options{Engines: 3, Kinds: []Kind{KindVLLM, KindTriton}}, []string{
			"vllm model=sim-model", "triton model=sim-model", "vllm model=sim-model",
		}},
		{"kinds with roles", Options{Engines: 4, Mixed: true, Kinds: []Kind{KindVLLM, KindSGLangPoll}}, []string{
			"vllm model=sim-model", "sglang-poll role=prefill,model=sim-model", "vllm model=sim-model", "sglang-poll role=plain,model=sim-model",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := newMemNet()
			tt.opts.Logger, tt.opts.BasePort = quiet(), 30_000
			f, err := newFleet(tt.opts, n.network())
			if err != nil {
				t.Fatal(err)
			}
			listed := f.Workers()
			for i, e := range f.Engines() {
				w := e.Info()
				kind, rest, _ := strings.Cut(tt.want[i], " ")
				if w.Kind != Kind(kind) || w.Flag() != fmt.Sprintf("http://127.0.0.1:%d,%s", 30_000+i, rest) {
					t.Errorf("worker %d is %s %q", i, w.Kind, w.Flag())
				}
				if f.URLs()[i] != w.URL {
					t.Errorf("worker %d: URL %q", i, f.URLs()[i])
				}
				if w.Kind == KindNative {
					continue
				}
				if len(listed) == 0 || listed[0] != w {
					t.Fatalf("worker %d is not listed, %v are left", i, listed)
				}
				listed = listed[1:]
			}
			if len(listed) != 0 {
				t.Errorf("%v are listed too", listed)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := f.Run(ended); err != nil || len(n.listeners) != 0 {
				t.Errorf("after Run with an ended context: %v, %d listeners", err, len(n.listeners))
			}
		})
	}
}

func TestParseKinds(t *testing.T) {
	kinds, err := ParseKinds([]string{
		"sglang", "sglang-monitor", "sglang-loadstat", "sglang-poll", "vllm", "tgi", "llamacpp", "trtllm", "triton", "native",
	})
	if err != nil || !slices.Equal(kinds, Kinds()) {
		t.Errorf("%v, %v", kinds, err)
	}
	for _, bad := range []string{"", "VLLM", "vllm,tgi"} {
		if _, err := ParseKinds([]string{"tgi", bad}); err == nil || !strings.Contains(err.Error(), strconv.Quote(bad)) {
			t.Errorf("%q gives %v", bad, err)
		}
	}
}

// memClient calls engines over the network in memory.
func memClient(n *memNet) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return n.dial(ctx, address)
		},
	}}
}

func TestDownClosesTheListenerForAWhile(t *testing.T) {
	faults := []Fault{{Kind: FaultDown, After: time.Second, For: 2 * time.Second}}
	inBubble(t, Options{Faults: faults}, func(b *bench) {
		p := b.plane(7401, nil)
		b.register(7401, 500, 60_000)
		up := func() bool {
			r, err := memClient(b.net).Get(b.fleet.URLs()[0] + "/health")
			if err == nil {
				_ = r.Body.Close()
			}
			return err == nil
		}
		for _, step := range []struct {
			at   time.Duration
			want bool
		}{{0, true}, {999 * ms, true}, {1001 * ms, false}, {2999 * ms, false}, {3001 * ms, true}} {
			b.pass(step.at - time.Since(b.start))
			if got := up(); got != step.want {
				t.Errorf("up at %v: %v", step.at, got)
			}
		}
		if len(p.ends()) != 0 || len(p.reports()) != 7 {
			t.Errorf("%d reports, ends %v: streams must go on", len(p.reports()), p.ends())
		}
	})
}

func TestAnEngineListensAgainWhenItsPortIsFree(t *testing.T) {
	inBubble(t, Options{}, func(b *bench) {
		b.engine().SetFault(Fault{Kind: FaultDown})
		synctest.Wait()
		taken, err := b.net.listen(strings.TrimPrefix(b.fleet.URLs()[0], "http://"))
		if err != nil {
			t.Fatal(err)
		}
		b.engine().ClearFault(FaultDown)
		b.pass(1500 * ms)
		_ = taken.Close()
		b.pass(1000 * ms)
		r, err := memClient(b.net).Get(b.fleet.URLs()[0] + "/health")
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
	})
}

func TestRunEndsWhileAnswersAreDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemNet()
		f, err := newFleet(Options{Engines: 1, Logger: quiet(), Faults: []Fault{{Kind: FaultSlow, Delay: time.Hour}}}, n.network())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { _ = f.Run(ctx) })
		synctest.Wait()
		group.Go(func() {
			r, err := memClient(n).Post(f.URLs()[0]+push.Path, "application/json", strings.NewReader(valid))
			if err == nil {
				_ = r.Body.Close()
			}
		})
		synctest.Wait()
		begun := time.Now()
		cancel()
		group.Wait()
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("ending took %v", took)
		}
	})
}

func TestFleetOverRealSockets(t *testing.T) {
	f, err := New(Options{Engines: 2, Ranks: 2, Kinds: []Kind{KindSGLang}, Mixed: true, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { _ = f.Run(ctx) })
	defer group.Wait()
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := startPlane(t, l, nil)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	body := fmt.Sprintf(`{"ip":"127.0.0.1","port":%d,"report_interval_ms":20,"lease_ttl_ms":60000}`, l.Addr().(*net.TCPAddr).Port)
	for _, url := range f.URLs() {
		r, err := client.Post(url+push.Path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if r.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", r.StatusCode, text)
		}
	}
	for range 20 {
		<-p.notify
	}
	roles := map[string]pb.WorkerType{}
	for _, a := range p.reports() {
		roles[a.report.Worker.WorkerAddr] = a.report.Worker.WorkerType
	}
	if len(roles) != 2 || roles[f.URLs()[0]] != pb.WorkerType_WORKER_TYPE_REGULAR || roles[f.URLs()[1]] != pb.WorkerType_WORKER_TYPE_PREFILL {
		t.Errorf("reports of %v, engines %v", roles, f.URLs())
	}
}
