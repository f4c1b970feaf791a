package e2e

import (
	"testing"
	"time"

	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// Two engines register themselves, one of which is listed as well. Both are
// killed for good: stale by age, and once their leases end the one that nobody
// lists is gone, in one version, while the other stays. One that ends by itself
// leaves at once.
func TestNativeEngineIsGoneWithItsLease(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	p := serve(t, "--report-interval=250ms", "--stale-after=1s", "--lease=4s", "--worker=http://127.0.0.1:"+port)
	known := launch(t, native, port, p.flag())
	unknown, leaving, staying := launch(t, native, freePort(t), p.flag()), launch(t, native, freePort(t), p.flag()), launch(t, native, freePort(t), p.flag())
	p.until(20*time.Second, "four fresh workers", func(v *view) bool { return v.fresh() == 4 && len(v.workers) == 4 })

	leaving.terminate(10 * time.Second)
	p.until(3*time.Second, "that the engine left", func(v *view) bool { return len(v.workers) == 3 })
	if n := p.metric(`loadplane_registry_lease_events_total{event="returned"}`); n != 1 {
		t.Errorf("%v leases returned, want 1", n)
	}

	known.kill()
	unknown.kill()
	stale, heard := false, uint64(0)
	v := p.until(30*time.Second, "the end of the lease", func(v *view) bool {
		w := unknown.worker(v)
		switch w.GetFreshness() {
		case loadplanev1.Freshness_FRESHNESS_STALE:
			if stale = true; w.GetFreshnessReason() != "age" || len(w.GetRanks()) != 2 {
				t.Errorf("%s with %d ranks is stale for reason %q", w.GetWorkerId(), len(w.GetRanks()), w.GetFreshnessReason())
			}
		case loadplanev1.Freshness_FRESHNESS_FRESH:
			heard = v.receipt(w).GetReceivedMs()
		}
		if !isFresh(staying.worker(v)) {
			t.Errorf("the engine beside is %v", staying.worker(v).GetFreshness())
		}
		return w.GetWorkerId() == ""
	})
	if gone := v.last.GetServerClockMs() - heard; !stale || gone < 1000 {
		t.Errorf("gone %d ms after the last report, stale before: %v", gone, stale)
	} else {
		t.Logf("gone %d ms after the last report", gone)
	}
	if w := known.worker(v); w.GetWorkerId() == "" || isFresh(w) {
		t.Errorf("the listed engine is shown as %q, %v", w.GetWorkerId(), w.GetFreshness())
	}
	back := unknown.again()
	p.until(15*time.Second, "the engine back", func(v *view) bool { return isFresh(back.worker(v)) })
}
