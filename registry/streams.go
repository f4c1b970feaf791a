package registry

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// DefaultMaxLeasesPerAddress is used where Options.MaxLeasesPerAddress is 0.
	DefaultMaxLeasesPerAddress = 64
	// minLeasesPerAddress is what an address may have however few workers are
	// allowed.
	minLeasesPerAddress = 8
)

// leaseStreams are changes of who speaks by which lease that the book of leases
// does not know of yet. It is safe for concurrent use.
type leaseStreams struct {
	mu     sync.Mutex
	speaks map[string]bool
}

func (s *leaseStreams) note(id string, speaks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.speaks == nil {
		s.speaks = make(map[string]bool)
	}
	s.speaks[id] = speaks
}

func (s *leaseStreams) take() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	speaks := s.speaks
	s.speaks = nil
	return speaks
}

// streamed notes that the stream of a lease was bound, or is not any more.
func (r *Registry) streamed(b *Binding, speaks bool) {
	if b.claim.lease == "" {
		return
	}
	r.streams.note(b.claim.lease, speaks)
	poke(r.leased)
}

// countStreams tells the book of leases who speaks, and shows the leases that
// last longer by it. The caller holds r.mu for writing.
func (r *Registry) countStreams() {
	for id, speaks := range r.streams.take() {
		l := r.leases.Get(id)
		if l == nil {
			continue
		}
		due := l.Due
		r.leases.Stream(l, speaks, time.Now())
		if t := r.tenants[l.Holder]; !l.Due.Equal(due) && t != nil {
			r.keepers[l.Holder].lodge(t)
		}
	}
}

// crowd counts the leases of workers that no discovery lists, by the address of
// the reporter. Registry.mu guards it.
type crowd map[netip.Prefix]int

// enter and leave count a tenant in and out.
func (c crowd) enter(t *tenant) {
	if t.alone {
		c[t.from]++
	}
}

func (c crowd) leave(t *tenant) {
	if !t.alone {
		return
	}
	if c[t.from]--; c[t.from] <= 0 {
		delete(c, t.from)
	}
}

// from is what the leases of an address are counted by: the address, or the
// /64 of an IPv6 address.
func from(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits) // the zero Prefix for no address
	return p
}

// maxFrom is how many workers that no discovery lists an address may register:
// at most half of all.
func (o *Options) maxFrom() int {
	return min(o.MaxLeasesPerAddress, max(o.MaxWorkers/2, minLeasesPerAddress))
}

// crowded says why an address may register no further worker; nil where it may.
func (r *Registry) crowded(a *applicant) *Refusal {
	if r.opts.Exempt(a.Peer.Addr()) || r.crowd[from(a.Peer.Addr())] < r.opts.maxFrom() {
		return nil
	}
	return &Refusal{
		Reason:  ReasonTooManyLeases,
		Message: "the address " + a.Peer.Addr().String() + " has registered as many workers as are allowed; list them, or raise the bound",
	}
}
