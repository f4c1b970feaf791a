package loadstat

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/loadstat/message"
	"github.com/loadplane/loadplane/store"
)

// conn is a connection to the socket of a rank. The plane reads what its process
// sent on it, perhaps long after that has ended.
type conn struct {
	rank    int
	session uint64
	process int
	// heard says that it brought a message, cut that the board ended it, and
	// closed that it ended by itself.
	heard, cut, closed bool
}

// world drives a board as the sockets of an engine do, whose processes come and
// go: the sequences of each are below those of the ones before, or somebody was
// refused in between. A load says which process published it.
type world struct {
	t     *testing.T
	rng   *rand.Rand
	board *board
	ranks []*rank
	// process is the one that runs, and base its first sequence. last are the
	// sequences that each rank of each process published last.
	process int
	base    []int64
	last    map[[2]int]int64
	conns   []*conn
	now     store.Instant
	// sources are the processes that sources were seen for.
	sources map[string]int
	// held is a view that was looked at before.
	held *view
	// reports counts those that were made.
	reports int
}

const (
	worldRanks = 3
	worldStale = 50
	highest    = int64(1) << 40
)

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), board: newBoard(), base: []int64{highest},
		last: map[[2]int]int64{}, sources: map[string]int{},
	}
	w.ranks, _ = w.board.move(sockets{host: "10.0.0.1", topic: "load", port: 1, ranks: worldRanks})
	return w
}

// counting returns the connection that counts for a rank, nil for none.
func (w *world) counting(rank int) *conn {
	for _, c := range w.conns {
		if c.rank == rank && !c.cut && !c.closed {
			return c
		}
	}
	return nil
}

// connect connects a rank to the process that runs. A rank of which no sequence
// is known cannot tell processes apart: it comes when those that bring another
// process have ended.
func (w *world) connect() {
	i := w.rng.IntN(worldRanks)
	if w.counting(i) != nil {
		return
	}
	if !w.ranks[i].known && slices.ContainsFunc(w.conns, func(c *conn) bool { return !c.cut && !c.closed && c.process != w.process }) {
		return
	}
	c := &conn{rank: i, process: w.process}
	c.session = w.board.begin(w.ranks[i], netip.AddrPort{}, func() { c.cut = true })
	w.conns = append(w.conns, c)
}

// publish has a connection bring a message, which may be one that was cut.
func (w *world) publish() {
	if len(w.conns) == 0 {
		return
	}
	w.bring(w.conns[w.rng.IntN(len(w.conns))])
}

func (w *world) bring(c *conn) {
	at := [2]int{c.process, c.rank}
	w.last[at] = max(w.last[at], w.base[c.process]) + int64(w.rng.IntN(3))
	m := &message.Stat{Sequence: w.last[at]}
	m.Load = ingest.RankReport{Rank: store.Rank{DPRank: int32(c.process)}}
	r := w.ranks[c.rank]
	counts, known, before := !c.cut && !c.closed, r.known && !r.gone, r.sequence
	v := w.board.hear(r, c.session, m, w.now)
	switch {
	case !counts && v != over:
		w.t.Fatalf("a connection that does not count was heard: %d", v)
	case counts && known && c.heard && m.Sequence < before && (v != over || !c.cut):
		w.t.Fatalf("two processes on one connection: verdict %d, cut %v", v, c.cut)
	case counts && known && m.Sequence > before && v != taken && v != replaced:
		w.t.Fatalf("a new message is not taken: %d", v)
	}
	c.heard = true
}

// close ends a connection, or tells once more of one that ended before, which
// must change nothing.
func (w *world) close() {
	if len(w.conns) == 0 {
		return
	}
	c := w.conns[w.rng.IntN(len(w.conns))]
	r := w.ranks[c.rank]
	before, late := *r, c.cut || c.closed
	c.closed = true
	w.board.end(r, c.session, trouble{ReasonRankSilent, errors.New("x")})
	if late && (r.session != before.session || r.heard != before.heard || r.trouble != before.trouble) {
		w.t.Fatalf("a connection that ended before changed %+v to %+v", before, *r)
	}
}

// restart has another process run, of lower sequences, or of higher ones where
// a rank that was heard is refused in between.
func (w *world) restart() {
	base := w.base[w.process] - 1000
	if i := w.rng.IntN(worldRanks); w.rng.IntN(3) == 0 && w.ranks[i].known {
		if c := w.counting(i); c != nil {
			c.closed = true
			w.board.end(w.ranks[i], c.session, trouble{ReasonRankSilent, errors.New("x")})
		}
		w.board.end(w.ranks[i], 0, trouble{ReasonRankSilent, syscall.ECONNREFUSED})
		base = slices.Max(w.base) + 1_000_000
	}
	w.base = append(w.base, base)
	w.process = len(w.base) - 1
}

// proxied has a connection bring what the process that runs sends.
func (w *world) proxied() {
	for _, c := range w.conns {
		if !c.cut && !c.closed && c.heard && c.process != w.process && w.base[w.process] < w.base[c.process] && w.ranks[c.rank].known {
			c.process = w.process
			w.bring(c)
			return
		}
	}
}

// look makes a report of what is shown now, or of what was shown before.
func (w *world) look() {
	v := w.board.look(w.now, worldStale)
	for i, r := range w.ranks {
		if missing := !r.heard || w.now.Sub(r.received) >= worldStale; missing != slices.Contains(v.missing, i) {
			w.t.Fatalf("missing are the ranks %v; rank %d: %+v", v.missing, i, r)
		}
	}
	if w.held != nil && w.rng.IntN(2) == 0 {
		v = w.held
	}
	w.held = v
	if !v.complete() {
		return
	}
	reports := w.board.take(v)
	if reports == nil {
		return
	}
	w.reports++
	process := reports[0].Rank.DPRank
	for i, r := range reports {
		if r.Rank.DPRank != process {
			w.t.Fatalf("rank 0 is of process %d, rank %d of %d", process, i, r.Rank.DPRank)
		}
	}
	if p, seen := w.sources[v.source]; seen && p != int(process) {
		w.t.Fatalf("the source of process %d is that of %d", process, p)
	}
	w.sources[v.source] = int(process)
}

// TestTwoLivesAreNeverShownTogether has connections come, bring messages, be cut
// and end in any order while processes restart.
func TestTwoLivesAreNeverShownTogether(t *testing.T) {
	reports, sources := 0, 0
	for seed := range uint64(300) {
		w := newWorld(t, seed)
		for range 600 {
			w.now++
			switch n := w.rng.IntN(100); {
			case n < 25:
				w.connect()
			case n < 75:
				w.publish()
			case n < 80:
				w.close()
			case n < 82:
				w.restart()
			case n < 84:
				w.proxied()
			default:
				w.look()
			}
			w.check(seed)
		}
		reports += w.reports
		sources += len(w.sources)
	}
	if reports < 1000 || sources < 300 {
		t.Errorf("%d reports of %d sources: the test holds too little", reports, sources)
	}
}

// check holds that the connections that the board counts are those that stand.
func (w *world) check(seed uint64) {
	for i, r := range w.ranks {
		c := w.counting(i)
		if (c == nil) != (r.session == 0) || c != nil && c.session != r.session {
			w.t.Fatalf("seed %d: rank %d counts session %d, %+v stands", seed, i, r.session, c)
		}
	}
}

// heardBoard returns a board of two ranks that were heard with a sequence each.
func heardBoard(t *testing.T, at store.Instant) (b *board, ranks []*rank, sessions []uint64, cuts *int) {
	t.Helper()
	b, cuts = newBoard(), new(int)
	ranks, _ = b.move(sockets{host: "10.0.0.1", topic: "load", port: 1, ranks: 2})
	for _, r := range ranks {
		session := b.begin(r, netip.AddrPort{}, func() { *cuts++ })
		sessions = append(sessions, session)
		if v := b.hear(r, session, &message.Stat{Sequence: 100}, at); v != taken {
			t.Fatalf("verdict %d", v)
		}
	}
	return b, ranks, sessions, cuts
}

// TestRankThatIsNotHeardIsMissing once it is stale, and not before.
func TestRankThatIsNotHeardIsMissing(t *testing.T) {
	const heard = store.Instant(10 * time.Second)
	b, ranks, sessions, _ := heardBoard(t, heard)
	b.hear(ranks[0], sessions[0], &message.Stat{Sequence: 101}, heard.Add(time.Second))
	for age, missing := range map[time.Duration]string{
		0: "[]", testStale - 1: "[]", testStale: "[1]", testStale + time.Second: "[0 1]",
	} {
		v := b.look(heard.Add(age), testStale)
		if got := fmt.Sprint(v.missing); got != missing || v.fresh != (missing == "[]") {
			t.Errorf("after %s missing are %s, fresh %v", age, got, v.fresh)
		}
		if why := v.failure(); missing != "[]" && v.trouble.reason != ReasonRankSilent || missing == "[]" && why.err != nil {
			t.Errorf("after %s: %+v", age, why)
		}
	}
}

// TestAnotherLifeCutsTheOtherConnections, and the one that brings it where it
// brought the one before as well.
func TestAnotherLifeCutsTheOtherConnections(t *testing.T) {
	b, ranks, sessions, cuts := heardBoard(t, 0)
	v := b.look(1, testStale)
	again := b.begin(ranks[0], netip.AddrPort{}, func() { t.Error("the connection that brings another life is cut") })
	if got := b.hear(ranks[0], again, &message.Stat{Sequence: 1}, 1); got != taken || *cuts != 1 {
		t.Errorf("verdict %d, %d connections are cut", got, *cuts)
	}
	if got := b.hear(ranks[1], sessions[1], &message.Stat{Sequence: 101}, 1); got != over {
		t.Errorf("a connection that was cut is heard: %d", got)
	}
	if b.take(v) != nil {
		t.Error("a report is made of what was seen of another life")
	}
	b, ranks, sessions, cuts = heardBoard(t, 0)
	if got := b.hear(ranks[0], sessions[0], &message.Stat{Sequence: 1}, 1); got != over || *cuts != 2 {
		t.Errorf("verdict %d, %d connections are cut", got, *cuts)
	}
}

// TestMissingRanksAreNamed up to a few of them.
func TestMissingRanksAreNamed(t *testing.T) {
	for want, missing := range map[string][]int{
		"missing are the ranks 3":                     {3},
		"missing are the ranks 0, 11, 12, 13":         {0, 11, 12, 13},
		"missing are the ranks 0, 1, 2, 3 and others": {0, 1, 2, 3, 4},
	} {
		if got := (&view{missing: missing}).names(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
