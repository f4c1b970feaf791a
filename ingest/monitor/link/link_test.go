package link

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/ingest/monitor/frame"
	"go.uber.org/goleak"
	"google.golang.org/grpc/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestWriteHasADeadline: a peer that takes no byte breaks the connection.
func TestWriteHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		began := time.Now()
		_, err := (&bounded{near, time.Second}).Write([]byte("x"))
		if err == nil || time.Since(began) != time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		near.Close()
		if _, err := (&bounded{near, time.Second}).Write([]byte("x")); err == nil {
			t.Error("a closed connection took a byte")
		}
	})
}

func TestPeerOf(t *testing.T) {
	tcp := &addressed{remote: &net.TCPAddr{IP: net.ParseIP("::ffff:10.0.0.1"), Port: 5}}
	if got := peerOf(tcp); got.String() != "10.0.0.1:5" {
		t.Errorf("peer %s", got)
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if got := peerOf(near); got.IsValid() {
		t.Errorf("a pipe has the peer %s", got)
	}
}

func TestCodecRefusesOthers(t *testing.T) {
	if _, err := (codec{}).Marshal(1); err == nil {
		t.Error("an int was encoded")
	}
	if err := (codec{}).Unmarshal(mem.BufferSlice{}, new(int)); err == nil {
		t.Error("an int was decoded")
	}
	if data, err := (codec{}).Marshal(frame.Stop()); err != nil || data.Len() == 0 {
		t.Errorf("%d bytes, %v", data.Len(), err)
	}
}

// addressed is a connection with a remote address.
type addressed struct {
	net.Conn
	remote net.Addr
}

func (a *addressed) RemoteAddr() net.Addr { return a.remote }

// TestOpenIsBounded: a peer that reads nothing, one that answers nothing and one
// that is not there.
func TestOpenIsBounded(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for name, tt := range map[string]struct {
		read bool
		dial error
		want error
		took time.Duration
	}{
		"reads nothing":    {false, nil, ErrTimeout, time.Second},
		"answers nothing":  {true, nil, ErrTimeout, time.Second},
		"refuses":          {false, refused, syscall.ECONNREFUSED, 0},
		"dialled too long": {false, context.DeadlineExceeded, context.DeadlineExceeded, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer far.Close()
				if tt.read {
					go func() {
						for b := make([]byte, 1024); ; {
							if _, err := far.Read(b); err != nil {
								return
							}
						}
					}()
				}
				began := time.Now()
				l, err := Open(t.Context(), Options{Timeout: time.Second, Dial: func(context.Context, string, string) (net.Conn, error) {
					return near, tt.dial
				}}, "10.0.0.1:1")
				if l != nil || !errors.Is(err, tt.want) || time.Since(began) != tt.took {
					t.Errorf("%v after %s", err, time.Since(began))
				}
			})
		})
	}
}

// TestOpenEndsWithItsContext: nobody waits for an opening that is not wanted.
func TestOpenEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := Open(ctx, Options{Timeout: time.Hour, Dial: func(context.Context, string, string) (net.Conn, error) {
			return near, nil
		}}, "10.0.0.1:1")
		if err == nil || time.Since(began) != time.Millisecond {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}
