package registry

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// at is a registration of an engine on a port of a host, by a peer there.
func at(host string, port int) func(*Registration) {
	return func(reg *Registration) {
		addr := netip.MustParseAddr(strings.Trim(host, "[]"))
		reg.Spec.URL = "http://" + netip.AddrPortFrom(addr, uint16(port)).String()
		reg.Peer = netip.AddrPortFrom(addr, 5555)
	}
}

// TestLeasesWithoutStreamsSlowNobody: a thousand leases that ask for the
// shortest interval and never stream leave that of a reporter alone.
func TestLeasesWithoutStreamsSlowNobody(t *testing.T) {
	registered(t, func(p *plane) {
		honest := p.register(func(reg *Registration) { reg.Interval = 100 * time.Millisecond })
		p.bindLease(honest, "s1", 1)
		for i := range 1000 {
			idle := at(fmt.Sprintf("10.1.0.%d", 1+i/64), 1+i)
			if _, err := p.tryRegister(func(reg *Registration) { idle(reg); reg.Interval = 1 }); err != nil {
				t.Fatal(err)
			}
		}
		p.settle()
		if g, _, err := p.Granted(honest.ID); err != nil || g.Interval != 100*time.Millisecond {
			t.Errorf("granted %+v, %v", g, err)
		}
	})
}

// TestAddressFillsNotThePlane: what one address registers leaves room for
// others, and workers that are listed do not count.
func TestAddressFillsNotThePlane(t *testing.T) {
	for name, c := range map[string]struct {
		hosts      [2]string
		most, want int
		change     func(*Options)
	}{
		"half of few workers": {[2]string{"10.0.0.1", "10.0.0.2"}, 50, 25, nil},
		"by default":          {[2]string{"10.0.0.1", "10.0.0.2"}, 1000, 64, nil},
		"at least eight":      {[2]string{"10.0.0.1", "10.0.0.2"}, 10, 8, nil},
		"as set":              {[2]string{"10.0.0.1", "10.0.0.2"}, 1000, 70, func(o *Options) { o.MaxLeasesPerAddress = 70 }},
		"a network of IPv6":   {[2]string{"[2001:db8::1]", "[2001:db8:0:1::1]"}, 50, 25, nil},
		"loopback":            {[2]string{"127.0.0.1", "127.0.0.2"}, 50, 49, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleWith(t, func(o *Options) {
				o.MaxWorkers = c.most
				o.Workers = []string{"http://10.0.0.1:1,dialect=native"}
				if c.change != nil {
					c.change(o)
				}
			}, func(p *plane) {
				p.runAll()
				var leases []Lease
				for i := range c.most + 10 {
					if l, err := p.tryRegister(at(c.hosts[0], 2+i)); err == nil {
						leases = append(leases, l)
					}
				}
				if len(leases) != c.want {
					t.Fatalf("%d leases, want %d", len(leases), c.want)
				}
				if _, err := p.tryRegister(at("10.0.0.1", 1)); err != nil {
					t.Errorf("listed: %v", err)
				}
				if _, err := p.tryRegister(at(c.hosts[1], 1)); err != nil && name != "loopback" {
					t.Errorf("another address: %v", err)
				}
				if name == "a network of IPv6" {
					_, err := p.tryRegister(at("[2001:db8::2]", 1))
					wantRefusal(t, err, ReasonTooManyLeases, false)
				}
				peer := netip.AddrPortFrom(netip.MustParseAddr(strings.Trim(c.hosts[0], "[]")), 5555)
				if err := p.Deregister(leases[0].ID, peer); err != nil {
					t.Fatal(err)
				}
				if _, err := p.tryRegister(at(c.hosts[0], 2)); err != nil {
					t.Errorf("after one was given back: %v", err)
				}
				p.after(2*testStale + time.Second)
				if n := len(p.crowd); n != 0 {
					t.Errorf("%d addresses are counted once all leases ended: %v", n, p.crowd)
				}
			})
		})
	}
}

// TestLeaseWithoutAStreamIsShort, however long a life is wanted; that of a
// listed worker is not.
func TestLeaseWithoutAStreamIsShort(t *testing.T) {
	inBubble(t, []string{"http://10.0.0.2:1,dialect=native"}, func(p *plane) {
		p.runAll()
		long := func(change func(*Registration)) func(*Registration) {
			return func(reg *Registration) { change(reg); reg.TTL = 10 * time.Minute }
		}
		l := p.register(long(at("10.0.0.1", 1)))
		p.after(2*testStale - time.Second)
		if p.listed() != 2 {
			t.Error("ended before its time")
		}
		p.after(time.Second)
		if p.listed() != 1 || p.leaseEvents(leaseExpired) != 1 {
			t.Errorf("%d workers, %v expired", p.listed(), p.leaseEvents(leaseExpired))
		}
		_, err := p.renew(l, long(at("10.0.0.1", 1)))
		wantRefusal(t, err, ReasonUnknownLease, false)
		if l = p.register(long(at("10.0.0.2", 1))); l.Grant.TTL != 10*time.Minute {
			t.Errorf("the listed worker has %+v", l)
		}
	})
}

// TestRegistrationLoopLogsLittle: a reporter that comes and goes in a loop, on
// one port or on many, has bounded lines.
func TestRegistrationLoopLogsLittle(t *testing.T) {
	for name, port := range map[string]func(i int) int{
		"one worker": func(int) int { return 1 }, "many workers": func(i int) int { return 1 + i },
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			inBubbleWith(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&out, nil)) }, func(p *plane) {
				p.runAll()
				for i := range 3000 {
					l, err := p.tryRegister(at("10.0.0.1", port(i)))
					if err != nil {
						t.Fatal(err)
					}
					if err := p.Deregister(l.ID, testPeer); err != nil {
						t.Fatal(err)
					}
				}
				p.after(time.Second)
			})
			if n := strings.Count(out.String(), "\n"); n == 0 || n > 2*arrivalBurst {
				t.Errorf("%d lines", n)
			}
		})
	}
}
