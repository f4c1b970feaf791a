package soak

import (
	"math/rand/v2"
	"time"
)

// kind is a kind of fault of a link. It lasts for a while, or until the link
// is gone.
type kind struct {
	name string
	set  func(up, down *fault, rng *rand.Rand)
	// resets says that the link cannot go on afterwards.
	resets bool
}

var kinds = []kind{
	{name: "delay", set: func(up, down *fault, rng *rand.Rand) {
		for _, f := range []*fault{up, down} {
			*f = fault{
				delay:  time.Duration(rng.Int64N(int64(1500 * time.Millisecond))),
				jitter: time.Duration(1 + rng.Int64N(int64(500*time.Millisecond))),
				rng:    rand.New(rand.NewPCG(rng.Uint64(), 5)),
			}
		}
	}},
	{name: "stall", set: func(up, down *fault, _ *rand.Rand) { up.stalled, down.stalled = true, true }},
	{name: "stall down", set: func(_, down *fault, _ *rand.Rand) { down.stalled = true }},
	{name: "cut up", set: func(up, _ *fault, rng *rand.Rand) { up.cut = 1 + rng.IntN(3000) }},
	{name: "cut down", set: func(_, down *fault, rng *rand.Rand) { down.cut = 1 + rng.IntN(30_000) }},
	{name: "half open", set: func(up, down *fault, _ *rand.Rand) { up.vanish, down.vanish = true, true }, resets: true},
	{name: "half open up", set: func(up, _ *fault, _ *rand.Rand) { up.vanish = true }, resets: true},
}

// disturb injects some faults.
func (s *setting) disturb() {
	for range s.rng.IntN(3) {
		s.fault(s.engines[s.rng.IntN(len(s.engines))].id)
	}
	if s.rng.IntN(4) == 0 {
		s.fault(s.watchers[s.rng.IntN(len(s.watchers))].name)
	}
	if s.rng.IntN(6) == 0 {
		s.trouble(s.engines[s.rng.IntN(len(s.engines))])
	}
}

// fault disturbs the links of an owner.
func (s *setting) fault(owner string) {
	k := kinds[s.rng.IntN(len(kinds))]
	length := 200*time.Millisecond + time.Duration(s.rng.Int64N(int64(8*time.Second)))
	for _, l := range s.net.of(owner) {
		s.faults[k.name]++
		l.change(func(up, down *fault) { k.set(up, down, s.rng) })
		if k.name == "cut up" || k.name == "cut down" {
			continue
		}
		time.AfterFunc(length, l.calm)
	}
}

// trouble is a fault of the engine itself.
func (s *setting) trouble(e *engine) {
	switch s.rng.IntN(5) {
	case 0:
		s.faults["engine restarts"]++
		go e.restart()
	case 1:
		s.faults["engine freezes"]++
		e.faults.Freeze.Store(true)
	case 2:
		s.faults["engine is silent"]++
		e.faults.Silent.Store(true)
	case 3:
		s.faults["engine cannot sample"]++
		e.faults.Fail.Store(true)
	case 4:
		s.faults["engine sends NaN"]++
		e.faults.NaN.Store(true)
	}
}
