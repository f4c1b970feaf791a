package probe

import (
	"context"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
)

// TestReporterPortThatDropsPackets costs the time of one question, in which the
// engine is asked nothing else.
func TestReporterPortThatDropsPackets(t *testing.T) {
	for name, c := range map[string]struct{ patience, took time.Duration }{
		"asked alone":          {0, time.Second},
		"while load is read":   {300 * time.Millisecond, 300 * time.Millisecond},
		"with much of it left": {time.Minute, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{bodies: map[string]string{"/server_info": sglangInfo}}
				line := egress.NewLine()
				p, err := New(Options{
					Clock: store.NewClock(), Timeout: time.Second,
					Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
						if !strings.HasSuffix(addr, ":31000") {
							return e.dial(ctx, network, addr)
						}
						beside, stop := context.WithTimeout(ctx, time.Millisecond)
						defer stop()
						if leave, err := line.Join(beside); err == nil {
							leave()
							t.Error("another question may be under way")
						}
						<-ctx.Done()
						return nil, ctx.Err()
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithTimeout(t.Context(), time.Hour)
				defer stop()
				began := time.Now()
				f := p.Probe(ctx, registry.Target{URL: testURL, Line: line, Patience: c.patience})
				if took := time.Since(began); took != c.took {
					t.Errorf("asked for %s", took)
				}
				if o := offer(f, store.DialectMonitor); o.Verdict != registry.VerdictUnknown || o.Reason != registry.ReasonConnectFailed {
					t.Errorf("got %+v", o)
				}
				if o := offer(f, store.DialectLoadstat); o.Verdict != registry.VerdictOffered {
					t.Errorf("got %+v", o)
				}
				synctest.Wait()
			})
		})
	}
}

// TestEngineThatGoesAwayLeavesItOpen: what an engine did not have while it was
// going down, it may have when it is back.
func TestEngineThatGoesAwayLeavesItOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{}
		p := newProber(t, func(ctx context.Context, network, addr string) (net.Conn, error) {
			e.mu.Lock()
			asked := len(e.asked)
			e.mu.Unlock()
			if asked >= 2 {
				return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
			}
			c, err := e.dial(ctx, network, addr)
			return &brief{Conn: c}, err
		})
		f := p.Probe(t.Context(), registry.Target{URL: testURL})
		if len(e.asked) != 2 || f.Complete || len(f.Offers) != 4 {
			t.Errorf("asked %q, found %+v", e.asked, f)
		}
		for _, o := range f.Offers {
			if o.Verdict != registry.VerdictUnknown {
				t.Errorf("got %+v", o)
			}
		}
		synctest.Wait()
	})
}

// brief is a connection that takes one request.
type brief struct {
	net.Conn
	requests int
}

func (b *brief) Write(p []byte) (int, error) {
	if b.requests++; b.requests > 1 {
		b.Close()
	}
	return b.Conn.Write(p)
}

func (b *brief) RemoteAddr() net.Addr { return tcpConn{b.Conn}.RemoteAddr() }
