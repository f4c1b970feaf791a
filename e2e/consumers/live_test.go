package consumers

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
)

// TestConsumersFollowAPlane takes every consumer through what happens to a
// plane and to the way to it: a cut and a dead connection, a killed engine, a
// killed plane, and its successor. What a consumer said about a version must be
// what the plane says about it.
func TestConsumersFollowAPlane(t *testing.T) {
	for _, c := range consumers {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			followAPlane(t, c)
		})
	}
}

func followAPlane(t *testing.T, c consumer) {
	_, urls := fleet(t, "--engines=3", "--ranks=2")
	doomed, more := fleet(t, "--engines=1", "--ranks=2", "--seed=2")
	killed := more[0]
	args := []string{"--report-interval=200ms", "--ingest-listen=127.0.0.1:0"}
	for _, url := range append(urls, killed) {
		args = append(args, "--worker="+url)
	}
	plane, api := serve(t, append(args, "--api-listen=127.0.0.1:0")...)
	truth := newTruth(t, api)
	way := newLink(t, api)
	f := c.start(t, way.addr)
	all := func(l line) bool { return l.valid() == 4 }
	f.until("all workers", all)

	if c.watches {
		way.cut()
		f.survive(c, "a cut connection")
		f.until("all workers after a cut", all)
		way.freeze()
		f.survive(c, "a dead connection")
		f.until("all workers after a dead connection", all)
	}

	doomed.kill()
	f.until("the killed engine", func(l line) bool {
		return l.valid() == 3 && len(l.Workers) == 4 && !l.worker(killed).Valid
	})
	// Others are valid still; a plane that is gone makes them invalid, and the
	// view stays.
	first := f.until("a view", func(l line) bool { return l.valid() == 3 })
	plane.kill()
	f.until("an invalid view", func(l line) bool { return l.valid() == 0 && len(l.Workers) == 4 && l.Lineage == first.Lineage })

	serve(t, append(args, "--api-listen="+api)...)
	next := func(l line) bool { return l.Lineage != first.Lineage && l.valid() == 3 }
	f.until("the next lineage", next)
	f.until("a version that the plane told, too", func(l line) bool { return next(l) && truth.has(l) })
	truth.check(f, c)
	f.checkOrder(c)
}

// survive waits for the end of a stream and for the first message of the next
// one: what changed, or all where the consumer cannot resume.
func (f *following) survive(c consumer, what string) {
	f.t.Helper()
	if c.name == "go" {
		return // The views do not tell of streams; package client has tests of its own.
	}
	f.until(what, func(l line) bool { return l.Event == "lost" })
	l := f.until("a message after "+what, func(l line) bool { return l.Event != "lost" && l.Event != "expired" })
	if resumed := l.Event != "full"; resumed != c.resumes {
		f.t.Errorf("after %s the first message is a %s", what, l.Event)
	}
}

// checkOrder checks all that the consumer ever said: versions do not go back,
// validity is bounded by the plane's default of 3 s, and a new lineage that is
// warming knew as much as the old one.
func (f *following) checkOrder(c consumer) {
	f.t.Helper()
	var last line
	for _, l := range f.seen {
		if l.Lineage == "" {
			continue // nothing held yet
		}
		if l.Lineage == last.Lineage && l.Version < last.Version {
			f.t.Errorf("version %d after %d", l.Version, last.Version)
		}
		if last.Lineage != "" && l.Lineage != last.Lineage && l.Warming && l.valid() < last.valid() {
			f.t.Errorf("adopted a warming plane with %d valid workers in place of %d", l.valid(), last.valid())
		}
		if l.Digest == "" == c.digests {
			f.t.Fatalf("digest %q", l.Digest)
		}
		for _, w := range l.Workers {
			if w.Valid && (w.ValidFor > 3_000 || w.Freshness != "fresh") {
				f.t.Errorf("%s is valid for %d ms while %s", w.ID, w.ValidFor, w.Freshness)
			}
		}
		last = l
	}
}

// truth is what the plane says of its versions: read from the plane itself, and
// each version whole, so that nothing of a client is in it.
type truth struct {
	mu       sync.Mutex
	versions map[string]line
}

// newTruth reads a plane, and those after it at its address, until the test
// ends.
func newTruth(t *testing.T, api string) *truth {
	t.Helper()
	tr := &truth{versions: make(map[string]line)}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	plane := loadplanev1connect.NewSnapshotServiceClient(&http.Client{Transport: transport}, "http://"+api)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			tr.read(ctx, plane)
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-stopped
		transport.CloseIdleConnections()
	})
	return tr
}

func (tr *truth) read(ctx context.Context, plane loadplanev1connect.SnapshotServiceClient) {
	stream, err := plane.WatchSnapshots(ctx, &pb.WatchSnapshotsRequest{FullOnly: true, ClientId: "truth"})
	if err != nil {
		return
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		m := stream.Msg()
		if m.GetFull() == nil {
			continue
		}
		l := line{
			Lineage: m.GetCursor().GetLineage(), Epoch: m.GetCursor().GetEpoch(), Version: m.GetCursor().GetVersion(),
			Digest: fmt.Sprintf("%016x", m.GetDigest()),
		}
		for _, w := range m.GetFull().GetWorkers() {
			l.Workers = append(l.Workers, worker{ID: w.GetWorkerId(), Freshness: freshnessOf(w), Requests: requestsOf(w)})
		}
		tr.mu.Lock()
		tr.versions[l.version()] = l
		tr.mu.Unlock()
	}
}

func (l line) version() string { return fmt.Sprint(l.Lineage, " ", l.Epoch, " ", l.Version) }

// content is what has a version, as every consumer can tell it. Freshness that
// ran out since is left out: JSON shows it judged at the time of the answer.
func (l line) content() string {
	var b strings.Builder
	for _, w := range l.Workers {
		requests := "unknown"
		if w.Requests != nil {
			requests = fmt.Sprint(*w.Requests)
		}
		fmt.Fprintln(&b, w.ID, requests)
	}
	return b.String()
}

func (tr *truth) has(l line) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	_, ok := tr.versions[l.version()]
	return ok
}

// check compares what a consumer said with the truth.
func (tr *truth) check(f *following, c consumer) {
	f.t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	compared := map[string]bool{}
	for _, l := range f.seen {
		want, ok := tr.versions[l.version()]
		if !ok {
			continue // the reader of the truth skipped it
		}
		compared[l.version()] = true
		if l.content() != want.content() || c.digests && l.Digest != want.Digest {
			f.t.Errorf("version %s: the consumer says %s\n%s, the plane %s\n%s", l.version(), l.Digest, l.content(), want.Digest, want.content())
		}
	}
	f.t.Logf("%d lines, %d versions compared with %d", len(f.seen), len(compared), len(tr.versions))
	if len(compared) < 3 {
		f.t.Errorf("%d versions compared", len(compared))
	}
}
