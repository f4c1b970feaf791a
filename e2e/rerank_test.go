package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// sims starts engines in one process and returns their URLs and the path of
// their workers file.
func sims(t *testing.T, engines int, args ...string) (urls []string, workers string) {
	t.Helper()
	workers = filepath.Join(t.TempDir(), "workers.yaml")
	p := start(t, append([]string{"sim", fmt.Sprintf("--engines=%d", engines), "--write-workers=" + workers}, args...)...)
	p.next(p.out, func(line string) bool {
		if strings.HasPrefix(line, "http://") {
			urls = append(urls, line)
		}
		return len(urls) == engines
	})
	return urls, workers
}

// worker is what the view has of a worker; never nil.
func (v *view) worker(id string) *loadplanev1.Worker {
	for _, w := range v.workers {
		if w.GetWorkerId() == id {
			return w
		}
	}
	return &loadplanev1.Worker{}
}

func isFresh(w *loadplanev1.Worker) bool {
	return w.GetFreshness() == loadplanev1.Freshness_FRESHNESS_FRESH
}

// rerankAfter is when engines begin to lose half of their ranks: time for a
// loaded machine to have seen all of them before.
const rerankAfter = 10 * time.Second

// rerankFaults are the faults of the first engines of a fleet, one after the
// other.
func rerankFaults(engines int) (args []string) {
	for i := range engines {
		at := rerankAfter + time.Duration(i)*300*time.Millisecond
		args = append(args, fmt.Sprintf("--fault=rerank:engine=%d,ranks=4,after=%v", i, at))
	}
	return args
}

// ranked returns the kinds with ranks that discovery lists, and their names.
func ranked() (all []kind, names []string) {
	for _, k := range listed {
		if k.ranks > 1 {
			all, names = append(all, k), append(names, k.name)
		}
	}
	return all, names
}

// quiet watches a plane on which nothing but the ranks of some engines changes.
type quiet struct {
	t *testing.T
	// kinds are those of the workers that lose ranks; bystanders have none.
	kinds map[string]kind
	// before is the content at the last version, and changes how often that of
	// a worker became another one.
	before  map[string]uint64
	changes map[string]int
	version uint64
	// since is the server's clock at the last version.
	since uint64
}

// see takes a view, and says whether nothing has changed for a while.
func (q *quiet) see(v *view) (still bool) {
	version, now := v.last.GetCursor().GetVersion(), v.last.GetServerClockMs()
	if version != q.version {
		q.next(v)
		q.version, q.since = version, now
	}
	return now-q.since > 2500
}

// next takes another version.
func (q *quiet) next(v *view) {
	var changed []string
	for _, w := range v.workers {
		id, hash := w.GetWorkerId(), w.GetContentHash()
		if q.before[id] != 0 && q.before[id] != hash {
			changed = append(changed, id)
			q.changes[id]++
			q.t.Logf("version %d: %s (%s) is of %s, %d ranks, prefill rate %v", v.last.GetCursor().GetVersion(), id, q.kinds[id].name,
				w.GetSourceInstanceId(), len(w.GetRanks()), w.GetAggregate().PrefillThroughput != nil)
		}
		q.before[id] = hash
		q.check(w)
	}
	if q.version != 0 && len(changed) == 0 {
		q.t.Errorf("version %d changes no worker", v.last.GetCursor().GetVersion())
	}
}

// check says what is wrong with a worker at any time.
func (q *quiet) check(w *loadplanev1.Worker) {
	if n := len(w.GetRanks()); !isFresh(w) || n != 8 && (n != 4 || q.kinds[w.GetWorkerId()].name == "") {
		q.t.Errorf("%s (%s) is %v/%s with %d ranks", w.GetWorkerId(), q.kinds[w.GetWorkerId()].name, w.GetFreshness(), w.GetFreshnessReason(), n)
	}
	for i, r := range w.GetRanks() {
		if int(r.GetDpRank()) != i {
			q.t.Errorf("%s has rank %d in place %d", w.GetWorkerId(), r.GetDpRank(), i)
		}
	}
}

// On a plane on which nothing else changes, another number of ranks of an
// engine is one version, in any dialect; and one more where rates come of two
// pages, with the second page.
func TestRerankIsOneVersion(t *testing.T) {
	t.Parallel()
	list, names := ranked()
	idle := []string{"--idle-load", "--ranks=8"}
	urls, workers := sims(t, 2*len(list), slices.Concat(idle, rerankFaults(len(list)), []string{"--kinds=" + strings.Join(names, ",")})...)
	p := serve(t, "--report-interval=500ms", "--stale-after=4s", "--workers-file="+workers)
	own, _ := sims(t, 2, slices.Concat(idle, rerankFaults(1), []string{"--kinds=native", p.flag()})...)

	q := &quiet{t: t, kinds: map[string]kind{own[0]: native}, before: map[string]uint64{}, changes: map[string]int{}}
	for i, k := range list {
		q.kinds[urls[i]] = k
	}
	p.until(20*time.Second, "eight ranks of all", func(v *view) bool {
		return v.fresh() == len(urls)+len(own) && !slices.ContainsFunc(v.workers, func(w *loadplanev1.Worker) bool {
			return len(w.GetRanks()) != 8 || w.GetDialect() == loadplanev1.Dialect_DIALECT_POLL && w.GetRanks()[0].GenThroughput == nil
		})
	})
	var first, last uint64
	p.until(60*time.Second, "four ranks of the first of each kind", func(v *view) bool {
		still := q.see(v)
		if first == 0 {
			first = q.version
		}
		last = q.version
		for id := range q.kinds {
			still = still && len(v.worker(id).GetRanks()) == 4
		}
		return still
	})
	total := 0
	for _, id := range slices.Concat(urls, own) {
		k, victim := q.kinds[id]
		want := 0
		switch {
		case victim && k.name == "vllm":
			want = 2
		case victim:
			want = 1
		}
		if q.changes[id] != want {
			t.Errorf("%s (%s) changed %d times, want %d", id, k.name, q.changes[id], want)
		}
		total += want
	}
	if n := int(last - first); n > total {
		t.Errorf("%d versions for %d changes", n, total)
	}
}
