package source

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/sim/face"
	"github.com/loadplane/loadplane/sim/reporter"
)

// recorded answers each page as it was when it was first asked for, so that the
// engine's half costs little.
func recorded(h http.Handler) http.HandlerFunc {
	var pages sync.Map
	return func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages.Load(r.RequestURI)
		if !ok {
			first := httptest.NewRecorder()
			h.ServeHTTP(first, r)
			page = first
			pages.Store(r.RequestURI, page)
		}
		w.WriteHeader(page.(*httptest.ResponseRecorder).Code)
		_, _ = w.Write(page.(*httptest.ResponseRecorder).Body.Bytes())
	}
}

// frozen returns one sample of a simulated process.
func frozen(b *testing.B, ranks int) func() (reporter.Sample, error) {
	p := reporter.New(reporter.Config{
		Role: pb.WorkerType_WORKER_TYPE_REGULAR, Model: "m", Ranks: ranks, Seed: 1, Warm: true, Faults: &reporter.Faults{},
	})
	defer p.Close()
	s, err := p.Sample()
	if err != nil {
		b.Fatal(err)
	}
	return func() (reporter.Sample, error) { return s, nil }
}

// BenchmarkSample takes samples of eight ranks over loopback, one after the
// other. The server of the engine's recorded pages is in this process as well.
func BenchmarkSample(b *testing.B) {
	for _, ranks := range []int{1, 8} {
		b.Run(map[int]string{1: "1 rank", 8: "8 ranks"}[ranks], func(b *testing.B) {
			srv := httptest.NewServer(recorded(face.SGLang(face.Engine{
				Model: "m", Mode: "null", Host: "127.0.0.1", Port: 30_000, Ranks: ranks, Sample: frozen(b, ranks),
			})))
			defer srv.Close()
			s, err := New(Options{Target: registry.Target{URL: srv.URL}, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			defer s.reader.Close()
			s.plan.want("a", 100*time.Millisecond, time.Now())
			b.ReportAllocs()
			for b.Loop() {
				s.sample(context.Background())
			}
			if now, _ := s.Latest(); len(now.Ranks) != ranks || s.Stats().Failures != 0 {
				b.Fatalf("got %+v, %+v", now, s.Stats())
			}
		})
	}
}
