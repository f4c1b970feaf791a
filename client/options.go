package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/loadplane/loadplane/client/internal/link"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
)

// maxClientID is how many bytes of a client_id a plane takes.
const maxClientID = 128

// Options say which planes a Watcher follows, and how. They are a plain value;
// what they point to must not be changed once they were given to NewWatcher.
type Options struct {
	// Addresses are base URLs of planes, http or https, such as
	// "http://10.0.0.7:7400". At least one is needed. They are tried in order
	// from a random start. The Watcher never dials anything else, whatever a
	// plane says.
	Addresses []string
	// TLS is for https addresses; nil trusts the CAs of the system. A client
	// certificate for mTLS goes here.
	TLS *tls.Config
	// HTTPClient replaces the Watcher's own HTTP client; then TLS must be nil.
	// For http addresses it should speak HTTP/2 by prior knowledge, and it
	// should ping idle connections, but not more often than every 10 s.
	// Its Timeout is not used, and redirects are not followed. Nil: a client that has a new connection for
	// every stream, HTTP/2, no proxy, and pings after 10 s.
	HTTPClient *http.Client
	// Token returns the bearer token of a new stream; an error counts as a
	// failed attempt. It must heed its context. It is called from one goroutine
	// at a time, unless an earlier call did not heed its context. Nil: no token
	// is sent.
	Token func(ctx context.Context) (string, error)
	// Filter selects workers; nil selects all.
	Filter *pb.Filter
	// Detail is how much of a worker is sent; unspecified means ranks too.
	Detail pb.Detail
	// MinInterval is the shortest wanted time between two data messages, 0 to
	// 49 days, in whole milliseconds; 0 for none. The plane may change it.
	MinInterval time.Duration
	// HeartbeatInterval is the wanted time between two messages, 0 to 49 days,
	// in whole milliseconds; 0 for the plane's default. The plane may change
	// it; the watchdog goes by what the plane echoes.
	HeartbeatInterval time.Duration
	// ClientID names the router in logs of the plane, in 128 bytes at most. The
	// plane spreads the messages to clients of different names.
	ClientID string
	// Logger gets a line when a stream begins and when one ends; nil for none.
	Logger *slog.Logger
}

func (o Options) validate() error {
	if len(o.Addresses) == 0 {
		return errors.New("option Addresses: at least one is needed")
	}
	for i, a := range o.Addresses {
		if err := link.CheckAddress(a); err != nil {
			return fmt.Errorf("option Addresses: %w", err)
		}
		if slices.Contains(o.Addresses[:i], a) {
			return fmt.Errorf("option Addresses: %q stands twice", a)
		}
	}
	if len(o.ClientID) > maxClientID {
		return fmt.Errorf("option ClientID: %d bytes, the limit is %d", len(o.ClientID), maxClientID)
	}
	if o.HTTPClient != nil && o.TLS != nil {
		return errors.New("option TLS: an HTTPClient has its own")
	}
	if err := checkInterval("MinInterval", o.MinInterval); err != nil {
		return err
	}
	return checkInterval("HeartbeatInterval", o.HeartbeatInterval)
}

func checkInterval(option string, d time.Duration) error {
	if d < 0 || d%time.Millisecond != 0 || d.Milliseconds() > math.MaxUint32 {
		return fmt.Errorf("option %s: %v is not within 0 to %v, in whole milliseconds", option, d, time.Duration(math.MaxUint32)*time.Millisecond)
	}
	return nil
}

// request opens a watch that continues from a cursor; nil asks for a full.
func (o Options) request(resume *pb.Cursor) *pb.WatchSnapshotsRequest {
	return &pb.WatchSnapshotsRequest{
		Filter: o.Filter, Resume: resume, Detail: o.Detail, ClientId: o.ClientID,
		MinIntervalMs:       uint32(o.MinInterval.Milliseconds()),
		HeartbeatIntervalMs: uint32(o.HeartbeatInterval.Milliseconds()),
	}
}
