package loadstat

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/loadstat/message"
	"github.com/loadplane/loadplane/store"
)

// maxNamed is how many missing ranks are named.
const maxNamed = 4

// trouble is why a rank is not heard. The zero trouble is none.
type trouble struct {
	reason store.Reason
	err    error
}

// board is what is known of the sockets of one engine, across calls of Serve.
// It is safe for concurrent use.
type board struct {
	// news signals that a rank was heard, alarm that one is not any more, or
	// that another life began.
	news, alarm chan struct{}

	mu sync.Mutex
	at sockets
	// ranks are those of at.
	ranks []*rank
	// source names the present life of the engine, and life counts them.
	source string
	life   uint64
	// sessions counts connections, and names them.
	sessions uint64
	// changed says that a value changed since a report was taken, and taken is
	// when its oldest rank was heard.
	changed bool
	taken   store.Instant
}

// rank is what is known of one rank. Its board's lock guards it.
type rank struct {
	// session is the connection that counts, 0 for none; cut ends it.
	session uint64
	cut     func()
	peer    netip.AddrPort
	// sequence is the last of the present life, where known says so, and first
	// that the connection has not brought one yet.
	sequence     int64
	known, first bool
	// gone says that nobody answered at the port since.
	gone bool
	// load was received on this connection, where heard says so. pending says
	// that no report has it yet.
	load           ingest.RankReport
	received       store.Instant
	heard, pending bool
	// trouble is what went wrong since the rank was heard.
	trouble trouble
}

func (r *rank) mute() bool { return !r.heard }

func newBoard() *board {
	b := &board{news: make(chan struct{}, 1), alarm: make(chan struct{}, 1)}
	b.renew(nil)
	return b
}

func poke(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// move takes over where the sockets are. It returns the ranks, and which of
// them are where they were. Where none is, another process is behind them.
func (b *board) move(to sockets) (ranks []*rank, kept []bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	from := b.at
	b.at = to
	ranks, kept = make([]*rank, to.ranks), make([]bool, to.ranks)
	for i := range ranks {
		if kept[i] = from.same(&to, i); kept[i] {
			ranks[i] = b.ranks[i]
			ranks[i].trouble = trouble{}
		} else {
			ranks[i] = new(rank)
		}
	}
	b.ranks = ranks
	if !kept[0] {
		b.renew(nil)
	}
	return ranks, kept
}

// now returns which life it is.
func (b *board) now() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.life
}

// begin makes a new connection the one that counts for a rank. cut ends it.
func (b *board) begin(r *rank, peer netip.AddrPort, cut func()) (session uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions++
	r.session, r.cut, r.peer, r.first = b.sessions, cut, peer, true
	return r.session
}

// end ends a connection, or an attempt to make one (session 0), and notes why.
// One that does not count any more leaves nothing.
func (b *board) end(r *rank, session uint64, why trouble) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.session != session {
		return
	}
	r.session, r.heard, r.pending, r.cut = 0, false, false, nil
	r.gone = r.known && (r.gone || errors.Is(why.err, syscall.ECONNREFUSED))
	r.trouble = why
	poke(b.alarm)
}

// verdict is what became of a message.
type verdict uint8

const (
	// taken: it is the rank's load now; replaced: so it is, and the one before
	// it is in no report.
	taken verdict = iota
	replaced
	// repeated: it has the sequence of the one before.
	repeated
	// over: the connection does not count any more.
	over
)

// hear takes a message that came on a connection of a rank. A sequence that
// goes back is another life of the engine, and so is what is heard after the
// port was closed: all that was heard is forgotten, and every other connection
// is cut, as it may still bring what the one before sent. On one connection two
// lives can only be told apart by cutting it too.
func (b *board) hear(r *rank, session uint64, m *message.Stat, at store.Instant) verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case r.session != session:
		return over
	case r.gone:
		b.renew(r)
	case !r.known || m.Sequence > r.sequence:
	case m.Sequence == r.sequence:
		return repeated
	case !r.first:
		b.renew(nil)
		return over
	default:
		b.renew(r)
	}
	v := taken
	if r.pending {
		v = replaced
	}
	b.changed = b.changed || !r.heard || r.load != m.Load
	r.sequence, r.known, r.first = m.Sequence, true, false
	r.load, r.received, r.heard, r.pending = m.Load, at, true, true
	r.trouble = trouble{}
	poke(b.news)
	return v
}

// renew begins another life. The connection of one rank may be kept.
func (b *board) renew(keep *rank) {
	b.source = "loadstat-" + rand.Text()
	b.life++
	for _, r := range b.ranks {
		r.known, r.gone, r.heard, r.pending, r.trouble = false, false, false, false, trouble{}
		if r == keep || r.session == 0 {
			continue
		}
		r.cut()
		r.session, r.cut = 0, nil
	}
	poke(b.alarm)
}

// view is what a board shows at one moment. It is for one goroutine.
type view struct {
	source string
	life   uint64
	// missing are the ranks that are not heard, of all; the trouble is that of
	// the first of them that has any.
	missing  []int
	all      int
	trouble  trouble
	troubled int
	// closed says that nobody answers at the port of any rank that was heard.
	closed bool
	// oldest is when the rank was heard that was not for longest, peer whose
	// connection that of rank 0 is. fresh says that there is something to
	// report.
	oldest store.Instant
	peer   netip.AddrPort
	fresh  bool
}

func (v *view) complete() bool { return len(v.missing) == 0 }

// look returns what the board shows. A rank that was not heard for staleAfter
// is missing.
func (b *board) look(now store.Instant, staleAfter time.Duration) *view {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := &view{source: b.source, life: b.life, all: len(b.ranks), closed: len(b.ranks) > 0, oldest: now}
	for i, r := range b.ranks {
		v.closed = v.closed && r.gone
		if r.heard && now.Sub(r.received) < staleAfter {
			v.oldest = min(v.oldest, r.received)
			continue
		}
		v.missing = append(v.missing, i)
		v.blame(i, r)
	}
	if v.complete() && v.all > 0 {
		v.peer, v.fresh = b.ranks[0].peer, b.changed || v.oldest > b.taken
	}
	return v
}

// blame takes over the trouble of a missing rank.
func (v *view) blame(i int, r *rank) {
	why := r.trouble
	if r.heard {
		why = trouble{ReasonRankSilent, errors.New("nothing came for too long")}
	}
	if v.trouble.err == nil && why.err != nil {
		v.trouble, v.troubled = why, i
	}
}

// failure says why there is no report; none while it is too early to say.
func (v *view) failure() trouble {
	switch {
	case v.trouble.err == nil:
		return trouble{}
	case len(v.missing) == v.all:
		return trouble{v.trouble.reason, fmt.Errorf("rank %d of %d: %w", v.troubled, v.all, v.trouble.err)}
	}
	// It is text, as an error of some ranks is not the engine's.
	return trouble{ReasonRanksMissing, errors.New(v.names() + fmt.Sprintf(" of %d: rank %d: ", v.all, v.troubled) + v.trouble.err.Error())}
}

// names lists the missing ranks.
func (v *view) names() string {
	named := v.missing[:min(len(v.missing), maxNamed)]
	list := strings.ReplaceAll(strings.Trim(fmt.Sprint(named), "[]"), " ", ", ")
	if len(named) < len(v.missing) {
		list += " and others"
	}
	return "missing are the ranks " + list
}

// take returns what all ranks published last, for a report; nil where the board
// shows another life by now, or a rank is not heard any more.
func (b *board) take(v *view) []ingest.RankReport {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life != v.life || len(b.ranks) != v.all || slices.ContainsFunc(b.ranks, (*rank).mute) {
		return nil
	}
	reports := make([]ingest.RankReport, v.all)
	for i, r := range b.ranks {
		reports[i] = r.load
		r.pending = false
	}
	b.changed, b.taken = false, v.oldest
	return reports
}
