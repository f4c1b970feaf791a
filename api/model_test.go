package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/cespare/xxhash/v2"
	"github.com/loadplane/loadplane/client"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// recorder keeps the hash of the full content of every version. It is read
// once its run has ended.
type recorder struct{ contents map[uint64]uint64 }

// run records until ctx ends.
func (r *recorder) run(ctx context.Context, views *snapshot.Builder) {
	for {
		view, stale := views.Current()
		r.contents[view.Version] = fullContent(view.Snapshot)
		select {
		case <-stale:
		case <-ctx.Done():
			return
		}
	}
}

// fullContent is the hash of what a snapshot holds as generated code writes it.
func fullContent(s *snapshot.Snapshot) uint64 {
	b := protowire.AppendVarint(nil, s.Version)
	for _, w := range s.Workers {
		b = appendAgain(b, w.Encoded, new(pb.Worker))
	}
	for _, p := range s.Pools {
		b = appendAgain(b, p.Encoded, new(pb.Pool))
	}
	return xxhash.Sum64(b)
}

func appendAgain(b, encoded []byte, m proto.Message) []byte {
	if err := proto.Unmarshal(encoded, m); err != nil {
		panic(err)
	}
	return appendMessage(b, m)
}

func appendMessage(b []byte, m proto.Message) []byte {
	options := proto.MarshalOptions{Deterministic: true}
	b = protowire.AppendVarint(b, uint64(options.Size(m)))
	b, err := options.MarshalAppend(b, m)
	if err != nil {
		panic(err)
	}
	return b
}

// viewContent is the same of what a client holds.
func viewContent(v *client.View) uint64 {
	b := protowire.AppendVarint(nil, v.Version())
	for _, w := range v.Workers() {
		b = appendMessage(b, w)
	}
	for _, p := range v.Pools() {
		b = appendMessage(b, p)
	}
	return xxhash.Sum64(b)
}

// operator makes random changes.
type operator struct {
	*plane
	rng      *rand.Rand
	sequence uint64
}

// step makes one change, of a worker among twelve.
func (o *operator) step() {
	id := fmt.Sprintf("w%02d:30000", o.rng.IntN(12))
	o.sequence++
	switch op := o.rng.IntN(20); {
	case o.slots[id] == nil:
		o.add(o.worker(id))
	case op == 0:
		o.remove(id)
	case op == 1: // another behind the same id, in one commit
		o.remove(id)
		o.add(o.worker(id))
	case op == 2:
		o.change(o.worker(id))
	case op == 3:
		l := o.newLoad(id, o.sequence, 0, 0)
		l.Status, l.LastError = store.StatusUnreachable, "sampling failed"
		o.slots[id].Offer(1, l)
	case op < 8: // as before, or nearly
		o.report(id, o.sequence, 3, 2)
	default:
		o.report(id, o.sequence, o.rng.Int64N(90), 1+o.rng.IntN(3))
	}
}

// worker returns one with random attributes.
func (o *operator) worker(id string) *store.Worker {
	w := newWorker(id)
	w.Models = []string{"llama", "mixtral", "qwen3"}[o.rng.IntN(3):]
	w.Zone = []string{"", "eu", "us"}[o.rng.IntN(3)]
	w.Draining = o.rng.IntN(4) == 0
	w.Labels = map[string]string{"tier": fmt.Sprint(o.rng.IntN(2))}
	return w
}

// run makes n changes, some at once, and lets time pass between them, now
// and then enough for workers to go stale.
func (o *operator) run(n int) {
	for range n {
		o.step()
		if o.rng.IntN(3) > 0 {
			<-time.After(time.Duration(1+o.rng.IntN(60)) * time.Millisecond)
		}
		if o.rng.IntN(100) == 0 {
			<-time.After(staleAfter)
		}
	}
	<-time.After(2 * staleAfter)
	synctest.Wait()
}

// watcher follows a plane at its own pace, and comes back with its cursor.
type watcher struct {
	client loadplanev1connect.SnapshotServiceClient
	rng    *rand.Rand
	// pace is the longest pause between two messages.
	pace time.Duration
	// hurry ends the pauses.
	hurry <-chan struct{}
	// fullOnly asks for fulls.
	fullOnly bool
	replica  client.Replica
	seen     []sight
	events   map[string]int
}

// sight is a view that a watcher held, as a hash, after a message.
type sight struct {
	event            string
	version, content uint64
}

// run follows until ctx ends.
func (w *watcher) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := w.stream(ctx); err != nil {
			return err
		}
	}
	return nil
}

// stream opens a watch and leaves it after some messages.
func (w *watcher) stream(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	req := &pb.WatchSnapshotsRequest{Resume: w.replica.Resume(), FullOnly: w.fullOnly}
	if w.rng.IntN(4) == 0 {
		req.Resume = nil // a client that keeps no cursor
	}
	s, err := w.client.WatchSnapshots(ctx, req)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	defer func() { _ = s.Close() }()
	for range 20 + w.rng.IntN(60) {
		if !s.Receive() {
			return unlessEnded(ctx, s.Err())
		}
		if err := w.take(s.Msg()); err != nil {
			return err
		}
		if w.pace > 0 {
			select {
			case <-time.After(time.Duration(w.rng.Int64N(int64(w.pace)))):
			case <-w.hurry:
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// unlessEnded returns err unless the end of ctx explains it.
func unlessEnded(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

// take applies a message and notes the view.
func (w *watcher) take(m *pb.WatchSnapshotsResponse) error {
	v, err := w.replica.Apply(m, time.Now())
	if err != nil {
		return err
	}
	w.events[client.EventName(m)]++
	if v != nil && v.Version() == m.GetCursor().GetVersion() {
		w.seen = append(w.seen, sight{client.EventName(m), v.Version(), viewContent(v)})
	}
	return nil
}

// TestDeltasAddUpToTheFull makes a thousand changes under fifty watchers of
// different pace, by each protocol, and compares every view that a watcher
// ever holds with the full of its version. Events are cut small. Under the race
// detector there are fewer changes.
func TestDeltasAddUpToTheFull(t *testing.T) {
	for name, opts := range map[string][]connect.ClientOption{
		"connect":      nil,
		"connect JSON": {connect.WithProtoJSON()},
		"gRPC":         {connect.WithGRPC()},
		"gRPC-Web":     {connect.WithGRPCWeb()},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(s *setup) { s.chunk, s.api.WriteTimeout = 4000, time.Minute }, func(p *plane) { p.watchedChanges(1000/raceShare, 50, opts) })
		})
	}
}

func (p *plane) watchedChanges(changes, watchers int, opts []connect.ClientOption) {
	ctx, stop := context.WithCancel(p.Context())
	r := &recorder{contents: make(map[uint64]uint64)}
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx, p.views) })
	all, hurry := make([]*watcher, watchers), make(chan struct{})
	c := p.snapshots(opts...)
	for i := range all {
		if i%10 == 0 {
			c = p.snapshots(opts...) // a connection for ten
		}
		all[i] = &watcher{
			client: c, rng: rand.New(rand.NewPCG(uint64(i), 2)), events: make(map[string]int),
			pace: time.Duration(min(50*i, 1200)) * time.Millisecond, hurry: hurry, fullOnly: i%10 == 9,
		}
		running.Go(func() {
			if err := all[i].run(ctx); err != nil {
				p.Errorf("watcher %d: %v", i, err)
			}
		})
	}
	o := &operator{plane: p, rng: rand.New(rand.NewPCG(1, 2))}
	o.run(changes)
	close(hurry)
	<-time.After(2 * time.Second) // for what the connections still hold
	stop()
	running.Wait()
	p.checkWatchers(all, r)
}

// checkWatchers wants every view that was held to be the full of its version,
// every watcher at the newest one, and enough of all that was to be seen.
func (p *plane) checkWatchers(all []*watcher, r *recorder) {
	events, compared, unseen := map[string]int{}, 0, 0
	for i, w := range all {
		if v := w.replica.View(); v == nil || v.Version() != p.version() {
			p.Errorf("watcher %d is not at version %d", i, p.version())
		}
		for event, n := range w.events {
			events[event] += n
		}
		for _, s := range w.seen {
			want, recorded := r.contents[s.version]
			switch {
			case !recorded:
				unseen++
			case want != s.content:
				p.Fatalf("watcher %d, version %d after a %s: the view is not the full", i, s.version, s.event)
			default:
				compared++
			}
		}
	}
	p.Logf("%d versions, %d views compared, %d not; %v", p.version(), compared, unseen, events)
	if p.version() < 500/raceShare || compared < 5*int(p.version()) || unseen > compared/20 {
		p.Error("too few versions, or too few views compared")
	}
	if events["delta"] < 3*int(p.version()) || events["heartbeat"] < len(all) || events["full"] < len(all) {
		p.Error("too few messages of a kind")
	}
}

// TestLinesAddUpToTheSnapshot applies the lines of a watch to the JSON of its
// first line, and compares the sum with the JSON snapshot.
func TestLinesAddUpToTheSnapshot(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		o := &operator{plane: p, rng: rand.New(rand.NewPCG(3, 4))}
		l := p.lines(p.client(false))
		sum := newLineView(l.next("full"))
		c := p.client(false)
		for range 300 {
			for range 1 + o.rng.IntN(3) {
				o.step()
			}
			if o.rng.IntN(40) == 0 {
				<-time.After(staleAfter)
			}
			<-time.After(2 * settle)
			synctest.Wait()
			for sum.version < float64(p.version()) {
				sum.take(p, l.any())
			}
			want := newLineView(decode(p, p.do(c, "GET", "/v1/load_monitor/snapshot").body))
			if got := sum; got.version != want.version || !reflect.DeepEqual(got.workers, want.workers) || !reflect.DeepEqual(got.pools, want.pools) {
				p.Fatalf("version %v\n got %v\n     %v\nwant %v\n     %v", want.version, got.workers, got.pools, want.workers, want.pools)
			}
		}
		if sum.deltas < 200 {
			p.Errorf("only %d deltas", sum.deltas)
		}
	})
}

// any returns the next line, whatever its type.
func (l *lines) any() map[string]any {
	l.p.Helper()
	if !l.scanner.Scan() {
		l.p.Fatal("no further line:", l.scanner.Err())
	}
	return decode(l.p, l.scanner.Text())
}

// lineView is what lines add up to: workers by id, pools by model and mode.
type lineView struct {
	version        float64
	workers, pools map[string]map[string]any
	deltas         int
}

func newLineView(full map[string]any) *lineView {
	v := &lineView{version: full["version"].(float64), workers: map[string]map[string]any{}, pools: map[string]map[string]any{}}
	v.put(full)
	return v
}

// put takes the workers and pools of a line. What is liveness is left out.
func (v *lineView) put(line map[string]any) {
	for _, x := range line["workers"].([]any) {
		w := x.(map[string]any)
		for _, key := range []string{
			"age_ms", "valid_for_ms", "sequence_id", "report_time_unix_ms", "last_error", "received_at", "expires_at",
		} {
			delete(w, key)
		}
		v.workers[w["worker_id"].(string)] = w
	}
	for _, x := range line["pools"].([]any) {
		p := x.(map[string]any)
		v.pools[poolName(p)] = p
	}
}

func poolName(p map[string]any) string { return fmt.Sprint(p["model"], "/", p["mode"]) }

// take applies a line, removals first.
func (v *lineView) take(p *plane, line map[string]any) {
	p.Helper()
	switch line["type"] {
	case "heartbeat":
	case "delta":
		if line["base_version"] != v.version {
			p.Fatalf("a delta against %v, held is %v", line["base_version"], v.version)
		}
		v.deltas++
		for _, id := range line["removed"].([]any) {
			delete(v.workers, id.(string))
		}
		for _, k := range line["removed_pools"].([]any) {
			delete(v.pools, poolName(k.(map[string]any)))
		}
		v.put(line)
	default:
		p.Fatalf("a line of type %v", line["type"])
	}
	v.version = line["version"].(float64)
}

// TestKeysOfADeltaLine holds the keys of a delta line, in their order.
func TestKeysOfADeltaLine(t *testing.T) {
	const want = "type, lineage, epoch, version, warming, server_time, liveness, base_version, workers, pools, removed, removed_pools"
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:30000"))
		p.after(settle)
		l := p.lines(p.client(true))
		l.next("full")
		p.remove("a:30000")
		p.after(settle)
		l.next("delta")
		keys := topKeys(p, l.scanner.Text())
		if got := strings.Join(keys, ", "); got != want {
			p.Errorf("keys %s, want %s", got, want)
		}
		if line := l.scanner.Text(); !strings.Contains(line, `"workers":[],"pools":[],"removed":["a:30000"],"removed_pools":[{"model":"qwen3","mode":"plain"}]`) {
			p.Errorf("line %s", line)
		}
	})
}

// topKeys returns the keys of a JSON object in their order.
func topKeys(p *plane, object string) (keys []string) {
	p.Helper()
	d := json.NewDecoder(strings.NewReader(object))
	if _, err := d.Token(); err != nil {
		p.Fatal(err)
	}
	for d.More() {
		key, err := d.Token()
		var value json.RawMessage
		if err := errors.Join(err, d.Decode(&value)); err != nil {
			p.Fatal(err)
		}
		keys = append(keys, key.(string))
	}
	if !slices.Contains(keys, "type") {
		p.Fatalf("keys %v", keys)
	}
	return keys
}
