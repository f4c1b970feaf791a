package model

import (
	"flag"
	"os"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

// defaultOps is how many operations TestModel makes unless
// LOADPLANE_MODEL_OPS says otherwise, opsPerRun how many on the average from
// one start to the end.
const (
	defaultOps = 20_000
	opsPerRun  = 100
	// runsPerCheck bounds the runs between two looks at the count.
	runsPerCheck = 25
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestModel makes random operations and compares all that can be seen after
// each of them. A failure is shrunk and printed as a list of operations.
func TestModel(t *testing.T) {
	ops := defaultOps
	if v := os.Getenv("LOADPLANE_MODEL_OPS"); v != "" {
		var err error
		if ops, err = strconv.Atoi(v); err != nil || ops < 1 {
			t.Fatalf("LOADPLANE_MODEL_OPS is %q, not a count", v)
		}
	}
	set(t, "rapid.steps", opsPerRun)
	set(t, "rapid.checks", min(runsPerCheck, 1+ops/opsPerRun))
	began, done, counts := time.Now(), 0, map[string]int{}
	for done < ops {
		rapid.Check(t, func(t *rapid.T) { done += run(t, counts) })
	}
	t.Logf("%d operations in %v: %v", done, time.Since(began), counts)
	for _, what := range interesting {
		if counts[what] == 0 && ops >= defaultOps {
			t.Errorf("%d operations without: %s", done, what)
		}
	}
}

// interesting is what has to happen in a run of the default length; otherwise
// the operations do not reach what they are for.
var interesting = []string{
	"restart", "seen cut", "delta over several versions",
	"opened by full", "opened by delta", "opened by heartbeat", "other lineage, warming true", "other lineage, warming false",
	"shown missing no_report", "shown missing duplicate_origin", "shown fresh ", "shown stale age", "shown stale suspended",
	"shown stale zero_capacity", "shown stale engine_stale", "shown stale engine_unreachable", "shown unreachable engine_unreachable",
	"refused: bad_address", "refused: unknown_worker", "refused: dialect_mismatch", "refused: role_mismatch",
	"refused: peer_mismatch", "refused: retired", "refused: sequence_jump", "refused: duplicate_origin",
}

// set sets a flag for the time of the test, unless the command line did.
func set(t *testing.T, name string, value int) {
	t.Helper()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if given {
		return
	}
	f := flag.Lookup(name)
	old := f.Value.String()
	if err := f.Value.Set(strconv.Itoa(value)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Value.Set(old) })
}

// run makes one random sequence of operations with watchers, and then the
// same one without any, and returns how many they were. It adds up what
// happened.
func run(t *rapid.T, counts map[string]int) int {
	dir, err := os.MkdirTemp("", "loadplane-model-")
	must(t, err)
	defer func() { _ = os.RemoveAll(dir) }()
	var watched []ending
	m := &machine{}
	rapid.SyncTest(t, func(t *rapid.T) {
		m.sim = newSim(t, dir, false)
		defer m.end()
		m.pass(settle)
		t.Repeat(rapid.StateMachineActions(m))
		watched = m.ending()
		for what, n := range m.history.counts {
			counts[what] += n
		}
	})
	rapid.SyncTest(t, func(t *rapid.T) {
		alone := newSim(t, dir, true)
		defer alone.end()
		alone.pass(settle)
		for _, s := range m.steps {
			alone.apply(s)
		}
		sameEnding(t, watched, alone.ending())
	})
	return len(m.steps)
}

// ending is what is left of a worker at the end.
type ending struct {
	id            string
	version, hash uint64
	sequence      uint64
	received      uint64
}

// ending returns the final content and receipts.
func (s *sim) ending() []ending {
	m := s.plane.snapshot(s.T)
	receipts := map[uint32]int{}
	for i, l := range m.GetLiveness().GetWorkers() {
		receipts[l.GetRow()] = i
	}
	all := []ending{{"", m.GetCursor().GetVersion(), m.GetDigest(), 0, 0}}
	for _, w := range m.GetFull().GetWorkers() {
		e := ending{w.GetWorkerId(), 0, w.GetContentHash(), 0, 0}
		if i, heard := receipts[w.GetRow()]; heard {
			l := m.GetLiveness().GetWorkers()[i]
			e.sequence, e.received = l.GetSequenceId(), l.GetReceivedMs()
		}
		all = append(all, e)
	}
	return all
}

// sameEnding checks I-10: nobody's watching changes what the plane holds.
func sameEnding(t *rapid.T, watched, alone []ending) {
	if len(watched) != len(alone) {
		t.Fatalf("I-10: watched %v, alone %v", watched, alone)
	}
	for i := range watched {
		if watched[i] != alone[i] {
			t.Fatalf("I-10: watched %+v, alone %+v", watched[i], alone[i])
		}
	}
}
