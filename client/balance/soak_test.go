package balance

import (
	"context"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/client/pick"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"google.golang.org/grpc/test/bufconn"
)

// plane is a service that hears four workers once a second, each at a time of
// its own, and tells its watchers every second.
type plane struct {
	loadplanev1connect.UnimplementedSnapshotServiceHandler
	lineage string
	began   time.Time
}

const soakWorkers = 4

// heard returns when the plane heard a worker last.
func (p *plane) heard(i int, at time.Time) time.Time {
	phase := time.Duration(i) * 100 * time.Millisecond
	return p.began.Add((at.Sub(p.began) - phase).Truncate(time.Second) + phase)
}

func (p *plane) WatchSnapshots(ctx context.Context, _ *pb.WatchSnapshotsRequest, s *connect.ServerStream[pb.WatchSnapshotsResponse]) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for version := uint64(1); ; version++ {
		var all []entry
		for i := range soakWorkers {
			all = append(all, worker(string(rune('a'+i)), 3, ago(time.Since(p.heard(i, time.Now())))))
		}
		m := message(version, time.Since(p.began), all...)
		m.Cursor.Lineage, m.ServerId = p.lineage, p.lineage
		if err := s.Send(m); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// network has the listener of the plane that is up, if one is.
type network struct {
	mu       sync.Mutex
	listener *bufconn.Listener
}

func (n *network) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listener
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	return l.DialContext(ctx)
}

// up starts a plane, and returns what kills it.
func (n *network) up(p *plane) (down func()) {
	mux := http.NewServeMux()
	mux.Handle(loadplanev1connect.NewSnapshotServiceHandler(p))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: mux, Protocols: protocols, ErrorLog: log.New(io.Discard, "", 0)}
	l := bufconn.Listen(8 << 10)
	n.mu.Lock()
	n.listener = l
	n.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	return sync.OnceFunc(func() {
		n.mu.Lock()
		n.listener = nil
		n.mu.Unlock()
		_ = server.Close()
		<-done
	})
}

// The plane is gone for 60 s: picks go on by the last view, then by open
// requests once fewer than half of the workers are valid, which is to the
// millisecond when their reports are too old; with the plane back they go by
// its view again.
func TestPicksGoOnWithoutThePlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		transport := &http.Transport{DialContext: n.dial, Protocols: protocols}
		t.Cleanup(transport.CloseIdleConnections)
		watcher, err := client.NewWatcher(client.Options{Addresses: []string{"http://plane"}, HTTPClient: &http.Client{Transport: transport}})
		if err != nil {
			t.Fatal(err)
		}
		b, err := New(Options{Watcher: watcher})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var tasks sync.WaitGroup
		tasks.Go(func() { _ = watcher.Run(ctx) })
		t.Cleanup(func() { cancel(); tasks.Wait() })
		<-time.After(time.Second)
		if _, err := b.Pick(Request{}); !errors.Is(err, ErrNoView) {
			t.Errorf("before a plane is up: %v", err)
		}
		first := &plane{lineage: "first", began: time.Now()}
		down := n.up(first)
		t.Cleanup(down)
		<-time.After(20*time.Second + 50*time.Millisecond)
		s := &soak{T: t, Balancer: b, rng: rand.New(rand.NewPCG(7, 7))}
		s.picks(10*time.Second, func(r *Route) bool { return !r.Fallback && r.Lineage == "first" && r.Age <= time.Second })

		down()
		synctest.Wait()
		v, _ := watcher.View()
		// Half of the workers must be valid: the third to turn invalid decides.
		var third time.Time
		for i, w := range v.Workers() {
			until, ok := v.ValidUntil(w)
			if want := first.heard(i, time.Now().Add(-v.Age(time.Now()))).Add(staleAfter); !ok || until.Sub(want).Abs() > time.Millisecond {
				t.Errorf("%s is valid for %v, want %v", w.GetWorkerId(), time.Until(until), time.Until(want))
			}
			later := 0
			for _, x := range v.Workers() {
				if u, _ := v.ValidUntil(x); u.After(until) {
					later++
				}
			}
			if later == 1 {
				third = until
			}
		}
		s.picks(60*time.Second, func(r *Route) bool {
			gone := !time.Now().Before(third)
			return r.Fallback == gone && (r.Reason == pick.ReasonFewFresh) == gone && r.Lineage == "first" && !r.Lost()
		})

		t.Cleanup(n.up(&plane{lineage: "second", began: time.Now().Add(-time.Second)}))
		s.picks(5*time.Second, func(r *Route) bool { return r.Lineage == "first" || !r.Fallback })
		s.picks(10*time.Second, func(r *Route) bool { return r.Lineage == "second" && !r.Fallback })
		s.end()
	})
}

// soak holds the requests that are open.
type soak struct {
	*testing.T
	*Balancer
	rng  *rand.Rand
	open []*Route
}

// picks picks for a time at random moments, and ends requests at random. ok
// says whether a route is as it must be.
func (s *soak) picks(d time.Duration, ok func(*Route) bool) {
	s.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); <-time.After(time.Duration(s.rng.IntN(40)) * time.Millisecond) {
		r, err := s.Pick(Request{PromptTokens: int64(s.rng.IntN(500))})
		if err != nil {
			s.Fatal(err)
		}
		if !ok(r) {
			s.Fatalf("%v before the end of %v: %+v", time.Until(end), d, r)
		}
		s.open = append(s.open, r)
		for len(s.open) > 40 || len(s.open) > 0 && s.rng.IntN(3) == 0 {
			i := s.rng.IntN(len(s.open))
			s.open[i].Done()
			s.open[i] = s.open[len(s.open)-1]
			s.open = s.open[:len(s.open)-1]
		}
		s.check()
	}
}

// check holds the books against what is open.
func (s *soak) check() {
	s.Helper()
	want := map[string]int64{}
	for _, r := range s.open {
		want[r.WorkerID]++
	}
	for i := range soakWorkers {
		id := string(rune('a' + i))
		if l := s.Local(id); l.InFlight != want[id] || l.Credit < 0 || l.Credit > l.InFlight {
			s.Fatalf("%s has %d open: %+v", id, want[id], l)
		}
	}
}

func (s *soak) end() {
	s.Helper()
	for _, r := range s.open {
		r.Done()
	}
	s.open = nil
	s.check()
}
