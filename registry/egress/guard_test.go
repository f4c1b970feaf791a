package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestDenied(t *testing.T) {
	for text, want := range map[string]bool{
		"127.0.0.1": true, "127.8.8.8": true, "::1": true, "::ffff:127.0.0.1": true,
		"169.254.169.254": true, "fe80::1": true, "fe80::1%eth0": true, "::ffff:169.254.169.254": true,
		"224.0.0.1": true, "ff02::1": true, "ff0e::1": true, "255.255.255.255": true,
		"0.0.0.0": true, "0.1.2.3": true, "::": true,
		"100.64.0.1": true, "100.127.255.255": true, "100.100.100.200": true,
		"168.63.129.16": true, "192.0.0.192": true, "fd20:ce::254": true, "fec0::1": true,
		"2002:7f00:1::1": true, "2001:0:1::1": true, "::7f00:1": true, "::10.0.0.1": true,
		"fd00:ec2::254": true, "64:ff9b::7f00:1": true, "64:ff9b::a9fe:a9fe": true, "64:ff9b:1::1": true,
		"10.0.0.1": false, "172.16.0.1": false, "192.168.1.1": false, "100.63.255.255": false, "100.128.0.0": false,
		"203.0.113.9": false, "1.0.0.0": false, "fd00:ec2::253": false, "fd12::1": false,
		"168.63.129.17": false, "192.0.0.191": false, "fd20:ce::253": false, "2001:1::1": false, "2003::1": false, "::1:0:0:1": false,
		"2001:db8::1": false, "::ffff:10.0.0.1": false,
	} {
		if got := Denied(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: denied %v", text, got)
		}
	}
	if !Denied(netip.Addr{}) {
		t.Error("no address is allowed")
	}
}

func TestDefaultDialInARestrictedContext(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	plain, restricted := t.Context(), Restrict(t.Context())
	for name, c := range map[string]struct {
		ctx     context.Context
		network string
		host    string
		denied  bool
	}{
		"not restricted":  {plain, "tcp", "127.0.0.1", false},
		"restricted":      {restricted, "tcp", "127.0.0.1", true},
		"by name":         {restricted, "tcp4", "localhost", true},
		"mapped":          {restricted, "tcp", "::ffff:127.0.0.1", true},
		"allowed":         {Restrict(plain, netip.MustParsePrefix("127.0.0.0/8")), "tcp", "127.0.0.1", false},
		"another allowed": {Restrict(plain, netip.MustParsePrefix("10.0.0.0/8")), "tcp", "127.0.0.1", true},
	} {
		err := try(DefaultDial(c.ctx, c.network, net.JoinHostPort(c.host, port)))
		if errors.Is(err, ErrDenied) != c.denied || (err == nil) == c.denied {
			t.Errorf("%s: %v", name, err)
		}
	}
	on := false
	switched := RestrictWhile(plain, func() bool { return on }, nil)
	for _, on = range []bool{true, false, true} {
		if err := try(DefaultDial(switched, "tcp", ln.Addr().String())); (err != nil) != on {
			t.Errorf("switched to %v: %v", on, err)
		}
	}
}

// try closes a connection.
func try(c net.Conn, err error) error {
	if err == nil {
		c.Close()
	}
	return err
}

func TestClientTellsADeniedAddress(t *testing.T) {
	c := New(Options{})
	defer c.Close()
	_, err := c.Get(Restrict(t.Context()), Request{URL: "http://127.0.0.1:1/", MaxBytes: 1})
	if !errors.Is(err, ErrDenied) || !errors.Is(err, ErrConnect) || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("%v", err)
	}
}

// TestControlAllowsAMappedAddress where what it stands for is allowed.
func TestControlAllowsAMappedAddress(t *testing.T) {
	ctx := Restrict(t.Context(), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("fe80::/10"))
	for address, allowed := range map[string]bool{
		"[::ffff:127.0.0.1]:1": true, "127.0.0.1:1": true, "[fe80::1%eth0]:1": true, "[::ffff:169.254.169.254]:1": false, "[::1]:1": false,
	} {
		if err := control(ctx, "tcp", address, nil); (err == nil) != allowed {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestControlRefusesWhatItCannotRead(t *testing.T) {
	for _, address := range []string{"", "name:1", "10.0.0.1", "/run/socket"} {
		if err := control(Restrict(t.Context()), "tcp", address, nil); !errors.Is(err, ErrDenied) {
			t.Errorf("%q: %v", address, err)
		}
	}
}
