package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// What `make run` starts: 8 engines x 4 ranks register over HTTP and report
// over gRPC, and the printed curl line answers with fresh workers in time.
func TestDemo(t *testing.T) {
	demo := start(t, "demo", "--api-listen=127.0.0.1:0", "--ingest-listen=127.0.0.1:0", "--ops-listen=127.0.0.1:0", "--log-format=json")
	line := demo.next(demo.out, func(l string) bool { return strings.Contains(l, "/v1/load_monitor/snapshot") })
	limit, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for {
		out, err := exec.CommandContext(limit, "sh", "-c", line).Output()
		var page struct{ Workers []jsonWorker }
		if err == nil {
			err = json.Unmarshal(out, &page)
		}
		fresh := 0
		for _, w := range page.Workers {
			if w.Freshness == "fresh" && len(w.Ranks) == 4 {
				fresh++
			}
		}
		if fresh == 8 {
			break
		}
		if limit.Err() != nil {
			t.Fatalf("%q gave %d fresh workers within 5 s (%v):\n%s", line, fresh, err, out)
		}
	}
	if took := demo.terminate(10 * time.Second); took > 10*time.Second {
		t.Errorf("took %v to stop", took)
	}
}

type jsonWorker struct {
	WorkerID  string `json:"worker_id"`
	Freshness string
	Ranks     []map[string]any
}

// seen collects, per version, what each reader was told.
type seen struct {
	mu       sync.Mutex
	versions map[uint64]map[string]string
}

func (s *seen) note(reader string, version uint64, content string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.versions[version] == nil {
		s.versions[version] = map[string]string{}
	}
	s.versions[version][reader] = content
}

// agreed counts the versions that all readers saw; it fails where two of them
// differ.
func (s *seen) agreed(t *testing.T, readers int) int {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for version, contents := range s.versions {
		distinct := map[string][]string{}
		for reader, c := range contents {
			distinct[c] = append(distinct[c], reader)
		}
		if len(distinct) > 1 {
			t.Fatalf("version %d has %d contents: %v", version, len(distinct), slices.Collect(maps.Keys(distinct)))
		}
		if len(contents) >= readers {
			n++
		}
	}
	return n
}

// counts returns how many versions each reader saw.
func (s *seen) counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := map[string]int{}
	for _, readers := range s.versions {
		for r := range readers {
			n[r]++
		}
	}
	return n
}

// canonical is a worker list as every reader can tell it: ids, freshness and
// every number of every rank.
func canonical(workers []jsonWorker) string {
	for _, w := range workers {
		for _, r := range w.Ranks {
			delete(r, "snapshot_time_unix_ms") // no content
			for k, v := range r {
				if v == nil {
					delete(r, k)
				}
			}
		}
	}
	b, err := json.Marshal(workers)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// fromProto is the same out of a message.
func fromProto(workers []*loadplanev1.Worker) string {
	var out []jsonWorker
	for _, w := range workers {
		word := strings.ToLower(strings.TrimPrefix(w.GetFreshness().String(), "FRESHNESS_"))
		j := jsonWorker{WorkerID: w.GetWorkerId(), Freshness: word, Ranks: []map[string]any{}}
		for _, r := range w.GetRanks() {
			rank := map[string]any{}
			m := r.ProtoReflect()
			for i := range m.Descriptor().Fields().Len() {
				if fd := m.Descriptor().Fields().Get(i); m.Has(fd) || !fd.HasPresence() {
					rank[string(fd.Name())] = m.Get(fd).Interface()
				}
			}
			j.Ranks = append(j.Ranks, rank)
		}
		out = append(out, j)
	}
	// Through JSON, so that numbers have one type.
	b, err := json.Marshal(out)
	if err != nil {
		return err.Error()
	}
	var again []jsonWorker
	if err := json.Unmarshal(b, &again); err != nil {
		return err.Error()
	}
	return canonical(again)
}

// A Connect client, a plain grpc-go client, gRPC-Web, NDJSON and curl see the
// same content under the same version, while the load moves.
func TestEveryReaderSeesTheSameVersions(t *testing.T) {
	_, workers := fleet(t, "--engines=3", "--ranks=2", "--mixed")
	p := serve(t, "--workers-file="+workers, "--report-interval=300ms", "--stale-after=3s")
	p.until(10*time.Second, "three fresh workers", func(v *view) bool { return v.fresh() == 3 })

	s := &seen{versions: map[uint64]map[string]string{}}
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	collect := func(name string) func(*message) error {
		v := &view{}
		return func(m *message) error {
			if err := v.apply(m); err != nil {
				return err
			}
			s.note(name, m.GetCursor().GetVersion(), fromProto(v.workers))
			return nil
		}
	}
	for name, opts := range map[string][]connect.ClientOption{
		"connect": nil, "connect json": {connect.WithProtoJSON()}, "grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()},
	} {
		readers.Go(func() {
			if err := watchWith(ctx, p.client(opts...), collect(name)); ctx.Err() == nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	readers.Go(func() { grpcGo(ctx, t, p.api, collect("grpc-go")) })
	readers.Go(func() { ndjson(ctx, t, p.api, s) })
	readers.Go(func() { curls(ctx, t, p.api, s) })
	for limit := time.After(30 * time.Second); s.agreed(t, 7) < 5; {
		select {
		case <-limit:
			t.Errorf("only %d versions were seen by all; versions by reader: %v", s.agreed(t, 7), s.counts())
			stop()
		case <-time.After(100 * time.Millisecond):
		}
		if ctx.Err() != nil {
			break
		}
	}
	stop()
	readers.Wait()
	t.Logf("versions by reader: %v", s.counts())
}

func grpcGo(ctx context.Context, t *testing.T, addr string, see func(*message) error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	stream, err := loadplanev1.NewSnapshotServiceClient(conn).WatchSnapshots(ctx, &loadplanev1.WatchSnapshotsRequest{})
	for err == nil {
		var m *message
		if m, err = stream.Recv(); err == nil {
			err = see(m)
		}
	}
	if ctx.Err() == nil {
		t.Error("grpc-go:", err)
	}
}

func ndjson(ctx context.Context, t *testing.T, addr string, s *seen) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/v1/load_monitor/watch", nil)
	if err != nil {
		t.Error(err)
		return
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error("ndjson:", err)
		return
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	held := map[string]jsonWorker{}
	for lines.Scan() {
		var line struct {
			Type    string
			Version uint64
			Workers []jsonWorker
			Removed []string
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Errorf("ndjson: %v in %q", err, lines.Text())
			return
		}
		if line.Type == "full" {
			clear(held)
		}
		for _, id := range line.Removed {
			delete(held, id)
		}
		for _, w := range line.Workers {
			held[w.WorkerID] = w
		}
		var all []jsonWorker
		for _, id := range slices.Sorted(maps.Keys(held)) {
			all = append(all, held[id])
		}
		s.note("ndjson", line.Version, canonical(all))
	}
}

func curls(ctx context.Context, t *testing.T, addr string, s *seen) {
	for ctx.Err() == nil {
		out, err := exec.CommandContext(ctx, "curl", "-s", "http://"+addr+"/v1/load_monitor/snapshot").Output()
		if errors.Is(err, exec.ErrNotFound) {
			_, body := get(t, "http://"+addr+"/v1/load_monitor/snapshot")
			out, err = []byte(body), nil
		}
		var page struct {
			Version uint64
			Workers []jsonWorker
		}
		if err == nil {
			err = json.Unmarshal(out, &page)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			t.Error("curl:", err)
			return
		}
		s.note("curl", page.Version, canonical(page.Workers))
	}
}

// An engine that is killed is stale stale_after later, and back within an
// interval of its next registration, as another source instance.
func TestEngineKilled(t *testing.T) {
	port := "--base-port=" + freePort(t)
	engine, workers := fleet(t, "--engines=1", "--ranks=2", port)
	p := serve(t, "--workers-file="+workers)
	before := p.until(10*time.Second, "a fresh worker", func(v *view) bool { return v.fresh() == 1 })
	engine.kill()
	staleAt := uint64(0)
	after := p.until(10*time.Second, "a stale worker", func(v *view) bool {
		staleAt = v.last.GetServerClockMs()
		return len(v.workers) == 1 && v.workers[0].GetFreshness() == loadplanev1.Freshness_FRESHNESS_STALE
	})
	if r := after.workers[0].GetFreshnessReason(); r != "age" {
		t.Errorf("stale for reason %q", r)
	}
	received := after.receipt(after.workers[0]).GetReceivedMs()
	if age := staleAt - received; age < 3000 || age > 3300 {
		t.Errorf("shown stale at age %d ms, want 3000 to 3300", age)
	}
	again, _ := fleet(t, "--engines=1", "--ranks=2", port)
	// The registration backs off to 5 s and jitter; the first report is at once.
	back := p.until(8*time.Second, "the engine back", func(v *view) bool { return v.fresh() == 1 })
	if back.workers[0].GetSourceInstanceId() == before.workers[0].GetSourceInstanceId() {
		t.Error("the restarted engine has the source instance of the killed one")
	}
	if back.workers[0].GetRow() != before.workers[0].GetRow() {
		t.Error("a restart of the engine changed the worker's row")
	}
	again.kill()
}

// A plane that is killed comes back with another lineage, warms, never shows
// an empty view as complete, and has all engines within back-off and interval.
func TestPlaneKilled(t *testing.T) {
	_, workers := fleet(t, "--engines=4", "--ranks=2")
	p := serve(t, "--workers-file="+workers)
	first := p.until(10*time.Second, "four fresh workers", func(v *view) bool { return v.fresh() == 4 && !v.last.GetWarming() })
	p.kill()
	began := time.Now()
	p = serveOn(t, [3]string{p.api, p.ingest, p.ops}, "--workers-file="+workers)
	second := p.until(8*time.Second, "four fresh workers again", func(v *view) bool {
		if len(v.workers) == 0 && !v.last.GetWarming() {
			t.Errorf("version %d is empty and not warming", v.last.GetCursor().GetVersion())
		}
		return v.fresh() == 4
	})
	t.Logf("all engines visible %v after the restart began", time.Since(began).Round(time.Millisecond))
	a, b := first.last.GetCursor(), second.last.GetCursor()
	if a.GetLineage() == b.GetLineage() || b.GetEpoch() <= a.GetEpoch() {
		t.Errorf("lineage %q epoch %d after %q and %d", b.GetLineage(), b.GetEpoch(), a.GetLineage(), a.GetEpoch())
	}
}

// A worker that leaves the file leaves the view in one version; what its
// engine still sends is refused and changes nothing.
func TestWorkerRemovedFromFile(t *testing.T) {
	_, workers := fleet(t, "--engines=3", "--ranks=1")
	p := serve(t, "--workers-file="+workers)
	p.until(10*time.Second, "three fresh workers", func(v *view) bool { return v.fresh() == 3 })
	list, err := os.ReadFile(workers)
	if err != nil {
		t.Fatal(err)
	}
	items := strings.SplitAfter(string(list), "- url:")
	kept := items[0] + strings.Join(items[1:3], "")
	kept = strings.TrimSuffix(kept, "- url:")
	counts := map[int]bool{}
	ready := make(chan struct{})
	var once sync.Once
	done := make(chan error, 1)
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	go func() {
		v := &view{}
		done <- watchWith(ctx, p.client(), func(m *message) error {
			if err := v.apply(m); err != nil {
				return err
			}
			once.Do(func() { close(ready) })
			counts[len(v.workers)] = true
			if len(v.workers) == 2 && p.metric(`loadplane_registry_refused_total{reason="worker_removed"}`) >= 1 {
				return errEnough
			}
			return nil
		})
	}()
	<-ready
	if err := os.WriteFile(workers, []byte(kept), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, errEnough) {
		t.Fatalf("watch: %v; worker counts seen: %v", err, counts)
	}
	if len(counts) != 2 || !counts[3] || !counts[2] {
		t.Errorf("worker counts seen: %v, want 3 and then 2", counts)
	}
	// The engine's stream was ended; it stays away for two more intervals.
	beats := 0
	v := &view{}
	p.watch(10*time.Second, func(m *message) error {
		if err := v.apply(m); err != nil || len(v.workers) != 2 {
			return fmt.Errorf("%d workers, error %w", len(v.workers), err)
		}
		if beats++; beats > 4 {
			return errEnough
		}
		return nil
	})
}

// SIGTERM with open streams: the exit is clean and in time, and every stream
// is told why.
func TestDrain(t *testing.T) {
	_, workers := fleet(t, "--engines=3", "--ranks=2")
	p := serve(t, "--workers-file="+workers)
	p.until(10*time.Second, "three fresh workers", func(v *view) bool { return v.fresh() == 3 })
	const watchers = 5
	open := make(chan struct{}, watchers)
	ends := make(chan error, watchers)
	for i := range watchers {
		opt := []connect.ClientOption{connect.WithClientOptions()}
		if i%2 == 1 {
			opt = append(opt, connect.WithGRPC())
		}
		go func() {
			told := false
			ends <- watchWith(t.Context(), p.client(opt...), func(*message) error {
				if !told {
					told = true
					open <- struct{}{}
				}
				return nil
			})
		}()
	}
	for range watchers {
		<-open
	}
	t.Logf("stopped in %v", p.terminate(10*time.Second).Round(time.Millisecond))
	for range watchers {
		err := <-ends
		if connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), "draining") {
			t.Errorf("a watch ended with %v, want unavailable: draining", err)
		}
	}
}

// Two planes register with one engine: it serves both.
func TestTwoPlanesOnOneEngine(t *testing.T) {
	_, workers := fleet(t, "--engines=1", "--ranks=2")
	a, b := serve(t, "--workers-file="+workers), serve(t, "--workers-file="+workers)
	for _, p := range []*plane{a, b} {
		first := uint64(0)
		p.until(15*time.Second, "five reports", func(v *view) bool {
			if len(v.workers) != 1 || v.receipt(v.workers[0]) == nil {
				return false
			}
			seq := v.receipt(v.workers[0]).GetSequenceId()
			if first == 0 {
				first = seq
			}
			return v.fresh() == 1 && seq >= first+5
		})
	}
	va := a.until(time.Second, "still fresh", func(v *view) bool { return v.fresh() == 1 })
	vb := b.until(time.Second, "still fresh", func(v *view) bool { return v.fresh() == 1 })
	if va.workers[0].GetSourceInstanceId() != vb.workers[0].GetSourceInstanceId() {
		t.Error("the planes see two source instances of one engine")
	}
}

// A report for a worker that nobody discovered is refused with the code that
// makes the engine wait for its next registration.
func TestUnknownEngineIsRefused(t *testing.T) {
	p := serve(t, "--worker=http://127.0.0.1:1,dialect=none")
	p.until(5*time.Second, "the listed worker", func(v *view) bool { return len(v.workers) == 1 && !v.last.GetWarming() })
	code := status.Code(reportAs(t, p.ingest, "http://127.0.0.1:2"))
	if code != codes.InvalidArgument {
		t.Errorf("refused with %v, want InvalidArgument", code)
	}
	if n := p.metric(`loadplane_registry_refused_total{reason="unknown_worker"}`); n != 1 {
		t.Errorf("%v refusals counted, want 1", n)
	}
}
