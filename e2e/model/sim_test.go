package model

import (
	"fmt"
	"hash/maphash"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing/synctest"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"pgregory.net/rapid"
)

// watchers is how many a simulation has. The first one asks for fulls only
// and is open all the time.
const watchers = 4

// sim is a plane with its engines and readers, beside the world that predicts
// it. It lives in one bubble.
type sim struct {
	*rapid.T
	// alone says that nobody watches.
	alone bool
	dir   string
	lives int
	plane *plane
	world *world
	// listed is the workers file.
	listed   map[string]listing
	streams  map[string]*engineStream // by host and source
	watchers [watchers]*watcher
	history  *history
	slept    atomic.Int64
	// wallStep is how far the wall clock was set.
	wallStep time.Duration
	// checked is what was last compared.
	checked struct {
		state   *store.State
		commits int
		json    uint64
	}
}

// engineStream is a report stream of an engine, with the model's side of it.
type engineStream struct {
	claim   claim
	binding *registry.Binding
	model   *stream
}

func newSim(t *rapid.T, dir string, alone bool) *sim {
	s := &sim{
		T: t, alone: alone, dir: dir, listed: map[string]listing{},
		history: &history{seed: maphash.MakeSeed(), seen: map[versionName]content{}, counts: map[string]int{}},
	}
	for i := range s.watchers {
		s.watchers[i] = &watcher{
			name: fmt.Sprintf("watcher %d", i), fullOnly: i == 0, history: s.history, heard: map[identity]uint64{},
		}
	}
	s.writeFile()
	s.begin()
	return s
}

// begin starts a plane: a new lineage that knows nobody.
func (s *sim) begin() {
	s.lives++
	s.streams = map[string]*engineStream{}
	s.world = newWorld(time.Now())
	s.checked.json = 0
	base := s.slept.Load()
	s.plane = newPlane(s.T, planeOptions{
		life: s.lives, workersFile: s.file(), serve: !s.alone,
		sleptFor: func() time.Duration { return time.Duration(s.slept.Load() - base) },
	})
	s.plane.registry.Rediscover()
	s.world.reconcile(s.listed)
	s.reopen(0)
}

// end stops all. It may be called when begin failed.
func (s *sim) end() {
	for _, w := range s.watchers {
		if w.close != nil {
			w.close()
		}
	}
	if s.plane != nil {
		s.plane.stop()
	}
}

// pass lets time pass for the plane and for the world.
func (s *sim) pass(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
	synctest.Wait()
	s.world.advance(time.Now())
}

func (s *sim) file() string { return filepath.Join(s.dir, "workers.yaml") }

// writeFile writes the workers file.
func (s *sim) writeFile() {
	var b strings.Builder
	b.WriteString("workers:\n")
	if len(s.listed) == 0 {
		b.Reset()
		b.WriteString("workers: []\n")
	}
	for _, id := range sorted(s.listed) {
		l := s.listed[id]
		fmt.Fprintf(&b, "- {id: %s, url: %q, role: %s, dialect: %s, draining: %t", id, l.url(), roleWords[l.role], dialectWords[l.dialect], l.draining)
		if len(l.models) > 0 {
			fmt.Fprintf(&b, ", model: [%s]", strings.Join(l.models, ", "))
		}
		if l.zone != "" {
			fmt.Fprintf(&b, ", zone: %s", l.zone)
		}
		if l.label != "" {
			fmt.Fprintf(&b, ", label: {tier: %s}", l.label)
		}
		b.WriteString("}\n")
	}
	must(s.T, os.WriteFile(s.file(), []byte(b.String()), 0o600))
}

var (
	roleWords = map[pb.Role]string{
		pb.Role_ROLE_REGULAR: "plain", pb.Role_ROLE_PREFILL: "prefill", pb.Role_ROLE_DECODE: "decode",
	}
	dialectWords = map[pb.Dialect]string{pb.Dialect_DIALECT_PUSH: "push", pb.Dialect_DIALECT_NONE: "none"}
)

// list replaces the workers file.
func (s *sim) list(change func(listed map[string]listing)) {
	s.listed = maps.Clone(s.listed)
	change(s.listed)
	s.writeFile()
	s.plane.registry.Rediscover()
	s.world.reconcile(s.listed)
}

// restart ends the plane and starts another on the same workers file.
func (s *sim) restart() {
	for _, w := range s.watchers {
		w.readOn()
		w.excused = true
	}
	s.history.count("restart")
	s.plane.stop()
	s.pass(time.Millisecond) // the epoch has to rise
	s.begin()
}

// send sends a report by the stream of its source, or by a new one.
func (s *sim) send(c claim, r report, again bool) {
	r.received = time.Now()
	key := fmt.Sprint(c.host, c.source)
	st := s.streams[key]
	if st == nil || again {
		s.bind(c, &r)
		return
	}
	want := s.world.admit(st.model, &r)
	got := st.binding.Admit(s.load(&r))
	if want == "ended" {
		delete(s.streams, key)
		if got == nil {
			s.Fatalf("a report of a stream that ended was admitted: %+v", r)
		}
		return
	}
	s.sameRefusal(got, want)
}

func (s *sim) bind(c claim, r *report) {
	model, want := s.world.bind(c, r)
	addr := fmt.Sprintf("10.0.0.%d:30000", c.host)
	if c.broken {
		addr = "ftp://nowhere"
	}
	b, err := s.plane.registry.Bind(registry.Claim{
		Addr: addr, Role: store.Role(c.role), Source: c.source,
		Peer: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(c.peer)}), 5555),
	}, s.load(r))
	s.sameRefusal(err, want)
	if err == nil {
		s.streams[fmt.Sprint(c.host, c.source)] = &engineStream{c, b, model}
	}
}

// sameRefusal checks I-13: the reason, and that it alone was counted.
func (s *sim) sameRefusal(got error, want string) {
	s.Helper()
	reason := ""
	if why, ok := got.(*registry.Refusal); ok { //nolint:errorlint // it is never wrapped
		reason = string(why.Reason)
	}
	if reason != "" {
		s.history.count("refused: " + reason)
	}
	if reason != want || (got == nil) != (want == "") {
		s.Fatalf("I-13: got %v, want a refusal %q", got, want)
	}
	if counted := s.plane.refusals(s.T); !maps.Equal(counted, s.world.refused) {
		s.Fatalf("I-13: refusals are counted as %v, want %v", counted, s.world.refused)
	}
}

// load returns a report as ingest hands it on.
func (s *sim) load(r *report) *store.Load {
	l := &store.Load{
		Source: r.source, Sequence: r.sequence, Status: store.Status(r.status), ReportUnixMs: r.clock,
		Received: s.plane.clock.Now(), ReceivedUnixMs: time.Now().Add(s.wallStep).UnixMilli(),
	}
	for dp, n := range r.ranks {
		rank := store.Rank{DPRank: int32(dp)}
		for f, info := range store.Fields {
			v, known := n[info.Name]
			switch {
			case !known:
			case info.Float:
				rank.SetFloat(store.Field(f), v)
			default:
				rank.SetCount(store.Field(f), int64(v))
			}
		}
		l.Ranks = append(l.Ranks, rank)
		l.Samples = append(l.Samples, store.Sample{TimeUnixMs: r.clock, PrefillUncachedTokens: -1, PrefillBusyUs: -1, GeneratedTokens: -1})
	}
	return l
}

// disconnect closes the stream of an engine.
func (s *sim) disconnect(key string) {
	st := s.streams[key]
	st.binding.Close()
	s.world.end(st.model, "")
	delete(s.streams, key)
}

// lie has a later message of a stream claim another role.
func (s *sim) lie(key string) {
	st := s.streams[key]
	err := st.binding.Check(registry.Claim{Addr: "10.0.0.99:1", Role: store.Role(st.claim.role), Source: st.claim.source})
	if err == nil {
		s.Fatal("another claim was let pass")
	}
	s.world.end(st.model, "claim_changed")
	delete(s.streams, key)
	if counted := s.plane.refusals(s.T); !maps.Equal(counted, s.world.refused) {
		s.Fatalf("I-13: refusals are counted as %v, want %v", counted, s.world.refused)
	}
}

func (s *sim) sleep(d time.Duration) {
	s.slept.Add(int64(d))
	s.world.slept += d
}

// reopen ends what a watcher has open and resumes it.
func (s *sim) reopen(i int) {
	if s.alone {
		return
	}
	if w := s.watchers[i]; w.close != nil {
		w.close()
	}
	s.openWith(i, s.watchers[i].replica.Resume())
}

// openWith opens a watch with a cursor and checks what it begins with.
func (s *sim) openWith(i int, cursor *pb.Cursor) {
	w := s.watchers[i]
	s.pass(0)
	must(s.T, w.open(s.plane, cursor))
	s.pass(0)
	must(s.T, w.opened(s.world, versionName{lineage: s.lineage(), epoch: s.epoch()}))
}

func (s *sim) lineage() string { return s.plane.store.Options().Lineage }
func (s *sim) epoch() uint64   { return s.plane.store.Options().Epoch }
