package picks

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

// bench fills a plane with workers that stay fresh.
func bench(b *testing.B, workers, ranks int) *plane {
	b.Helper()
	p := start(b, time.Hour)
	var all []*store.Worker
	for i := range workers {
		all = append(all, worker(fmt.Sprintf("10.0.%d.%d:30000", i/256, i%256)))
	}
	p.add(all...)
	for _, w := range all {
		p.report(w.ID, 10, ranks)
	}
	for state, stale := p.store.Current(); !heard(state); state, stale = p.store.Current() {
		<-stale
	}
	return p
}

func heard(s *store.State) bool {
	for _, e := range s.Entries {
		if e.Freshness == store.Missing {
			return false
		}
	}
	return len(s.Entries) > 0
}

// BenchmarkHandler is a pick without the connection.
func BenchmarkHandler(b *testing.B) {
	for _, query := range []string{"", "policy=least-load", "per=worker", "n=64", "n=64&policy=least-load"} {
		b.Run(query, func(b *testing.B) {
			p := bench(b, 1000, 8)
			r := httptest.NewRequest(http.MethodGet, "/v1/pick?"+query, nil)
			b.ReportAllocs()
			for b.Loop() {
				rec := httptest.NewRecorder()
				if p.ServeHTTP(rec, r); rec.Code != http.StatusOK {
					b.Fatal(rec.Body)
				}
			}
		})
	}
}

// BenchmarkHTTP is a pick over a connection on loopback, client included.
func BenchmarkHTTP(b *testing.B) {
	p := bench(b, 1000, 8)
	server := httptest.NewServer(p)
	defer server.Close()
	b.ReportAllocs()
	for b.Loop() {
		res, err := server.Client().Get(server.URL + "/v1/pick?model=qwen3")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
			b.Fatal(res.Status, err)
		}
		_ = res.Body.Close()
	}
}

// BenchmarkShot makes the tables of one view.
func BenchmarkShot(b *testing.B) {
	for _, perRank := range []bool{false, true} {
		b.Run(fmt.Sprintf("rank=%v", perRank), func(b *testing.B) {
			p := bench(b, 1000, 8)
			b.ReportAllocs()
			for b.Loop() {
				s := &shot{view: p.views(), roles: rolesOf(p.views().Pools)}
				p.sync(nil, s.view)
				p.build(s, key{perRank: perRank})
			}
		})
	}
}
