package hostile

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/grpc/codes"
)

func ipOf(id string) string { return strings.TrimSuffix(strings.TrimPrefix(id, "http://"), ":1") }

// TestSpoofedOrigins reports in the name of others, the healthy engines among
// them, from an address that is none of theirs.
func TestSpoofedOrigins(t *testing.T) {
	const rounds, silent = 10, 30
	spoofs := amount(1000, 10_000) / rounds
	attack{rounds: rounds, workers: identities(silent), begin: func(a *arena) func(int) {
		thief := a.connect("127.9.9.9")
		var victims []string
		for i := range healthy {
			victims = append(victims, healthyID(i))
		}
		victims = append(victims, identities(silent)...)
		spell := []func(string) string{
			func(id string) string { return id },
			func(id string) string { return strings.TrimPrefix(id, "http://") },
			func(id string) string { return strings.ToUpper(id) + "/path?query" },
			func(id string) string { return strings.Replace(id, "http://", "http://user@", 1) },
		}
		return func(round int) {
			for i := range spoofs {
				if a.Failed() {
					return
				}
				n := round*spoofs + i
				s := thief.open()
				s.send(report(spell[n/len(victims)%len(spell)](victims[n%len(victims)]), fmt.Sprint("thief-", n), uint64(n+1), 1<<40))
				s.ends(codes.PermissionDenied)
			}
			a.expect(registry.ReasonPeerMismatch, spoofs)
			for _, id := range identities(silent) {
				if e, live := a.entry(id); live != nil || e.Load != nil {
					a.Fatalf("%s was heard", id)
				}
			}
		}
	}}.play(t)
}

// TestTakeoverRaces lets a second process at the address of an engine take its
// place again and again. The engine is back as soon as the other one is not
// heard any more, at its own sequence.
func TestTakeoverRaces(t *testing.T) {
	const cycle, cycles = 4, 10 // staleAfter is three rounds
	engines := amount(100, 1000) / cycles
	attack{rounds: cycle * cycles, workers: identities(engines), begin: func(a *arena) func(int) {
		var all []*contested
		for i := range engines {
			c := &contested{a: a, id: identity(i), peer: a.connect(ipOf(identity(i)))}
			c.real, c.sequence = c.peer.open(), 1
			c.real.send(report(c.id, "real", c.sequence, 1))
			all = append(all, c)
		}
		idle() // the engines are bound before a thief comes
		return func(round int) {
			var running sync.WaitGroup
			for _, c := range all {
				running.Go(func() { c.round(round/cycle, round%cycle, cycle) })
			}
			running.Wait()
			pass(settle)
			for _, c := range all {
				if round%cycle == cycle-1 {
					c.visible()
				}
			}
		}
	}}.play(t)
}

// contested is an engine with a thief at its own address.
type contested struct {
	a           *arena
	id          string
	peer        *peer
	real, thief *stream
	sequence    uint64
	open        bool
}

func (c *contested) round(n, at, cycle int) {
	c.sequence++
	switch at {
	case 0:
		c.race(n)
	case cycle - 1:
		c.back(n)
	default:
		c.refused()
	}
}

// race lets both speak at once. Whatever comes first, the newcomer ends as
// the one that is bound, and the engine is refused.
func (c *contested) race(n int) {
	c.thief = c.peer.open()
	var both sync.WaitGroup
	both.Go(func() { c.thief.send(report(c.id, fmt.Sprint("thief-", n), 1<<40, 7)) })
	both.Go(func() { c.real.send(report(c.id, "real", c.sequence, int64(c.sequence))) })
	both.Wait()
	c.real.ends(codes.Aborted)
	c.a.expectEnd(registry.ReasonSuperseded, 1)
	c.refused()
	if c.open = n%2 == 0; !c.open {
		c.thief.close()
	}
}

// refused is the engine's return while the other one is still heard.
func (c *contested) refused() {
	s := c.peer.open()
	s.send(report(c.id, "real", c.sequence, int64(c.sequence)))
	s.ends(codes.FailedPrecondition)
	c.a.expect(registry.ReasonRetired, 1)
}

// back is the engine's return once the other one was silent for long enough.
// Now the other one must wait in turn.
func (c *contested) back(n int) {
	c.real = c.peer.open()
	c.real.send(report(c.id, "real", c.sequence, int64(c.sequence)))
	if c.open {
		c.thief.ends(codes.Aborted)
		c.a.expectEnd(registry.ReasonSuperseded, 1)
	} else {
		idle()
	}
	again := c.peer.open()
	again.send(report(c.id, fmt.Sprint("thief-", n), 1<<41, 7))
	again.ends(codes.FailedPrecondition)
	c.a.expect(registry.ReasonRetired, 1)
}

// visible checks that the engine is the one that is shown.
func (c *contested) visible() {
	e, live := c.a.entry(c.id)
	if e.Load.Source != "real" || live.Sequence != c.sequence || e.Freshness != store.Fresh {
		c.a.Errorf("%s shows report %d of %s, %v, want %d of the engine", c.id, live.Sequence, e.Load.Source, e.Freshness, c.sequence)
	}
}

// TestSourceChurn speaks with a new source instance in every stream. What is
// kept of an identity stays bounded.
func TestSourceChurn(t *testing.T) {
	const rounds = 10
	churn := amount(100_000, 1_000_000) / rounds
	id := identity(0)
	attack{rounds: rounds, workers: identities(1), begin: func(a *arena) func(int) {
		p := a.connect(ipOf(id))
		var left *stream
		return func(round int) {
			for i := range churn {
				if a.Failed() {
					return
				}
				n := round*churn + i
				s := p.open()
				s.send(report(id, fmt.Sprintf("source-%d-%0100d", n, n), uint64(n), 1))
				if left != nil {
					left.ends(codes.Aborted)
					a.expectEnd(registry.ReasonSuperseded, 1)
					left = nil
				}
				if n%2 == 0 {
					left = s
					idle()
				} else {
					s.close()
				}
			}
			pass(settle)
			e, _ := a.entry(id)
			st, _, _ := a.store.Inspect(e.Row)
			if len(st.Retired) > 16 {
				a.Errorf("%d retired instances are kept", len(st.Retired))
			}
			last := (round + 1) * churn
			if want := fmt.Sprintf("source-%d-", last-1); !strings.HasPrefix(e.Load.Source, want) {
				a.Errorf("the newest source is %.20s, want %s", e.Load.Source, want)
			}
			if got := a.metric("loadplane_registry_takeovers_total")[""]; got != float64(last-1) {
				a.Errorf("%v takeovers, want %d", got, last-1)
			}
		}
	}}.play(t)
}

// TestReplays sends frames again, in another order and with gaps, over streams
// that end and come back, and compares with a plain model.
func TestReplays(t *testing.T) {
	const rounds, engines = 10, 10
	frames := amount(10_000, 100_000) / rounds / engines
	attack{rounds: rounds, workers: identities(engines), begin: func(a *arena) func(int) {
		var all []*replayer
		for i := range engines {
			all = append(all, &replayer{
				a: a, id: identity(i), peer: a.connect(ipOf(identity(i))), rng: rand.New(rand.NewPCG(uint64(i), 2)),
			})
		}
		return func(int) {
			var running sync.WaitGroup
			for _, r := range all {
				running.Go(func() { r.round(frames) })
			}
			running.Wait()
			pass(settle)
			for _, r := range all {
				r.check()
				a.expectEnd(registry.ReasonOldSequence, r.olds)
				r.olds = 0
			}
		}
	}}.play(t)
}

// replayer is an identity with the model of what must be accepted.
type replayer struct {
	a    *arena
	id   string
	peer *peer
	rng  *rand.Rand
	s    *stream
	// past are the sequences sent so far, last the one that counts.
	past       []uint64
	next, last uint64
	olds       int
}

func (r *replayer) round(frames int) {
	for range frames {
		if r.s == nil {
			r.s = r.peer.open()
		}
		sequence := r.pick()
		r.s.send(report(r.id, "s", sequence, int64(sequence)))
		if sequence > r.last {
			r.last = sequence
		} else {
			r.olds++
		}
		r.past = append(r.past, sequence)
		if r.rng.IntN(50) == 0 {
			r.s.close()
			r.s = nil
		}
	}
	if r.s != nil { // its end shows that all was received
		r.s.close()
		r.s = nil
	}
}

// pick chooses a new sequence, with gaps and out of order, or one of the past.
func (r *replayer) pick() uint64 {
	if len(r.past) > 0 && r.rng.IntN(3) == 0 {
		return r.past[r.rng.IntN(len(r.past))]
	}
	r.next += 1 + uint64(r.rng.IntN(5))
	return r.next - min(r.next-1, uint64(r.rng.IntN(8)))
}

func (r *replayer) check() {
	e, live := r.a.entry(r.id)
	if live == nil {
		r.a.Fatalf("%s was not heard", r.id)
	}
	value, _ := e.Ranks[0].Count(store.NumTotalTokens)
	if live.Sequence != r.last || value != int64(r.last) || e.Freshness != store.Fresh {
		r.a.Errorf("%s shows report %d with the values of %d, the model has %d", r.id, live.Sequence, value, r.last)
	}
}

// TestSequenceExtremes sends sequences at the ends of their range and compares
// with a model of the rules for jumps.
func TestSequenceExtremes(t *testing.T) {
	const rounds, engines = 20, 20
	each := amount(1000, 10_000) / rounds / engines * 2 // half of the rounds are silent
	attack{rounds: rounds, workers: identities(engines), begin: func(a *arena) func(int) {
		var all []*jumper
		for i := range engines {
			all = append(all, &jumper{
				a: a, id: identity(i), peer: a.connect(ipOf(identity(i))), rng: rand.New(rand.NewPCG(uint64(i), 4)), heard: -100,
			})
		}
		return func(round int) {
			var running sync.WaitGroup
			for _, j := range all {
				running.Go(func() { j.round(round, max(each, 1)) })
			}
			running.Wait()
			pass(settle)
			for _, j := range all {
				_, live := a.entry(j.id)
				if (live != nil) != j.known || live != nil && live.Sequence != j.last {
					a.Errorf("%s shows %+v, the model has %d", j.id, live, j.last)
				}
			}
		}
	}}.play(t)
}

// jumper is an identity with the model of its sequences.
type jumper struct {
	a     *arena
	id    string
	peer  *peer
	rng   *rand.Rand
	s     *stream
	known bool
	last  uint64
	heard int // the round
	row   int // refusals in a row
	quiet int // rounds to come without a report
}

func (j *jumper) round(round, n int) {
	if j.quiet > 0 {
		j.quiet--
		return
	}
	for range n {
		j.send(round)
	}
	if j.rng.IntN(4) == 0 {
		j.quiet = 1 + j.rng.IntN(4)
	}
	if j.s != nil {
		j.s.close()
		j.s, j.row = nil, 0
	}
}

func (j *jumper) send(round int) {
	if j.s == nil {
		j.s, j.row = j.peer.open(), 0
	}
	sequence := j.pick()
	j.s.send(report(j.id, "s", sequence, int64(sequence>>20)))
	if !j.jumps(sequence, round) {
		j.row = 0
		if j.known && sequence <= j.last {
			j.a.expectEnd(registry.ReasonOldSequence, 1)
		} else {
			j.known, j.last, j.heard = true, sequence, round
		}
		return
	}
	j.a.expect(registry.ReasonSequenceJump, 1)
	if j.row++; j.row == 10 {
		j.s.ends(codes.InvalidArgument)
		j.s = nil
	}
}

// jumps is the model of the rule.
func (j *jumper) jumps(sequence uint64, round int) bool {
	switch {
	case j.known && sequence <= j.last, j.known && sequence-j.last <= 1<<32:
		return false
	case sequence > 1<<62:
		return true
	}
	return j.known && round-j.heard < int(staleAfter/interval)
}

func (j *jumper) pick() uint64 {
	marks := []uint64{0, 1, j.last, j.last + 1<<32, 1 << 62, 1 << 63, 1<<64 - 1, j.rng.Uint64(), j.rng.Uint64() >> 30}
	near := uint64(j.rng.IntN(5)) - 2
	return marks[j.rng.IntN(len(marks))] + near
}
