package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
)

// denied are the ranges that addresses of outside sources must not lead to,
// beside loopback, link-local, multicast and unspecified ones: this network
// (RFC 1122), the shared address space (RFC 6598), the limited broadcast
// (RFC 919), the prefixes that translate or tunnel to IPv4 (RFC 6052, 8215, 3056
// and 4380, and the deprecated compatible ones of RFC 4291), the deprecated
// site-local ones (RFC 3879), and the addresses of the metadata services of AWS
// and Google in IPv6, of the host of Azure, and of Oracle.
var denied = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("2002::/16"),
	netip.MustParsePrefix("2001::/32"),
	netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("fec0::/10"),
	netip.MustParsePrefix("fd00:ec2::254/128"),
	netip.MustParsePrefix("fd20:ce::254/128"),
	netip.MustParsePrefix("168.63.129.16/32"),
	netip.MustParsePrefix("192.0.0.192/32"),
}

// guardKey is the key of a guard in a context.
type guardKey struct{}

// guard is what a restricted context carries. It is immutable.
type guard struct {
	// on says whether it restricts now.
	on    func() bool
	allow []netip.Prefix
}

// Restrict returns a context in which DefaultDial refuses the addresses of the
// deny list, unless they are within allow.
func Restrict(ctx context.Context, allow ...netip.Prefix) context.Context {
	return RestrictWhile(ctx, func() bool { return true }, allow)
}

// RestrictWhile is Restrict for the time in which on returns true. It is asked
// at every connection, by several goroutines.
func RestrictWhile(ctx context.Context, on func() bool, allow []netip.Prefix) context.Context {
	return context.WithValue(ctx, guardKey{}, &guard{on: on, allow: allow})
}

// Denied says whether an address is on the deny list: loopback, link-local,
// multicast, site-local, unspecified, in the shared address space, one that leads
// to an IPv4 address, or a metadata service's. An IPv4 address that is mapped to IPv6 is what it stands
// for.
func Denied(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return !addr.IsValid() || addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() ||
		addr.IsLinkLocalUnicast() || within(denied, addr)
}

func within(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// DefaultDial connects as a plain dialer does. In a context of Restrict it
// refuses denied addresses with ErrDenied: it looks at the resolved address of
// each connection, before a packet is sent. It is a Dial.
func DefaultDial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Resolver: &net.Resolver{PreferGo: true}, ControlContext: control}
	return d.DialContext(ctx, network, addr)
}

// control refuses an address that is about to be connected to.
func control(ctx context.Context, _, address string, _ syscall.RawConn) error {
	g, ok := ctx.Value(guardKey{}).(*guard)
	if !ok || !g.on() {
		return nil
	}
	// An address that cannot be read is not known to be allowed.
	target, _ := netip.ParseAddrPort(address)
	addr := target.Addr().Unmap().WithZone("")
	if !Denied(addr) || within(g.allow, addr) {
		return nil
	}
	return fmt.Errorf("%w (--egress-allow opens its prefix): %s", ErrDenied, address)
}
