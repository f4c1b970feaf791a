package serve

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// TestEndsOfHTTP has a call under way that takes half a second or an hour.
func TestEndsOfHTTP(t *testing.T) {
	tests := map[string]struct {
		cause    error
		takes    time.Duration
		end      time.Duration
		answered bool
	}{
		"answers what is under way":  {nil, 500 * time.Millisecond, 500 * time.Millisecond, true},
		"does not wait for ever":     {nil, time.Hour, time.Second, false},
		"cuts what is under way":     {ErrAbort, 500 * time.Millisecond, 0, false},
		"another cause is as no one": {net.ErrClosed, 500 * time.Millisecond, 500 * time.Millisecond, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := bufconn.Listen(1 << 10)
				ctx, cancel := context.WithCancelCause(t.Context())
				h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					select {
					case <-time.After(tt.takes):
						w.WriteHeader(http.StatusOK)
					case <-r.Context().Done():
					}
				})
				ended := make(chan error, 1)
				go func() { ended <- HTTP(ctx, l, h, slog.New(slog.DiscardHandler)) }()
				answered := make(chan bool, 1)
				go func() {
					client := &http.Client{Transport: &http.Transport{
						DisableKeepAlives: true,
						DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return l.DialContext(ctx) },
					}}
					r, err := client.Get("http://engine/")
					if err == nil {
						_ = r.Body.Close()
					}
					answered <- err == nil
				}()
				synctest.Wait()
				begun := time.Now()
				cancel(tt.cause)
				if err := <-ended; err != nil {
					t.Errorf("HTTP: %v", err)
				}
				// The server looks for the end of calls in growing steps.
				if took := time.Since(begun); took < tt.end || took > tt.end+500*time.Millisecond {
					t.Errorf("it ended after %v, want %v", took, tt.end)
				}
				if got := <-answered; got != tt.answered {
					t.Errorf("the call is answered: %v", got)
				}
			})
		})
	}
}

func TestHTTPReturnsTheErrorOfItsListener(t *testing.T) {
	l := bufconn.Listen(1)
	_ = l.Close()
	if err := HTTP(t.Context(), l, http.NotFoundHandler(), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("no error")
	}
}
