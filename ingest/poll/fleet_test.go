package poll

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// drip reads a request and answers one byte a second.
func drip(c net.Conn) {
	if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
		return
	}
	for _, b := range []byte("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n") {
		<-time.After(time.Second)
		if _, err := c.Write([]byte{b}); err != nil {
			return
		}
	}
}

// TestBug31SlowEnginesDelayNobody polls 200 engines for a minute, of which 20
// are black holes and 20 drip a byte a second.
func TestBug31SlowEnginesDelayNobody(t *testing.T) {
	const all, black, dripping = 200, 20, 20
	address := func(i int) string { return fmt.Sprintf("10.0.%d.%d:30000", i/100, 1+i%100) }
	listed := func(r *registry.Options, _ *Options) {
		r.Workers = nil
		for i := range all {
			r.Workers = append(r.Workers, "http://"+address(i)+",dialect=poll")
		}
	}
	inBubbleWith(t, listed, func(p *plane) {
		before := runtime.NumGoroutine()
		engines := make([]*engine, all)
		for i := range engines {
			engines[i] = p.net.add(address(i), pages(map[string]string{"/metrics": vllm(1, i)}))
			switch {
			case i < black:
				engines[i].black = true
			case i < black+dripping:
				engines[i].raw = drip
			}
		}
		p.run()
		after(5 * time.Second)
		for _, e := range engines {
			e.forget()
		}
		after(time.Minute)
		// Of each engine: its poller, the registry's loop it runs in, and here
		// in memory the engine's end of the connection.
		goroutines := runtime.NumGoroutine() - before
		p.net.mu.Lock()
		dials, peak := p.net.dials, p.net.peak
		p.net.mu.Unlock()
		t.Logf("%d engines: %d goroutines, at most %d connections at once, %d dials in 65 s", all, goroutines, peak, dials)
		// A poller is one goroutine, the engine's end another.
		if limit := 2*all + 20; goroutines > limit {
			t.Errorf("%d goroutines, want at most %d", goroutines, limit)
		}
		// A connection that was given up drips on for a second.
		if limit := all - black + dripping; peak > limit {
			t.Errorf("%d connections at once, want at most %d", peak, limit)
		}
		for i, e := range engines[black+dripping:] {
			asked := e.forget()
			if len(asked) < 59 || len(asked) > 61 {
				t.Errorf("engine %d was asked %d times in a minute", i, len(asked))
			}
			for j := 1; j < len(asked); j++ {
				// Five per cent of jitter at either end.
				if gap := asked[j].at.Sub(asked[j-1].at); gap < 900*time.Millisecond || gap > 1100*time.Millisecond {
					t.Errorf("engine %d: %s between two polls", i, gap)
				}
			}
		}
		p.wantFleet(all-black-dripping, black+dripping)
	})
}

// wantFleet checks how many workers are fresh, and how many were never heard.
func (p *plane) wantFleet(fresh, missing int) {
	p.t.Helper()
	st, _ := p.store.Current()
	got := map[store.Freshness]int{}
	for _, e := range st.Entries {
		got[e.Freshness]++
	}
	if got[store.Fresh] != fresh || got[store.Missing] != missing {
		p.t.Errorf("got %v, want %d fresh and %d missing", got, fresh, missing)
	}
}

// TestSocketsAreBounded polls engines over loopback, and counts goroutines and
// sockets of the pollers.
func TestSocketsAreBounded(t *testing.T) {
	const engines = 20
	var served atomic.Int64
	// Each answer differs, so that each is a change of the store.
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pages(map[string]string{"/v1/loads": loads(int(served.Add(1) % 50))})(w, r)
	}))
	defer srv.Close()
	var open, most atomic.Int64
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, srv.Listener.Addr().String())
		if err != nil {
			return nil, err
		}
		most.Store(max(most.Load(), open.Add(1)))
		return &counted{Conn: c, open: &open}, nil
	}
	p := newPlane(t, func(r *registry.Options, o *Options) {
		o.Dial, r.Workers, r.ReportInterval = dial, nil, 100*time.Millisecond
		for i := range engines {
			r.Workers = append(r.Workers, fmt.Sprintf("http://127.0.0.1:%d,dialect=poll", 30000+i))
		}
	})
	before, filesBefore := runtime.NumGoroutine(), files()
	p.run()
	p.await(func(st *store.State) bool {
		for _, l := range st.Live {
			if l == nil || l.Sequence < 5 {
				return false
			}
		}
		return len(st.Live) == engines
	})
	// The server in this process has a goroutine and a socket for each as well.
	t.Logf("%d engines polled five times and more: %d goroutines and %d files more than before, the server's half included; %d connections at once",
		engines, runtime.NumGoroutine()-before, files()-filesBefore, most.Load())
	if most.Load() != engines {
		t.Errorf("%d connections at once, want one for each engine", most.Load())
	}
	p.stop()
	p.runs.Wait()
	if open.Load() != 0 {
		t.Errorf("%d connections left open", open.Load())
	}
}

// await waits until a state of the store is as wanted.
func (p *plane) await(ok func(*store.State) bool) {
	p.t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		st, changed := p.store.Current()
		if ok(st) {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			p.t.Fatal("the store is not as wanted after 30 s")
		}
	}
}

type counted struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

func (c *counted) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

// files counts the open files of this process; 0 where that is not shown.
func files() int {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0
	}
	return len(names)
}
