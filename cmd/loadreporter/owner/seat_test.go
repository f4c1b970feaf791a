package owner

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/node"
	"github.com/loadplane/loadplane/cmd/loadreporter/source"
	"github.com/loadplane/loadplane/registry"
)

// seat returns a seat for an engine that nobody serves.
func seat(t *testing.T) *Seat {
	t.Helper()
	const url = "http://127.0.0.1:1"
	logger := slog.New(slog.DiscardHandler)
	src, err := source.New(source.Options{Target: registry.Target{URL: url}, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.New(node.Options{
		Source: src, Advertise: url, Origin: url, Interval: time.Second, StaleAfter: 3 * time.Second, Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Files: files(t), Node: n, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A registration that was forwarded is taken over though the last table of the owner did not have it.
func TestForwardedOnes(t *testing.T) {
	addr := netip.MustParseAddrPort("192.0.2.1:1")
	const old, recent = grace, grace - time.Millisecond
	for _, test := range []struct {
		name string
		// ago is when the registration was forwarded, with an interval of 2 s
		// and a lease of a minute.
		ago time.Duration
		// table is the lease in the owner's table, with an interval of 1 s; 0 for
		// none.
		table time.Duration
		want  time.Duration
	}{
		{"not in the table yet", recent, 0, 2 * time.Second},
		{"renewed since", recent, 30 * time.Second, 2 * time.Second},
		{"the table has a later one", recent, 2 * time.Minute, time.Second},
		{"long ago", old, 0, 0},
		{"long ago, and in the table", old, 30 * time.Second, time.Second},
		{"never", time.Hour, 30 * time.Second, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, now := seat(t), time.Now()
				if test.table > 0 {
					s.hear(map[netip.AddrPort]lease{addr: {time.Second, now.Add(test.table)}}, now)
				}
				s.asked[addr] = asked{lease{2 * time.Second, now.Add(time.Minute)}, now.Add(-test.ago)}
				left := s.take()
				switch {
				case test.want == 0 && len(left) != 0:
					t.Errorf("%+v is taken over", left)
				case test.want != 0 && (len(left) != 1 || left[0].Interval != test.want || left[0].Target != addr):
					t.Errorf("%+v is taken over, want an interval of %v", left, test.want)
				}
				if !s.owning() {
					t.Error("nobody owns")
				}
			})
		})
	}
}

// Leases that ended are not taken over.
func TestEndedLeasesAreNotTakenOver(t *testing.T) {
	s, now := seat(t), time.Now()
	s.hear(map[netip.AddrPort]lease{netip.MustParseAddrPort("192.0.2.1:1"): {time.Second, now}}, now)
	if left := s.take(); len(left) != 0 {
		t.Errorf("%+v is taken over", left)
	}
}

// An owner whose lock file is another one is no owner: another process may be.
func TestOwnerThatLostTheLockEnds(t *testing.T) {
	s := seat(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*checkEach)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for !s.owning() {
		select {
		case <-time.After(10 * time.Millisecond):
		case err := <-ended:
			t.Fatalf("ended with %v", err)
		}
	}
	if err := os.Remove(s.opts.Files.Lock); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, ErrReplaced) {
		t.Errorf("ended with %v", err)
	}
	if s.owning() {
		t.Error("it owns when it has ended")
	}
}
