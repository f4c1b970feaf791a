package jsonview_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/api/jsonview"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
)

// TestEdgeOfFreshness shows a worker whose content says fresh at, just before
// and just after the end of its validity.
func TestEdgeOfFreshness(t *testing.T) {
	for _, c := range []struct {
		at   time.Duration
		want string
	}{
		{3*time.Second - time.Millisecond, "fresh"},
		{3 * time.Second, "stale"},
		{3*time.Second + time.Millisecond, "stale"},
	} {
		t.Run(c.at.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock := store.NewClock()
				received := clock.Now()
				view := &snapshot.View{
					Snapshot: &snapshot.Snapshot{
						Enabled: true, Content: &store.Content{Version: 1},
						Workers: []*snapshot.Worker{{Entry: &store.Entry{Worker: &store.Worker{ID: "a"}, Freshness: store.Fresh}}},
					},
					Receipts: []*snapshot.Receipt{{Live: &store.Live{Received: received, ValidUntil: received.Add(3 * time.Second)}}},
				}
				<-time.After(c.at)
				e := jsonview.New(store.Options{Clock: clock, StaleAfter: 3 * time.Second}, "s")
				for _, upstream := range []bool{false, true} {
					var got struct {
						Workers []struct {
							Freshness  string `json:"freshness"`
							ValidForMs *int64 `json:"valid_for_ms"`
						} `json:"workers"`
					}
					if err := json.Unmarshal(e.Snapshot(view, jsonview.Shape{Upstream: upstream}), &got); err != nil {
						t.Fatal(err)
					}
					if w := got.Workers[0]; w.Freshness != c.want || w.ValidForMs != nil && *w.ValidForMs < 0 {
						t.Errorf("upstream shape %t: %s, valid for %v ms, want %s", upstream, w.Freshness, w.ValidForMs, c.want)
					}
				}
			})
		})
	}
}
