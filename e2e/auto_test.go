package e2e

import (
	"strings"
	"testing"
	"time"

	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// redeployment is a plane that was told the URLs of engines only, which become
// engines of other kinds.
type redeployment struct {
	*plane
	engines []*engine
}

// become ends all engines, and starts those of other kinds in their places once
// the plane missed reports of each. It follows them until the plane reads them
// by the dialects of their kinds; ok says what may be shown on the way.
func (d *redeployment) become(names []string, ok func(w *loadplanev1.Worker) bool) {
	d.t.Helper()
	for _, e := range d.engines {
		e.kill()
	}
	d.follow("engines that are missed", ok, func(v *view, e *engine) bool {
		return v.last.GetServerClockMs() > v.receipt(e.worker(v)).GetReceivedMs()+1200
	})
	began, took := time.Now(), map[string]time.Duration{}
	for i, e := range d.engines {
		d.engines[i] = launch(d.t, kindOf(names[i]), e.port)
	}
	d.follow("the dialects of "+strings.Join(names, ", "), ok, func(v *view, e *engine) bool {
		dialect := strings.ToLower(strings.TrimPrefix(e.worker(v).GetDialect().String(), "DIALECT_"))
		if !isFresh(e.worker(v)) || dialect != e.kind.dialect {
			return false
		}
		if name := e.kind.name + " on " + e.port; took[name] == 0 {
			took[name] = time.Since(began).Round(time.Millisecond)
		}
		return true
	})
	d.t.Logf("read anew after: %v", took)
}

// follow waits until done accepts all engines, each with the two ranks that it
// always has.
func (d *redeployment) follow(what string, ok func(w *loadplanev1.Worker) bool, done func(*view, *engine) bool) {
	d.t.Helper()
	d.until(60*time.Second, what, func(v *view) bool {
		all := true
		for _, e := range d.engines {
			w := e.worker(v)
			if len(w.GetRanks()) != 2 || !ok(w) {
				d.t.Errorf("while waiting for %s, %s on %s is %v/%s by %v with %d ranks",
					what, e.kind.name, e.port, w.GetFreshness(), w.GetFreshnessReason(), w.GetDialect(), len(w.GetRanks()))
			}
			all = done(v, e) && all
		}
		return all
	})
}

// An SGLang that is polled is redeployed with a better way to report: the plane
// takes that. Redeployed without it, the worker is polled again. It never ages.
func TestRedeployedWithAnotherDialect(t *testing.T) {
	t.Parallel()
	d := &redeployment{}
	// Time for a loaded machine; a lease is longer.
	args := []string{"--report-interval=500ms", "--stale-after=10s"}
	for range 3 {
		e := launch(t, kindOf("sglang-poll"), freePort(t))
		d.engines, args = append(d.engines, e), append(args, "--worker="+e.url())
	}
	d.plane = serve(t, args...)
	d.until(20*time.Second, "polled engines", func(v *view) bool { return v.fresh() == 3 })
	d.become([]string{"sglang-monitor", "sglang-loadstat", "sglang"}, isFresh)
	d.become([]string{"sglang-poll", "sglang-poll", "sglang-poll"}, isFresh)
}
