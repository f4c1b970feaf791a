package series

import (
	"math"

	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
)

// maxPids bounds the processes of one rank that are told apart.
const maxPids = 32

// trace is what was seen of the gauges that one process wrote for one rank.
type trace struct {
	rank int32
	pid  int64
	// sum changes when a gauge does.
	sum uint64
	// quiet counts the pages since a gauge changed or the process was first
	// seen, up to window.
	quiet int
	// moved says that a gauge changed since the process was first seen.
	moved bool
	// chosen says that this process was found to be the one that lives.
	chosen bool
}

// traces are those of this page and of the page before. A file of a process
// that died stays on the pages of its successor for ever (client_python#275).
type traces struct {
	now, before []trace
	// from is where the last rank begins in now, and at is where it may begin in
	// before: both are in the order of ranks.
	from, at int
}

// begin makes room for a page. What is there of a page that was refused after
// all goes; keep makes it stand.
func (t *traces) begin() { t.now, t.from, t.at = t.now[:0], 0, 0 }

// keep ends a page that is read.
func (t *traces) keep() { t.now, t.before = t.before[:0], t.now }

// trace notes what each process wrote for a rank. Ranks come in order.
func (s *Reader) trace(points []point) {
	t := &s.traces
	t.from = len(t.now)
	for i := range points {
		if p := &points[i]; s.family.sources[p.src].kind == cells.Gauge && !t.add(p) {
			t.now = t.now[:t.from] // too many to tell apart
			return
		}
	}
	for t.at < len(t.before) && t.before[t.at].rank < points[0].rank {
		t.at++
	}
	rank := t.now[t.from:]
	for i := range rank {
		rank[i].follow(t.before[t.at:])
	}
	choose(rank)
}

// add adds a gauge to the trace of its process; false for too many processes.
func (t *traces) add(p *point) bool {
	for i := t.from; i < len(t.now); i++ {
		if t.now[i].pid == p.pid {
			t.now[i].sum += mix(p)
			return true
		}
	}
	if len(t.now)-t.from == maxPids {
		return false
	}
	t.now = append(t.now, trace{rank: p.rank, pid: p.pid, sum: mix(p)})
	return true
}

// mix spreads a value and the name of its gauge over 64 bits, by the finalizer
// of SplitMix64.
func mix(p *point) uint64 {
	x := math.Float64bits(p.value) + (uint64(p.src)+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// follow goes on from the trace of the same process on the page before.
func (t *trace) follow(before []trace) {
	for i := range before {
		b := &before[i]
		if b.rank != t.rank {
			return
		}
		if b.pid != t.pid {
			continue
		}
		t.chosen, t.moved, t.quiet = b.chosen, b.moved, min(b.quiet+1, cells.Window)
		if b.sum != t.sum {
			t.moved, t.quiet = true, 0
		}
	}
}

// choose finds the one process of a rank that lives: it moved in the last
// pages and the others did not, or it was found before and all are quiet.
func choose(rank []trace) {
	best := -1
	for i := range rank {
		lives := rank[i].moved && rank[i].quiet < cells.Window
		if (lives || rank[i].chosen) && othersQuiet(rank, i) {
			best = i
		}
	}
	for i := range rank {
		rank[i].chosen = i == best
	}
}

func othersQuiet(rank []trace, except int) bool {
	for i := range rank {
		if i != except && rank[i].quiet < cells.Window {
			return false
		}
	}
	return true
}

// alive returns the process of a rank that lives, where it is known. The rank
// is the last one traced.
func (t *traces) alive(rank int32) (int64, bool) {
	for _, x := range t.now[t.from:] {
		if x.rank == rank && x.chosen {
			return x.pid, true
		}
	}
	return 0, false
}
