package api_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect"
	"github.com/loadplane/loadplane/store"
)

const (
	getJSON = "GET /v1/load_monitor/snapshot HTTP/1.1\r\nHost: plane\r\n\r\n"
	getRPC  = "POST /loadplane.v1.SnapshotService/GetSnapshot HTTP/1.1\r\nHost: plane\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
)

// large makes a view of n workers, each of more than 64 KiB as JSON.
func (p *plane) large(n int) {
	for i := range n {
		id := string(rune('a'+i)) + ":1"
		p.add(newWorker(id))
		p.report(id, 1, 1, 512)
	}
	p.after(settle)
}

// ask sends a request and reads nothing.
func (p *plane) ask(request string) net.Conn {
	p.Helper()
	conn, err := p.dial(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, request); err != nil {
		p.Fatal(err)
	}
	p.after(0)
	return conn
}

// whole returns how many whole answers are being written.
func (p *plane) whole() float64 {
	p.Helper()
	return p.metric("loadplane_api_whole_answers", "")
}

// TestWholeAnswersAreBounded has one reader that takes a part now and then, and
// one place.
func TestWholeAnswersAreBounded(t *testing.T) {
	for name, request := range map[string]string{"JSON": getJSON, "GetSnapshot": getRPC} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(s *setup) { s.api.MaxAnswers = 1 }, func(p *plane) {
				p.large(4)
				slow := p.ask(request)
				if p.whole() != 1 {
					p.Fatalf("%v answers are being written", p.whole())
				}
				refused := p.getLater("?worker=a:1")
				p.after(4 * time.Second)
				if _, err := io.ReadFull(slow, make([]byte, 80<<10)); err != nil {
					p.Fatal(err)
				}
				p.after(time.Second)
				if a := <-refused; a.StatusCode != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "1" || decode(p, a.body)["reason"] != "too_many_answers" {
					p.Errorf("after 5 s: %d %s", a.StatusCode, a.body)
				}
				// The part ends at 9 s, and then the next has the place.
				waiting := p.getLater("?worker=a:1")
				p.after(4*time.Second + time.Millisecond)
				if a := <-waiting; a.StatusCode != http.StatusOK || p.whole() != 0 {
					p.Errorf("after the reader was cut: %d, %v are being written", a.StatusCode, p.whole())
				}
			})
		})
	}
}

// TestWholeAnswersOfEveryKindCount asks for all of them while there is no place.
func TestWholeAnswersOfEveryKindCount(t *testing.T) {
	inBubble(t, func(s *setup) { s.api.MaxAnswers, s.api.WriteTimeout = 1, 8*time.Second }, func(p *plane) {
		p.large(2)
		tag := p.get("").Header.Get("ETag")
		p.ask(getJSON)
		p.after(0)
		for name, call := range map[string]func() error{
			"GetSnapshot": func() error {
				_, err := p.snapshots().GetSnapshot(p.Context(), &pb.GetSnapshotRequest{})
				return err
			},
			"ListWorkers": func() error {
				_, err := loadplanev1connect.NewWorkerServiceClient(p.client(true), p.url).ListWorkers(p.Context(), &pb.ListWorkersRequest{})
				return err
			},
		} {
			p.ask(getJSON) // has the place when the one before was cut
			err := call()
			wantCode(p, err, connect.CodeResourceExhausted)
			if pause := retryDelay(p, err); pause != time.Second {
				p.Errorf("%s: to wait %v", name, pause)
			}
		}
		if a := p.get("", tag); a.StatusCode == http.StatusTooManyRequests {
			p.Error("an answer without a body was refused")
		}
		if s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{}); !s.Receive() {
			p.Error("a watch was refused: ", s.Err())
		}
	})
}

// TestSlowReaderOfAWholeAnswer takes 64 KiB every four seconds, for longer than
// any limit of the whole.
func TestSlowReaderOfAWholeAnswer(t *testing.T) {
	for name, request := range map[string]string{"JSON": getJSON, "GetSnapshot": getRPC} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, func(p *plane) {
				p.large(8)
				begin, conn := time.Now(), p.ask(request)
				res, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), nil)
				if err != nil {
					p.Fatal(err)
				}
				defer func() { _ = res.Body.Close() }()
				for n := int64(1); n > 0; p.after(4 * time.Second) {
					if n, err = io.CopyN(io.Discard, res.Body, 64<<10); err != nil && !errors.Is(err, io.EOF) {
						p.Fatalf("cut after %v: %v", time.Since(begin), err)
					}
				}
				if took := time.Since(begin); took < 35*time.Second {
					p.Errorf("read in %v", took)
				}
			})
		})
	}
}

// TestReaderOfAWholeAnswerThatStopsIsCut reads nothing.
func TestReaderOfAWholeAnswerThatStopsIsCut(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.large(2)
		for range 3 {
			p.ask(getJSON)
			p.ask(getRPC)
		}
		if p.after(5*time.Second - time.Millisecond); p.whole() != 6 {
			p.Errorf("%v answers are being written in time", p.whole())
		}
		if p.after(2 * time.Millisecond); p.whole() != 0 {
			p.Errorf("%v answers are being written after it", p.whole())
		}
	})
}

// meddler is a writer of an answer to a request that is held back: when the
// limit of its time is lifted it has something happen.
type meddler struct {
	*httptest.ResponseRecorder
	happen func()
}

// SetReadDeadline takes the zero time as the sign.
func (m *meddler) SetReadDeadline(t time.Time) error {
	if t.IsZero() && m.happen != nil {
		m.happen()
		m.happen = nil
	}
	return nil
}

// TestLongPollSeesWhatChangedBeforeItWaits changes the content between the
// comparison with what is held and the wait.
func TestLongPollSeesWhatChangedBeforeItWaits(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.steadyPair()
		r := httptest.NewRequest(http.MethodGet, "/v1/load_monitor/snapshot?model=m&wait=20s", nil)
		r.Header.Set("If-None-Match", p.get("?model=m").Header.Get("ETag"))
		w := &meddler{ResponseRecorder: httptest.NewRecorder(), happen: func() {
			p.report("a:1", 2, 7, 1)
			p.after(settle)
		}}
		begin := time.Now()
		p.api.Handler().ServeHTTP(w, r)
		if took := time.Since(begin); w.Code != http.StatusOK || took != settle || w.Body.Len() == 0 {
			p.Errorf("status %d after %v", w.Code, took)
		}
	})
}

// TestTagTellsTheEndOfWarming asks for a part of the view in which nothing else
// changes.
func TestTagTellsTheEndOfWarming(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.add(newWorker("a:1"))
		p.after(settle)
		cold := p.get("?model=none").Header.Get("ETag")
		a := p.get("?model=none&wait=20s", cold)
		if a.StatusCode != http.StatusOK || a.Header.Get("ETag") == cold || !strings.Contains(a.body, `"warming":false`) {
			p.Errorf("%d %s", a.StatusCode, a.body)
		}
	})
}

// TestSnapshotWaitsForAnOverdueExpiry asks while the committer is a little late.
func TestSnapshotWaitsForAnOverdueExpiry(t *testing.T) {
	var late atomic.Bool
	var done chan struct{}
	inBubble(t, func(s *setup) {
		done = make(chan struct{})
		s.store.SleptFor = func() time.Duration { // is asked in each commit
			if late.Load() {
				<-done
			}
			return 0
		}
	}, func(p *plane) {
		p.add(newWorker("a:1"))
		p.report("a:1", 1, 1, 1)
		p.after(staleAfter - time.Millisecond)
		late.Store(true)
		time.AfterFunc(50*time.Millisecond, func() { close(done) })
		p.after(2 * time.Millisecond)
		if state, _ := p.store.Current(); state.Entries[0].Freshness != store.Fresh {
			p.Fatal("the committer is not late")
		}
		res, err := p.snapshots().GetSnapshot(p.Context(), &pb.GetSnapshotRequest{})
		if err != nil {
			p.Fatal(err)
		}
		if got := res.GetSnapshot().GetFull().GetWorkers()[0].GetFreshness(); got != pb.Freshness_FRESHNESS_STALE {
			p.Errorf("served as %v", got)
		}
	})
}

// TestKeptBytesAreOfSharedFilters opens watches of one filter, one by one.
func TestKeptBytesAreOfSharedFilters(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		p.steadyPair()
		for n, want := range []bool{false, true, true} {
			s := p.watch(p.snapshots(), &pb.WatchSnapshotsRequest{Filter: ofModel("m")})
			s.full()
			synctest.Wait()
			if kept := p.metric("loadplane_api_kept_bytes", ""); (kept > 0) != want {
				p.Errorf("%v bytes are kept for %d watches", kept, n+1)
			}
		}
	})
}
