package control

import (
	"net/netip"
	"slices"
)

// Guard says to which addresses a caller may have reports sent. start_reporting
// needs no credential and makes the reporter dial, so by itself a caller can
// have itself dialled only. It is immutable.
type Guard struct {
	// Targets may be named by every caller.
	Targets []netip.Prefix
}

// Allows says whether a caller may name a target: its own address, a loopback
// address where it calls from one, or one of Targets.
func (g *Guard) Allows(caller, target netip.Addr) bool {
	caller, target = caller.Unmap(), target.Unmap()
	if target.IsUnspecified() || target.IsMulticast() {
		return false
	}
	if caller.WithZone("") == target.WithZone("") || caller.IsLoopback() && target.IsLoopback() {
		return true
	}
	return slices.ContainsFunc(g.Targets, func(p netip.Prefix) bool { return p.Contains(target.WithZone("")) })
}
