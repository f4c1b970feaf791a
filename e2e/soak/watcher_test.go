package soak

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/e2e/history"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
)

// wholeOneIn is how many streams there are to one that asks for whole states
// only.
const wholeOneIn = 8

// watcher follows the plane as a router does.
type watcher struct {
	t    *testing.T
	name string
	net  *network
	opts []connect.ClientOption
	rng  *rand.Rand
	// bases finds the time of the zero of a plane's clock by its name.
	bases *sync.Map

	mu      sync.Mutex
	replica client.Replica
	record  *history.Watcher
	// late is how long the message that brought a receipt was on its way.
	late    map[receiptKey]time.Duration
	streams int
	// validated counts the checks of valid workers, oldest is the highest age
	// of one, its delay subtracted.
	validated int
	oldest    time.Duration
}

type receiptKey struct {
	lineage string
	row     uint32
}

// run watches until ctx ends.
func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.watch(ctx)
		wait := time.NewTimer(time.Duration(w.rng.Int64N(int64(200 * time.Millisecond))))
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
	}
}

// watch holds one stream, on a connection of its own, until it ends or brings
// nothing for two and a half heartbeats.
func (w *watcher) watch(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var conn net.Conn
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{
		Protocols: protocols, DisableCompression: true,
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			c, err := w.net.dial(w.name, netip.MustParseAddrPort("127.2.0.1:9"), "api", nil)
			if err != nil {
				return nil, err
			}
			conn = c
			return c, nil
		},
	}
	watchdog := time.AfterFunc(heartbeat*5/2, cancel)
	defer watchdog.Stop()
	s, err := loadplanev1connect.NewSnapshotServiceClient(&http.Client{Transport: transport}, "http://plane", w.opts...).
		WatchSnapshots(ctx, w.open())
	if err == nil {
		for s.Receive() {
			m := s.Msg()
			watchdog.Reset(time.Duration(m.GetHeartbeatIntervalMs()) * time.Millisecond * 5 / 2)
			w.take(m)
		}
		cancel()
		_ = s.Close()
	}
	cancel()
	transport.CloseIdleConnections()
	if conn != nil {
		_ = conn.Close()
	}
}

func (w *watcher) open() *pb.WatchSnapshotsRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.streams++
	req := &pb.WatchSnapshotsRequest{ClientId: w.name, FullOnly: w.rng.IntN(wholeOneIn) == 0, Resume: w.replica.Resume()}
	w.record.Open(req.GetResume())
	return req
}

func (w *watcher) take(m *pb.WatchSnapshotsResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.validLocked(now)
	w.record.Message(m)
	lineage := m.GetCursor().GetLineage()
	late := now.Sub(w.base(lineage).Add(time.Duration(m.GetServerClockMs()) * time.Millisecond))
	for _, l := range m.GetLiveness().GetWorkers() {
		w.late[receiptKey{lineage, l.GetRow()}] = late
	}
	if _, err := w.replica.Apply(m, now); err != nil {
		w.t.Errorf("%s: %v", w.name, err)
	}
	w.validLocked(now)
}

func (w *watcher) base(lineage string) time.Time {
	base, _ := w.bases.Load(lineage)
	at, ok := base.(time.Time)
	if !ok {
		w.t.Fatalf("%s: unknown lineage %q", w.name, lineage)
	}
	return at
}

// valid checks that no worker is held to be valid whose report is older than
// allowed: staleAfter, and the time that the receipt was on its way.
func (w *watcher) valid() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.validLocked(time.Now())
}

func (w *watcher) validLocked(now time.Time) {
	view := w.replica.View()
	if view == nil {
		return
	}
	base := w.base(view.Lineage())
	for _, worker := range view.Workers() {
		if !view.Valid(worker, now) {
			continue
		}
		w.validated++
		received := base.Add(time.Duration(view.Receipt(worker).GetReceivedMs()) * time.Millisecond)
		age := now.Sub(received) - w.late[receiptKey{view.Lineage(), worker.GetRow()}]
		w.oldest = max(w.oldest, age)
		// Both clocks of a message are cut to milliseconds.
		if age > staleAfter+time.Millisecond {
			w.t.Errorf("%s: %s is valid with a report of %v", w.name, worker.GetWorkerId(), age)
		}
	}
}

func (w *watcher) view() *client.View {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.replica.View()
}
