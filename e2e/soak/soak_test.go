package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/e2e/history"
	"google.golang.org/protobuf/proto"
)

// rounding is what a record loses where instants become whole milliseconds:
// the server's clock is rounded up, the end of a validity down.
const rounding = 2 * time.Millisecond

const (
	// A round is a time of faults, a time to recover, and a time in which
	// nothing may be missing.
	round    = time.Minute
	faulty   = 35 * time.Second
	recovery = 15 * time.Second
	// Between these seconds of a round no value changes, so that only receipts
	// and heartbeats are sent.
	idleFrom, idleTo = 10, 14
	// visible is the longest time from a report to the watchers in a quiet
	// time: the settle time, and the rounding of the clocks.
	visible = settle + time.Millisecond
	// restartEvery is the number of rounds in one life of the plane.
	restartEvery = 8
)

// setting is what a run consists of.
type setting struct {
	t       *testing.T
	rng     *rand.Rand
	net     *network
	record  *history.Recorder
	engines []*engine
	ranks   int
	flags   []string

	watchers []*watcher
	bases    sync.Map
	lives    int
	plane    *plane
	// faults counts those that were injected, by kind.
	faults map[string]int
}

// scale is the size of a run.
type scale struct {
	engines, ranks int
	time           time.Duration
	seed           uint64
}

// TestSimulatedHour runs 50 engines with eight ranks each, at one report a
// second, and three watchers under faults: for an hour, or a quarter of it with
// the race detector, which is what a minute of work allows.
// LOADPLANE_SIM_HOURS asks for whole hours, each with a seed of its own.
func TestSimulatedHour(t *testing.T) {
	hours, length := 1, usual
	if asked := os.Getenv("LOADPLANE_SIM_HOURS"); asked != "" {
		var err error
		if hours, err = strconv.Atoi(asked); err != nil || hours < 1 {
			t.Fatalf("LOADPLANE_SIM_HOURS is %q, not a number above 0", asked)
		}
		length = time.Hour
	}
	for seed := range hours {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			soak(t, scale{engines: 50, ranks: 8, time: length, seed: uint64(seed)})
		})
	}
}

func soak(t *testing.T, size scale) {
	path := filepath.Join(t.TempDir(), "history.jsonl")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	began := time.Now()
	var s *setting
	synctest.Test(t, func(t *testing.T) {
		s = newSetting(t, size, history.NewRecorder(out))
		s.play(size.time)
		if err := s.record.Flush(); err != nil {
			t.Error(err)
		}
	})
	simulated := time.Since(began)
	if _, err := out.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	sum, err := history.Check(out, history.Limits{Overdue: rounding})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range sum.Violations {
		t.Error(v)
	}
	s.t = t // that of the bubble has ended
	s.report(sum)
	t.Logf("simulated in %v, checked in %v", simulated.Round(time.Millisecond), (time.Since(began) - simulated).Round(time.Millisecond))
	s.enough(sum, size)
}

func newSetting(t *testing.T, size scale, record *history.Recorder) *setting {
	s := &setting{
		t: t, rng: rand.New(rand.NewPCG(size.seed, 3)), net: newNetwork(), ranks: size.ranks, record: record,
		faults: map[string]int{},
	}
	for i := range size.engines {
		e := newEngine(s, i)
		s.engines = append(s.engines, e)
		s.flags = append(s.flags, e.flag())
	}
	for i, w := range []struct {
		name string
		opts []connect.ClientOption
	}{{"connect", nil}, {"grpc", []connect.ClientOption{connect.WithGRPC()}}, {"grpc-web", []connect.ClientOption{connect.WithGRPCWeb()}}} {
		s.watchers = append(s.watchers, &watcher{
			t: t, name: w.name, net: s.net, opts: w.opts,
			rng: rand.New(rand.NewPCG(size.seed, uint64(100+i))), bases: &s.bases,
			record: record.Watcher(w.name), late: map[receiptKey]time.Duration{},
		})
	}
	return s
}

// start begins a new life of the plane.
func (s *setting) start() {
	s.lives++
	lineage := fmt.Sprint("life-", s.lives)
	s.bases.Store(lineage, time.Now())
	s.plane = startPlane(s.t, s.net, lineage, s.flags, neverSlept)
}

// play runs everything for a time, in rounds.
func (s *setting) play(length time.Duration) {
	s.start()
	ctx, cancel := context.WithCancel(context.Background())
	var runs sync.WaitGroup
	for _, e := range s.engines {
		runs.Go(func() { e.run(ctx) })
	}
	for _, w := range s.watchers {
		runs.Go(func() { w.run(ctx) })
	}
	runs.Go(func() { s.probe(ctx) })
	for n := range int(length / round) {
		s.round(n)
	}
	cancel()
	runs.Wait()
	s.plane.stop()
}

// probe looks at what the watchers hold to be valid, whether messages come or
// not.
func (s *setting) probe(ctx context.Context) {
	// Not in step with the engines.
	ticker := time.NewTicker(237 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			for _, w := range s.watchers {
				w.valid()
			}
		}
	}
}

func (s *setting) round(n int) {
	for second := range int(faulty / time.Second) {
		s.disturb()
		if second == idleFrom || second == idleTo {
			for _, e := range s.engines {
				e.faults.Freeze.Store(second == idleFrom)
			}
		}
		pass(time.Second)
	}
	if n%restartEvery == restartEvery-1 {
		s.plane.stop()
		pass(time.Duration(s.rng.Int64N(int64(5 * time.Second))))
		s.start()
		s.faults["restart of the plane"]++
	}
	s.net.calm()
	for _, e := range s.engines {
		e.heal()
	}
	pass(recovery)
	quiet := time.Now()
	pass(round - faulty - recovery)
	s.record.Quiet(quiet, visible)
	s.agree(n)
}

// agree checks that all watchers have the plane's view, and that every engine
// is fresh in it.
func (s *setting) agree(n int) {
	want, _ := s.plane.builder.Current()
	if err := s.plane.builder.Check(); err != nil {
		s.t.Errorf("round %d: %v", n, err)
	}
	first := s.watchers[0].view()
	for _, w := range s.watchers {
		v := w.view()
		if v == nil || v.Lineage() != want.Lineage || v.Version() != want.Version || v.Digest() != want.Digest {
			s.t.Errorf("round %d: %s has %v, the plane is at version %d", n, w.name, place(v), want.Version)
			continue
		}
		for i, worker := range v.Workers() {
			if !proto.Equal(worker, first.Workers()[i]) {
				s.t.Errorf("round %d: %s has another %s than %s", n, w.name, worker.GetWorkerId(), s.watchers[0].name)
			}
		}
		for i, p := range v.Pools() {
			if !proto.Equal(p, first.Pools()[i]) {
				s.t.Errorf("round %d: %s has another pool %v than %s", n, w.name, p.GetKey(), s.watchers[0].name)
			}
		}
		if got := v.CountValid(time.Now()); got != len(s.engines) {
			s.t.Errorf("round %d: %s holds %d of %d workers to be valid", n, w.name, got, len(s.engines))
		}
	}
}

func place(v *client.View) string {
	if v == nil {
		return "nothing"
	}
	return fmt.Sprintf("version %d of %s with %d workers", v.Version(), v.Lineage(), len(v.Workers()))
}

// report logs what a run was.
func (s *setting) report(sum history.Summary) {
	s.t.Helper()
	kept := sum
	kept.Violations = nil
	s.t.Logf("%+v", kept)
	s.t.Logf("faults: %v", s.faults)
	for _, w := range s.watchers {
		s.t.Logf("%s: %d streams, %d looks at valid workers, oldest report %v", w.name, w.streams, w.validated, w.oldest)
	}
}

// enough says that a run was one: a run in which nothing happens shows
// nothing.
func (s *setting) enough(sum history.Summary, size scale) {
	seconds := int(size.time / time.Second)
	switch {
	case sum.Reports < size.engines*seconds*8/10:
		s.t.Errorf("%d reports only", sum.Reports)
	case sum.Deltas < 3*seconds || sum.Fulls < seconds/10 || sum.Resumed == 0 || sum.Heartbeats == 0:
		s.t.Errorf("%d deltas, %d fulls, %d resumed, %d heartbeats only", sum.Deltas, sum.Fulls, sum.Resumed, sum.Heartbeats)
	case sum.Quiets != int(size.time/round):
		s.t.Errorf("%d quiet times", sum.Quiets)
	}
	for _, kind := range kinds {
		if s.faults[kind.name] == 0 && size.time >= usual {
			s.t.Errorf("no fault of the kind %q", kind.name)
		}
	}
}
