package model

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/loadplane/loadplane/client"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// rounding is what is lost where an instant becomes whole milliseconds: up at
// one end of a validity and down at the other.
const rounding = time.Millisecond

// check holds everything that can be seen against the world.
func (s *sim) check() {
	s.Helper()
	if state, _ := s.plane.store.Current(); s.checked.state != state || s.checked.commits != s.world.commits {
		s.published()
		s.checked.state, s.checked.commits = state, s.world.commits
	}
	for _, w := range s.watchers {
		if err := s.watched(w); err != nil {
			s.Fatalf("%s: %v", w.name, err)
		}
	}
}

// published checks what the plane shows. JSON, which costs most, is read at
// every new version, and now and then for a receipt.
func (s *sim) published() {
	s.Helper()
	for _, r := range s.world.rows {
		s.history.count(fmt.Sprintf("shown %s %s", freshnessWords[r.freshness], r.reason))
	}
	must(s.T, s.plane.builder.Check())
	got := s.plane.snapshot(s.T)
	must(s.T, s.history.note(&sighting{
		"GetSnapshot", nameOf(got.GetCursor()), got.GetDigest(), got.GetWarming(), got.GetFull().GetWorkers(), got.GetFull().GetPools(),
	}))
	must(s.T, s.content(got))
	must(s.T, s.receipts(got))
	if version := got.GetCursor().GetVersion(); s.checked.json != version || s.world.commits%4 == 0 {
		must(s.T, s.json(s.plane.page(s.T), got))
		s.checked.json = version
	}
}

// content compares a full with the world.
func (s *sim) content(m *pb.WatchSnapshotsResponse) error {
	w := s.world
	if m.GetCursor().GetVersion() != w.version || m.GetWarming() != w.warming {
		return fmt.Errorf("I-01, I-03: version %d, warming %v, want %d, %v", m.GetCursor().GetVersion(), m.GetWarming(), w.version, w.warming)
	}
	got := m.GetFull().GetWorkers()
	if len(got) != len(w.rows) {
		return fmt.Errorf("I-09: %d workers, want %d", len(got), len(w.rows))
	}
	var digest uint64
	for i, r := range w.rows {
		if err := r.sameAs(got[i]); err != nil {
			return fmt.Errorf("worker %s of version %d: %w", r.id, w.version, err)
		}
		digest += got[i].GetContentHash()
	}
	if digest != m.GetDigest() {
		return fmt.Errorf("I-02: digest %x, want %x", m.GetDigest(), digest)
	}
	return checkPools(got, m.GetFull().GetPools())
}

// sameAs compares a worker with what was committed of it.
func (r *row) sameAs(got *pb.Worker) error {
	want := &pb.Worker{
		WorkerId: r.id, Url: r.shown.url(), Role: r.role, Models: r.shown.models, Draining: r.shown.draining,
		Dialect: r.dialect, Freshness: r.freshness, FreshnessReason: r.reason,
	}
	source := ""
	var ranks []numbers
	if r.last != nil {
		source, ranks = r.last.source, r.last.ranks
		want.Status = r.last.status
	}
	same := func(what string, got, want any) error {
		if got != want {
			return fmt.Errorf("%s is %v, want %v", what, got, want)
		}
		return nil
	}
	for _, err := range []error{
		same("worker_id", got.GetWorkerId(), want.GetWorkerId()),
		same("url", got.GetUrl(), want.GetUrl()),
		same("role", got.GetRole(), want.GetRole()),
		same("models", fmt.Sprint(got.GetModels()), fmt.Sprint(want.GetModels())),
		same("zone", got.GetZone(), r.shown.zone),
		same("label", got.GetLabels()["tier"], r.shown.label),
		same("draining", got.GetDraining(), want.GetDraining()),
		same("dialect", got.GetDialect(), want.GetDialect()),
		same("source", got.GetSourceInstanceId(), source),
		same("status", got.GetStatus(), want.GetStatus()),
		same("freshness", got.GetFreshness(), want.GetFreshness()),
		same("reason", got.GetFreshnessReason(), want.GetFreshnessReason()),
		same("suspect", slices.Contains(got.GetFlags(), "suspect"), r.suspect),
		same("partial", got.GetPartial(), r.last != nil && r.last.any(lacksCore)),
	} {
		if err != nil {
			return err
		}
	}
	return checkRanks(got, ranks)
}

func lacksCore(n numbers) bool {
	for _, f := range fields {
		if _, known := n[f.name]; f.core && !known {
			return true
		}
	}
	return false
}

// checkRanks checks I-05: the ranks are those of one report, and the
// aggregate follows from them.
func checkRanks(got *pb.Worker, want []numbers) error {
	if len(got.GetRanks()) != len(want) {
		return fmt.Errorf("I-05: %d ranks, want %d", len(got.GetRanks()), len(want))
	}
	for i, rank := range got.GetRanks() {
		if n := numbersOf(rank); int(rank.GetDpRank()) != i || !maps.Equal(n, want[i]) {
			return fmt.Errorf("I-05: rank %d has %v, want %v", rank.GetDpRank(), n, want[i])
		}
	}
	if (got.GetAggregate() == nil) != (len(want) == 0) {
		return fmt.Errorf("I-05: aggregate %v over %d ranks", got.GetAggregate(), len(want))
	}
	if len(want) == 0 {
		return nil
	}
	sums := addUp(want)
	sums["max_rank_token_usage"] = largest(want, "token_usage")
	return checkAggregate(got.GetAggregate(), sums, len(want))
}

// receipts compares the liveness of a full.
func (s *sim) receipts(m *pb.WatchSnapshotsResponse) error {
	heard := map[uint32]*pb.WorkerLiveness{}
	for _, l := range m.GetLiveness().GetWorkers() {
		heard[l.GetRow()] = l
	}
	for i, r := range s.world.rows {
		l := heard[m.GetFull().GetWorkers()[i].GetRow()]
		delete(heard, m.GetFull().GetWorkers()[i].GetRow())
		if (l != nil) != (r.last != nil) {
			return fmt.Errorf("I-08: %s: receipt %v, report %v", r.id, l, r.last)
		}
		if l == nil {
			continue
		}
		received, until := s.millis(r.receipt), s.millis(r.receipt.Add(staleAfter))
		if l.GetSequenceId() != r.last.sequence || l.GetReceivedMs() != received || l.GetValidUntilMs() != until || l.GetReportUnixMs() != r.last.clock {
			return fmt.Errorf("I-06, I-08: %s: receipt %v, want sequence %d, received %d, valid until %d", r.id, l, r.last.sequence, received, until)
		}
	}
	if len(heard) > 0 {
		return fmt.Errorf("I-02: receipts of rows that are not there: %v", heard)
	}
	return nil
}

// millis returns an instant as the plane's clock shows it.
func (s *sim) millis(at time.Time) uint64 {
	return uint64(max(0, (at.Sub(s.world.start)+1)/time.Millisecond)) // the clock starts at 1 ns
}

// json compares the JSON snapshot with the message.
func (s *sim) json(p *page, m *pb.WatchSnapshotsResponse) error {
	c := m.GetCursor()
	if p.Version != c.GetVersion() || p.Lineage != c.GetLineage() || p.Epoch != c.GetEpoch() || p.Warming != m.GetWarming() || len(p.Workers) != len(s.world.rows) {
		return fmt.Errorf("I-03: JSON of %s/%d/%d with %d workers, want %v", p.Lineage, p.Epoch, p.Version, len(p.Workers), c)
	}
	for i, got := range p.Workers {
		r := s.world.rows[i]
		reason, source, validFor := value(got.FreshnessReason), value(got.Source), value(got.ValidFor)
		if got.WorkerID != r.id || got.Freshness != freshnessWords[r.freshness] || reason != r.reason {
			return fmt.Errorf("I-03: JSON has %s %s %q, want %s %v %q", got.WorkerID, got.Freshness, reason, r.id, r.freshness, r.reason)
		}
		if r.last == nil {
			continue
		}
		left := max(0, time.Until(r.receipt.Add(staleAfter)).Milliseconds())
		if source != r.last.source || value(got.Sequence) != r.last.sequence || validFor > left || validFor < left-1 {
			return fmt.Errorf("I-03, I-06: JSON has source %q, sequence %d, valid for %d ms, want %q, %d, %d", source, value(got.Sequence), validFor, r.last.source, r.last.sequence, left)
		}
		for dp, rank := range got.Ranks {
			for _, f := range fields {
				v, known := r.last.ranks[dp][f.name]
				if known != (rank[f.name] != nil) || v != value(rank[f.name]) {
					return fmt.Errorf("I-03: JSON of %s has %s %v on rank %d, want %v", r.id, f.name, value(rank[f.name]), dp, v)
				}
			}
		}
	}
	return nil
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

var freshnessWords = map[pb.Freshness]string{
	pb.Freshness_FRESHNESS_MISSING: "missing", pb.Freshness_FRESHNESS_FRESH: "fresh",
	pb.Freshness_FRESHNESS_STALE: "stale", pb.Freshness_FRESHNESS_UNREACHABLE: "unreachable",
}

// watched checks what a watcher holds. One that reads holds the newest
// version; of the others it is known that nothing is valid too long.
func (s *sim) watched(w *watcher) error {
	if cut, excused := w.cut(); cut && !excused {
		return fmt.Errorf("the plane ended a stream that was read")
	} else if cut {
		s.history.count("seen cut")
	}
	view, lag, err := w.at()
	if err != nil || view == nil {
		return err
	}
	if view.Lineage() != s.lineage() {
		if w.reads() && !s.world.warming {
			return fmt.Errorf("I-09: still holds %s, although %s is not warming", view.Lineage(), s.lineage())
		}
		return nil
	}
	if w.reads() && !w.current() {
		s.history.count("spaced")
		return s.valid(w, view, lag)
	}
	if w.reads() && view.Version() != s.world.version {
		return fmt.Errorf("I-04: holds version %d, want %d", view.Version(), s.world.version)
	}
	return s.valid(w, view, lag)
}

// valid checks I-06: a worker is valid exactly while it is fresh and its
// report young enough. A receipt alone wakes nobody, so that of an equal
// report comes with the next heartbeat.
func (s *sim) valid(w *watcher, view *client.View, lag time.Duration) error {
	now := time.Now()
	for _, r := range s.world.rows {
		worker := view.Worker(r.id)
		if worker == nil || r.last == nil {
			continue
		}
		until := r.receipt.Add(staleAfter)
		valid := view.Valid(worker, now)
		if valid && !now.Before(until.Add(lag)) && s.sameRow(worker) {
			return fmt.Errorf("I-06: %s is valid %v after its last report", r.id, now.Sub(r.receipt))
		}
		told := now.Sub(r.receipt) > heartbeat+settle
		if !valid && told && w.reads() && w.current() && r.freshness == pb.Freshness_FRESHNESS_FRESH && now.Before(until.Add(-2*rounding)) {
			return fmt.Errorf("I-06: %s is not valid %v after its last report", r.id, now.Sub(r.receipt))
		}
	}
	return nil
}

// sameRow says that a worker that a watcher holds is the one of its id now.
func (s *sim) sameRow(held *pb.Worker) bool {
	st, _ := s.plane.store.Current()
	_, there := st.Find(held.GetRow())
	return there
}

// checkPools checks I-05 for pools: each model and role has one, and its
// numbers follow from its workers.
func checkPools(workers []*pb.Worker, got []*pb.Pool) error {
	type key struct {
		model string
		role  pb.Role
	}
	members := map[key][]*pb.Worker{}
	for _, w := range workers {
		models := w.GetModels()
		if len(models) == 0 {
			models = []string{""}
		}
		for _, m := range models {
			members[key{m, w.GetRole()}] = append(members[key{m, w.GetRole()}], w)
		}
	}
	if len(got) != len(members) {
		return fmt.Errorf("I-05: %d pools, want %d", len(got), len(members))
	}
	for _, p := range got {
		if err := checkPool(p, members[key{p.GetKey().GetModel(), p.GetKey().GetRole()}]); err != nil {
			return fmt.Errorf("pool %v: %w", p.GetKey(), err)
		}
	}
	return nil
}

func checkPool(p *pb.Pool, members []*pb.Worker) error {
	count := map[pb.Freshness]uint32{}
	var parts []numbers
	ranks := 0
	for _, w := range members {
		count[w.GetFreshness()]++
		if w.GetFreshness() == pb.Freshness_FRESHNESS_FRESH {
			parts = append(parts, sumsOf(w.GetAggregate()))
			ranks += len(w.GetRanks())
		}
	}
	got := []uint32{p.GetWorkers(), p.GetFresh(), p.GetStale(), p.GetMissing(), p.GetUnreachable()}
	want := []uint32{
		uint32(len(members)), count[pb.Freshness_FRESHNESS_FRESH], count[pb.Freshness_FRESHNESS_STALE],
		count[pb.Freshness_FRESHNESS_MISSING], count[pb.Freshness_FRESHNESS_UNREACHABLE],
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("I-05: counts %v, want %v", got, want)
	}
	if (p.GetAggregate() == nil) != (len(parts) == 0) {
		return fmt.Errorf("I-05: aggregate %v over %d fresh workers", p.GetAggregate(), len(parts))
	}
	if len(parts) == 0 {
		return nil
	}
	sums := addUp(parts)
	sums["max_rank_token_usage"] = largest(parts, "max_rank_token_usage")
	return checkAggregate(p.GetAggregate(), sums, ranks)
}

// addUp adds up what every part has, and derives the rest.
func addUp(parts []numbers) numbers {
	sums := numbers{}
	for _, name := range summed {
		total, known := 0.0, true
		for _, p := range parts {
			v, ok := p[name]
			total, known = total+v, known && ok
		}
		if known {
			sums[name] = total
		}
	}
	derive := func(name, a, b string, f func(a, b float64) float64) {
		va, okA := sums[a]
		if vb, okB := sums[b]; okA && okB {
			sums[name] = f(va, vb)
		}
	}
	derive("total_requests", "num_running_reqs", "num_waiting_reqs", func(a, b float64) float64 { return a + b })
	derive("free_tokens", "max_total_num_tokens", "num_used_tokens", func(a, b float64) float64 { return max(0, a-b) })
	derive("available_slots", "max_running_requests", "num_running_reqs", func(a, b float64) float64 { return max(0, a-b) })
	derive("request_utilization", "num_running_reqs", "max_running_requests", ratio)
	derive("queue_pressure", "num_waiting_uncached_tokens", "gen_throughput", ratio)
	return sums
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// largest returns the largest of what every part has, NaN where one lacks it.
func largest(parts []numbers, name string) float64 {
	most := 0.0
	for _, p := range parts {
		v, ok := p[name]
		if !ok {
			return math.NaN()
		}
		most = max(most, v)
	}
	return most
}

func checkAggregate(got *pb.Aggregate, want numbers, ranks int) error {
	if int(got.GetRankCount()) != ranks {
		return fmt.Errorf("I-05: rank_count %d, want %d", got.GetRankCount(), ranks)
	}
	have := sumsOf(got)
	for _, name := range append(derived, summed...) {
		v, known := have[name]
		w, expected := want[name]
		if expected = expected && !math.IsNaN(w); known != expected || known && math.Abs(v-w) > 1e-9*max(1, math.Abs(w)) {
			return fmt.Errorf("I-05: %s is %v (known %v), want %v (known %v)", name, v, known, w, expected)
		}
	}
	return nil
}
