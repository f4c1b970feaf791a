package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	simserve "github.com/loadplane/loadplane/sim/serve"
)

const (
	routerEngines = 8
	routerRanks   = 2
	// routerRate is requests a second.
	routerRate = 200
	// routerLoadEnv is how long each policy is under load, as "60s", and adds
	// more policies; unset is routerLoad. Names of the plane begin otherwise.
	routerLoadEnv = "ROUTER_LOAD"
	routerLoad    = 15 * time.Second
)

// The example router under load, where two engines have requests of others too:
// the requests of every worker and rank by policy, how long their queues are,
// and that the first token comes sooner by expected wait than by turns.
func TestRouterSpreadsRequests(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector takes what the engines need: the table would be one of the machine")
	}
	const shared = 2
	p, engines := routerPlane(t, shared)
	router := buildRouter(t)
	policies := []string{"round-robin", "power-of-k", "expected-wait"}
	load := routerLoad
	if text := os.Getenv(routerLoadEnv); text != "" {
		var err error
		if load, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", routerLoadEnv, err)
		}
		policies = append(policies, "least-load", "free-tokens")
	}
	first := map[string]time.Duration{} // p99 to the first token
	var table strings.Builder
	fmt.Fprintf(&table, "%d requests/s for %v on %d engines x %d ranks, the first %d have requests of others; waiting is sampled on every rank\n",
		routerRate, load, routerEngines, routerRanks, shared)
	for _, policy := range policies {
		r := startRouter(t, router, "-plane=http://"+p.api, "-policy="+policy, "-per-rank")
		queues := sampleQueues(t, engines)
		results := r.load(t, load)
		waiting := queues()
		writeRow(&table, policy, engines, results, waiting)
		first[policy] = quantile(results.first, 0.99)
		if results.failed > 0 || results.cut > 0 {
			t.Errorf("%s: %d requests failed, %d were cut: %v", policy, results.failed, results.cut, results.errs)
		}
		mean := results.ok / (routerEngines * routerRanks)
		for _, e := range engines[shared:] {
			for rank := range routerRanks {
				if n := results.served[e.host][rank]; n < mean/4 || n > 4*mean {
					t.Errorf("%s: rank %d of %s had %d requests, the mean is %d", policy, rank, e.host, n, mean)
				}
			}
		}
		r.terminate(40 * time.Second)
	}
	t.Log("\n" + table.String())
	// Round robin waits with the requests of others; this one sees them.
	if first["expected-wait"] >= first["round-robin"] {
		t.Errorf("p99 to the first token: %v by expected-wait, %v by round-robin", first["expected-wait"], first["round-robin"])
	}
}

// One engine is killed, one is frozen for a while, and the plane is gone for
// ten seconds: no request fails that had not begun to stream.
func TestRouterUnderFaults(t *testing.T) {
	p, engines := routerPlane(t, 0)
	r := startRouter(t, buildRouter(t), "-plane=http://"+p.api, "-per-rank")
	var faults sync.WaitGroup
	faults.Go(func() {
		wait := func(d time.Duration) { <-time.After(d) }
		wait(2 * time.Second)
		engines[0].kill()
		wait(2 * time.Second)
		engines[1].signal(syscall.SIGSTOP)
		wait(3 * time.Second)
		p.kill()
		wait(5 * time.Second)
		engines[1].signal(syscall.SIGCONT)
		wait(5 * time.Second)
		p = serveOn(t, [3]string{p.api, p.ingest, p.ops}, routerServeArgs(engines)...)
	})
	results := r.load(t, 20*time.Second)
	faults.Wait()
	t.Logf("%d answered, %d cut in mid-stream, %d failed; served %v", results.ok, results.cut, results.failed, results.served)
	if results.failed > 0 {
		t.Errorf("%d requests failed that had not begun to stream: %v", results.failed, results.errs)
	}
	if silent := r.said("the worker is silent"); silent == 0 {
		t.Error("no request left the engine that was frozen")
	}
	// What was running on the engine that was killed cannot be saved.
	if results.cut > routerRanks*48 {
		t.Errorf("%d streams were cut", results.cut)
	}
	p.until(20*time.Second, "seven fresh workers", func(v *view) bool { return v.fresh() == routerEngines-1 })
	after := r.load(t, 2*time.Second)
	if after.failed > 0 || after.cut > 0 || len(after.served) != routerEngines-1 {
		t.Errorf("after the faults: %d failed, %d cut, served by %v", after.failed, after.cut, after.served)
	}
}

// routerEngine is a simulated engine that is a process of its own.
type routerEngine struct {
	*process
	host string
}

func (e *routerEngine) signal(s os.Signal) {
	if err := e.cmd.Process.Signal(s); err != nil {
		e.t.Error(err)
	}
}

// routerPlane starts engines that serve only what is sent to them, but for the
// first of them, and a plane that has heard of all.
func routerPlane(t *testing.T, shared int) (*plane, []*routerEngine) {
	t.Helper()
	var engines []*routerEngine
	for i := range routerEngines {
		e, path := fleet(t, "--engines=1", fmt.Sprintf("--ranks=%d", routerRanks), fmt.Sprintf("--idle-load=%t", i >= shared), fmt.Sprintf("--seed=%d", i))
		list, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(list), "url: http://")
		host, _, _ := strings.Cut(rest, "\n")
		engines = append(engines, &routerEngine{e, host})
	}
	p := servePlane(t, engines)
	p.until(20*time.Second, "fresh workers", func(v *view) bool { return v.fresh() == routerEngines })
	return p, engines
}

func servePlane(t *testing.T, engines []*routerEngine) *plane {
	return serveOn(t, [3]string{"127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"}, routerServeArgs(engines)...)
}

func routerServeArgs(engines []*routerEngine) []string {
	args := []string{"--report-interval=250ms", "--stale-after=1s"}
	for _, e := range engines {
		args = append(args, "--worker=http://"+e.host+",role=plain,model=sim-model")
	}
	return args
}

// buildRouter returns the path of the example's program.
func buildRouter(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "router")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "../docs/examples/router").CombinedOutput(); err != nil {
		t.Fatalf("%s\n%v", out, err)
	}
	return path
}

// exampleRouter is a running router.
type exampleRouter struct {
	*process
	url    string
	client *http.Client
}

// startRouter returns once the router has a view.
func startRouter(t *testing.T, program string, args ...string) *exampleRouter {
	t.Helper()
	p := startAs(t, exec.Command(program, append([]string{"-listen=127.0.0.1:0"}, args...)...))
	line := p.next(p.lines, func(l string) bool { return strings.Contains(l, "msg=listening") })
	_, address, _ := strings.Cut(line, "address=")
	r := &exampleRouter{p, "http://" + address, &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}}
	p.next(p.lines, func(l string) bool { return strings.Contains(l, `msg="watch began"`) })
	t.Cleanup(r.client.CloseIdleConnections)
	for limit := time.After(10 * time.Second); ; {
		if code, _ := get(t, r.url+"/healthz"); code == http.StatusOK {
			return r
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-limit:
			t.Fatal("the router has no view")
		}
	}
}

// said returns how many of the lines that are there have a text.
func (r *exampleRouter) said(text string) (n int) {
	for {
		select {
		case line := <-r.lines:
			if strings.Contains(line, text) {
				n++
			}
		default:
			return n
		}
	}
}

// results is what became of requests.
type results struct {
	mu sync.Mutex
	// ok were answered whole, cut ended in mid-stream, failed never began.
	ok, cut, failed int
	errs            []string
	// served counts by engine and rank.
	served map[string]map[int]int
	// first are the times to the first byte of those that are streamed.
	first []time.Duration
}

// load sends requests for a time, and returns when all are over. Equal calls
// send equal requests at equal times.
func (r *exampleRouter) load(t *testing.T, d time.Duration) *results {
	t.Helper()
	out := &results{served: map[string]map[int]int{}}
	rng := rand.New(rand.NewPCG(1, 2))
	var requests sync.WaitGroup
	began := time.Now()
	for at := time.Duration(0); at < d; at += time.Duration(rng.ExpFloat64() * float64(time.Second) / routerRate) {
		tokens, stream := 4+rng.IntN(16), rng.IntN(4) > 0
		prompt := 100 + rng.IntN(400)
		if rng.IntN(10) == 0 {
			prompt = 5000
		}
		body, err := json.Marshal(map[string]any{
			"model": "sim-model", "max_tokens": tokens, "stream": stream,
			"messages": []map[string]string{{"role": "user", "content": strings.Repeat("abc ", prompt)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-time.After(time.Until(began.Add(at))):
		case <-r.exited:
			t.Fatalf("the router ended: %v", r.err)
		}
		requests.Go(func() { r.send(t.Context(), body, stream, out) })
	}
	requests.Wait()
	return out
}

// send sends one request and notes what became of it.
func (r *exampleRouter) send(ctx context.Context, body []byte, stream bool, out *results) {
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		out.fail(err)
		return
	}
	resp, err := r.client.Do(req)
	if err != nil {
		out.fail(err)
		return
	}
	defer resp.Body.Close()
	first := time.Since(began)
	answer, err := io.ReadAll(resp.Body)
	switch {
	case resp.StatusCode != http.StatusOK:
		out.fail(fmt.Errorf("%s: %s", resp.Status, answer))
	case err != nil || stream && !bytes.HasSuffix(answer, []byte("[DONE]\n\n")):
		out.mu.Lock()
		defer out.mu.Unlock()
		out.cut++
	default:
		if !stream {
			first = 0 // its first byte is its last
		}
		out.note(resp.Header, first)
	}
}

func (o *results) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed++; len(o.errs) < 5 {
		o.errs = append(o.errs, err.Error())
	}
}

func (o *results) note(h http.Header, first time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ok++
	if first > 0 {
		o.first = append(o.first, first)
	}
	engine, rank := h.Get(simserve.EngineHeader), 0
	_, _ = fmt.Sscan(h.Get(simserve.RankHeader), &rank)
	if o.served[engine] == nil {
		o.served[engine] = map[int]int{}
	}
	o.served[engine][rank]++
}

// sampleQueues reads how many requests wait in every rank, until the function
// that it returns is called.
func sampleQueues(t *testing.T, engines []*routerEngine) (stop func() map[string][]int) {
	ctx, cancel := context.WithCancel(t.Context())
	samples := map[string][]int{}
	var sampler sync.WaitGroup
	sampler.Go(func() {
		for ctx.Err() == nil {
			for _, e := range engines {
				for rank, n := range waitingAt(ctx, e.host) {
					key := fmt.Sprint(e.host, "/", rank)
					samples[key] = append(samples[key], n)
				}
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	return func() map[string][]int {
		cancel()
		sampler.Wait()
		return samples
	}
}

// waitingAt returns the waiting requests of every rank; none where the engine
// does not answer.
func waitingAt(ctx context.Context, host string) (waiting []int) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/v1/loads?include=core", nil)
	if err != nil {
		return nil
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var page struct {
		Loads []struct {
			Waiting int `json:"num_waiting_reqs"`
		}
	}
	_ = json.NewDecoder(resp.Body).Decode(&page) // No loads, no samples.
	for _, l := range page.Loads {
		waiting = append(waiting, l.Waiting)
	}
	return waiting
}

// writeRow writes what a policy made of the load.
func writeRow(w io.Writer, policy string, engines []*routerEngine, r *results, waiting map[string][]int) {
	var all []int
	for _, samples := range waiting {
		all = append(all, samples...)
	}
	fmt.Fprintf(w, "\n%s: %d answered; waiting p50 %d, p99 %d, max %d; first token p50 %v, p99 %v\n", policy, r.ok,
		quantile(all, 0.5), quantile(all, 0.99), quantile(all, 1), quantile(r.first, 0.5).Round(time.Millisecond), quantile(r.first, 0.99).Round(time.Millisecond))
	fmt.Fprintf(w, "  %-16s %4s %8s %12s %12s\n", "worker", "rank", "requests", "waiting p50", "waiting p99")
	for _, e := range engines {
		_, port, _ := net.SplitHostPort(e.host)
		for rank := range routerRanks {
			s := waiting[fmt.Sprint(e.host, "/", rank)]
			fmt.Fprintf(w, "  %-16s %4d %8d %12d %12d\n", ":"+port, rank, r.served[e.host][rank], quantile(s, 0.5), quantile(s, 0.99))
		}
	}
}

// quantile returns the value that a share of all do not exceed.
func quantile[T int | time.Duration](all []T, share float64) T {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, int(share*float64(len(all))))]
}
