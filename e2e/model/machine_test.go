package model

import (
	"fmt"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"pgregory.net/rapid"
)

// step is one operation. It depends on nothing but the simulation that it is
// applied to, so that it can be applied to another one.
type step struct {
	text string
	run  func(*sim)
	// pause is the time that passes after it.
	pause time.Duration
}

// machine is the state machine: every method but Check draws one operation
// and applies it.
type machine struct {
	*sim
	steps []step
}

// Check compares after every operation.
func (m *machine) Check(t *rapid.T) { m.check() }

// do applies an operation to the simulation and remembers it.
func (m *machine) do(t *rapid.T, run func(*sim), text string, args ...any) {
	m.doThen(t, pauses.Draw(t, "pause"), run, fmt.Sprintf(text, args...))
}

func (m *machine) doThen(t *rapid.T, pause time.Duration, run func(*sim), text string) {
	t.Helper()
	t.Logf("%3d: %s, then %v", len(m.steps)+1, text, pause)
	s := step{text, run, pause}
	m.steps = append(m.steps, s)
	m.apply(s)
}

func (s *sim) apply(st step) {
	st.run(s)
	s.pass(st.pause)
}

// Pauses are mostly the settle time. The others leave input waiting, or move
// the operations against whole milliseconds.
var pauses = rapid.SampledFrom([]time.Duration{
	settle, settle, settle, settle, 0, time.Millisecond, 333 * time.Microsecond, settle - 1, 400 * time.Millisecond, time.Second,
})

var (
	ids     = rapid.SampledFrom([]string{"w0", "w1", "w2", "w3", "w4"})
	hosts   = rapid.IntRange(1, 4)
	sources = rapid.SampledFrom([]string{"a", "b", "c"})
	models  = rapid.SampledFrom([][]string{{"m"}, {"m"}, {"n"}, {"m", "n"}, nil})
	words   = rapid.SampledFrom([]string{"", "x", "y"})
	roles   = rapid.SampledFrom([]pb.Role{
		pb.Role_ROLE_REGULAR, pb.Role_ROLE_REGULAR, pb.Role_ROLE_PREFILL, pb.Role_ROLE_DECODE,
	})
	statuses = rapid.SampledFrom([]pb.Status{
		pb.Status_STATUS_HEALTHY, pb.Status_STATUS_HEALTHY, pb.Status_STATUS_HEALTHY, pb.Status_STATUS_HEALTHY,
		pb.Status_STATUS_STALE, pb.Status_STATUS_UNREACHABLE,
	})
)

func drawListing(t *rapid.T, id string) listing {
	l := listing{id: id, dialect: pb.Dialect_DIALECT_PUSH}
	l.host = int(id[1]-'0')%4 + 1 // two of five share an origin
	l.role = roles.Draw(t, "role")
	l.models, l.zone, l.label = models.Draw(t, "models"), words.Draw(t, "zone"), words.Draw(t, "label")
	return l
}

// drawn returns one of the keys of a map, or skips the operation.
func drawn[V any](t *rapid.T, of map[string]V, what string) string {
	if len(of) == 0 {
		t.SkipNow()
	}
	return rapid.SampledFrom(sorted(of)).Draw(t, what)
}

// Discover lists a further worker.
func (m *machine) Discover(t *rapid.T) {
	id := ids.Draw(t, "worker")
	if _, there := m.listed[id]; there {
		id = ids.Draw(t, "other worker")
	}
	l := drawListing(t, id)
	m.do(t, func(s *sim) { s.list(func(listed map[string]listing) { listed[id] = l }) }, "discover %+v", l)
}

// Remove takes a worker out of the list.
func (m *machine) Remove(t *rapid.T) {
	id := drawn(t, m.listed, "worker")
	m.do(t, func(s *sim) { s.list(func(listed map[string]listing) { delete(listed, id) }) }, "remove %s", id)
}

// Relabel changes a worker in place.
func (m *machine) Relabel(t *rapid.T) {
	l := m.listed[drawn(t, m.listed, "worker")]
	l.models, l.zone, l.label = models.Draw(t, "models"), words.Draw(t, "zone"), words.Draw(t, "label")
	l.draining = rapid.Bool().Draw(t, "draining")
	m.do(t, func(s *sim) { s.list(func(listed map[string]listing) { listed[l.id] = l }) }, "relabel %+v", l)
}

// Identify changes what a worker is: it loses its state.
func (m *machine) Identify(t *rapid.T) {
	l := m.listed[drawn(t, m.listed, "worker")]
	switch rapid.IntRange(0, 2).Draw(t, "what") {
	case 0:
		l.host = hosts.Draw(t, "host")
	case 1:
		l.role = roles.Draw(t, "role")
	default:
		l.dialect = rapid.SampledFrom([]pb.Dialect{pb.Dialect_DIALECT_PUSH, pb.Dialect_DIALECT_NONE}).Draw(t, "dialect")
	}
	m.do(t, func(s *sim) { s.list(func(listed map[string]listing) { listed[l.id] = l }) }, "identify %+v", l)
}

// sender returns the claim of an engine that is discovered, and its worker.
func (m *machine) sender(t *rapid.T) (claim, *row) {
	r := m.world.keeper(m.world.listed[drawn(t, m.world.listed, "worker")].host)
	return claim{host: r.host, peer: r.host, role: r.role, source: r.source}, r
}

// Report sends values with the next sequence.
func (m *machine) Report(t *rapid.T) { m.report(t, m.current(t), 1) }

// ReportMore is another Report, so that they are frequent.
func (m *machine) ReportMore(t *rapid.T) {
	m.report(t, m.current(t), rapid.Uint64Range(1, 5).Draw(t, "gap"))
}

// Duplicate sends other values with the last sequence.
func (m *machine) Duplicate(t *rapid.T) { m.report(t, m.current(t), 0) }

// Reorder sends other values with an older sequence.
func (m *machine) Reorder(t *rapid.T) {
	m.report(t, m.current(t), -rapid.Uint64Range(1, 3).Draw(t, "behind")) // wraps below the last one
}

// Jump sends a sequence near the bounds of what is accepted.
func (m *machine) Jump(t *rapid.T) {
	m.report(t, m.current(t), rapid.SampledFrom([]uint64{maxJump, maxJump + 1, maxFirst, 1 << 63}).Draw(t, "by"))
}

// TakeOver sends as any source: a new one, a retired one, or the current one
// on a further stream.
func (m *machine) TakeOver(t *rapid.T) {
	c, _ := m.sender(t)
	c.source = sources.Draw(t, "source")
	m.report(t, c, rapid.Uint64Range(0, 2).Draw(t, "ahead"))
}

// Flap has the instance before the current one come back, with its own next
// sequence or its last one.
func (m *machine) Flap(t *rapid.T) {
	c, r := m.sender(t)
	c.source = drawn(t, r.retired, "retired source")
	m.report(t, c, rapid.Uint64Range(0, 1).Draw(t, "ahead"))
}

// Equal sends the last values again with the next sequence.
func (m *machine) Equal(t *rapid.T) {
	c, r := m.sender(t)
	last := r.waiting
	if last == nil {
		last = r.last
	}
	if last == nil || r.source == "" {
		t.SkipNow()
	}
	next := *last
	next.source, next.sequence = c.source, r.sequences[c.source]+1
	m.send1(t, c, next, false)
}

// current returns the claim of the current source, "a" where there is none.
func (m *machine) current(t *rapid.T) claim {
	c, _ := m.sender(t)
	if c.source == "" {
		c.source = "a"
	}
	return c
}

// report sends drawn values, so far ahead of the last sequence of the source.
func (m *machine) report(t *rapid.T, c claim, ahead uint64) {
	last := uint64(5)
	if r := m.world.keeper(c.host); r != nil {
		if known, ok := r.sequences[c.source]; ok {
			last = known
		}
	}
	r := report{source: c.source, sequence: last + ahead, status: statuses.Draw(t, "status"), clock: clocks.Draw(t, "clock")}
	if r.status != pb.Status_STATUS_UNREACHABLE {
		for range rapid.IntRange(1, 4).Draw(t, "ranks") {
			r.ranks = append(r.ranks, drawRank(t))
		}
	}
	m.send1(t, c, r, rapid.IntRange(0, 4).Draw(t, "new stream") == 4)
}

var clocks = rapid.SampledFrom([]int64{1_700_000_000_000, 0, 1, 4_102_444_800_000})

func (m *machine) send1(t *rapid.T, c claim, r report, again bool) {
	m.do(t, func(s *sim) { s.send(c, r, again) }, "report %+v sequence %d %v %v, new stream %v", c, r.sequence, r.status, r.ranks, again)
}

// drawRank draws a rank from one number: most have every field, some lack
// one, few have no room.
func drawRank(t *rapid.T) numbers {
	seed := rapid.IntRange(0, 1<<12-1).Draw(t, "rank")
	n := numbers{}
	for i, f := range fields {
		switch v := float64((seed >> (i % 6)) % 64); f.name {
		case "token_usage", "cache_hit_rate", "utilization":
			n[f.name] = v / 64
		case "gen_throughput", "prefill_throughput":
			n[f.name] = v * 1.5
		default:
			n[f.name] = v
		}
	}
	n["max_total_num_tokens"], n["max_running_requests"] = 1<<20, 64
	switch kind := seed >> 8; kind {
	case 15:
		n["max_total_num_tokens"] = 0
	case 12, 13, 14:
		delete(n, fields[seed%len(fields)].name)
	}
	return n
}

// Spoof claims what is not so.
func (m *machine) Spoof(t *rapid.T) {
	c := claim{host: hosts.Draw(t, "host"), role: pb.Role_ROLE_REGULAR, source: sources.Draw(t, "source")}
	if r := m.world.keeper(c.host); r != nil {
		c.role = r.role
	}
	c.peer = c.host
	switch rapid.IntRange(0, 3).Draw(t, "lie") {
	case 0:
		c.peer = 9
	case 1:
		c.role = pb.Role_ROLE_UNSPECIFIED
	case 2:
		c.broken = true
	default:
		c.host, c.peer = 8, 8
	}
	r := report{source: c.source, sequence: 100, status: pb.Status_STATUS_UNREACHABLE, clock: 1}
	m.send1(t, c, r, true)
}

// Disconnect closes a report stream.
func (m *machine) Disconnect(t *rapid.T) {
	key := drawn(t, m.streams, "stream")
	m.do(t, func(s *sim) { s.disconnect(key) }, "disconnect %s", key)
}

// Lie has a stream change its claim.
func (m *machine) Lie(t *rapid.T) {
	key := drawn(t, m.streams, "stream")
	if s := m.streams[key]; s.model.row.bound != s.model {
		t.SkipNow()
	}
	m.do(t, func(s *sim) { s.lie(key) }, "stream %s claims something else", key)
}

// Wait lets time pass.
func (m *machine) Wait(t *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{
		time.Second, time.Second, 2 * time.Second, 2 * time.Second, 2900 * time.Millisecond, staleAfter, staleAfter,
		5 * time.Second, 100 * time.Millisecond, 11 * time.Second, 31 * time.Second, 61 * time.Second,
	}).Draw(t, "time")
	m.doThen(t, d, func(*sim) {}, "wait")
}

// Edge lets time pass to the expiry of a worker, or one millisecond before or
// after.
func (m *machine) Edge(t *rapid.T) {
	var at time.Time
	for _, r := range m.world.rows {
		at = earlier(at, r.expiry())
	}
	if at.IsZero() {
		t.SkipNow()
	}
	d := time.Until(at) + time.Duration(rapid.IntRange(-1, 1).Draw(t, "milliseconds"))*time.Millisecond
	m.doThen(t, max(0, d), func(*sim) {}, "wait for the edge")
}

// Suspend has the machine sleep.
func (m *machine) Suspend(t *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{10 * time.Second, sleepLimit, sleepLimit + 1, 60 * time.Millisecond}).Draw(t, "time")
	m.do(t, func(s *sim) { s.sleep(d) }, "suspend for %v", d)
}

// SetWallClock sets the wall clock, as the reports are stamped with it.
func (m *machine) SetWallClock(t *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{-time.Hour, time.Hour, -time.Second, 0}).Draw(t, "step")
	m.do(t, func(s *sim) { s.wallStep = d }, "wall clock %v off", d)
}

// Restart replaces the plane by a new one.
func (m *machine) Restart(t *rapid.T) {
	if rapid.IntRange(0, 2).Draw(t, "really") > 0 {
		t.SkipNow()
	}
	m.do(t, (*sim).restart, "restart")
}

// OpenWatch opens a watch, or resumes one with what it holds.
func (m *machine) OpenWatch(t *rapid.T) {
	i := rapid.IntRange(0, watchers-1).Draw(t, "watcher")
	m.do(t, func(s *sim) { s.reopen(i) }, "resume watcher %d", i)
}

// ForgetAndWatch opens a watch without a cursor.
func (m *machine) ForgetAndWatch(t *rapid.T) {
	i := rapid.IntRange(1, watchers-1).Draw(t, "watcher")
	m.do(t, func(s *sim) { s.watchWith(i, func(*pb.Cursor) *pb.Cursor { return nil }) }, "watcher %d asks for a full", i)
}

// Forge opens a watch with a cursor that the plane never gave.
func (m *machine) Forge(t *rapid.T) {
	i := rapid.IntRange(1, watchers-1).Draw(t, "watcher")
	kind := rapid.IntRange(0, 3).Draw(t, "what")
	m.do(t, func(s *sim) {
		s.watchWith(i, func(c *pb.Cursor) *pb.Cursor {
			switch kind {
			case 0:
				c.Version += 1000
			case 1:
				c.Epoch--
			case 2:
				c.FilterHash = 1
			default:
				c.Lineage = "another"
			}
			return c
		})
	}, "watcher %d resumes with a cursor of another kind %d", i, kind)
}

// watchWith opens a watch with a cursor made of the newest one.
func (s *sim) watchWith(i int, change func(*pb.Cursor) *pb.Cursor) {
	if s.alone {
		return
	}
	w := s.watchers[i]
	if w.close != nil {
		w.close()
	}
	w.replica.Resume()
	s.pass(0)
	s.openWith(i, change(&pb.Cursor{Lineage: s.lineage(), Epoch: s.epoch(), Version: s.world.version}))
}

// StopReading has a watcher read nothing for a while.
func (m *machine) StopReading(t *rapid.T) {
	i := rapid.IntRange(1, watchers-1).Draw(t, "watcher")
	m.do(t, func(s *sim) { s.watchers[i].stopReading() }, "watcher %d stops reading", i)
}

// ReadOn has the watchers read again.
func (m *machine) ReadOn(t *rapid.T) {
	m.do(t, func(s *sim) {
		for _, w := range s.watchers {
			w.readOn()
		}
	}, "all watchers read on")
}

// CloseWatch closes a watch; the replica stays.
func (m *machine) CloseWatch(t *rapid.T) {
	i := rapid.IntRange(1, watchers-1).Draw(t, "watcher")
	m.do(t, func(s *sim) {
		if w := s.watchers[i]; w.close != nil {
			w.close()
		}
	}, "watcher %d closes", i)
}
