package kube

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/loadplane/loadplane/registry"
)

// join makes one list of what all objects show, in the order of the objects'
// names. It returns the list by worker name, and how many gave way to others.
func join(all []seen) (specs []registry.WorkerSpec, gaveWay int) {
	byID := make(map[string][]seen, len(all))
	for _, s := range all {
		byID[s.spec.ID] = append(byID[s.spec.ID], s)
	}
	byOrigin := make(map[string][]seen, len(byID))
	for _, group := range byID {
		s := one(group)
		byOrigin[s.spec.Origin] = append(byOrigin[s.spec.Origin], s)
	}
	specs = make([]registry.WorkerSpec, 0, len(byID))
	for _, group := range byOrigin {
		kept := rightful(group)
		gaveWay += len(group) - len(kept)
		for _, s := range kept {
			specs = append(specs, s.spec)
		}
	}
	slices.SortFunc(specs, func(a, b registry.WorkerSpec) int { return cmp.Compare(a.ID, b.ID) })
	return specs, gaveWay
}

// one makes one worker of those that have one name. Those that are ready count
// before those that drain, and an identity before none. IPv4 comes first.
// What several show was first seen in the one that showed it first.
func one(all []seen) seen {
	group := all
	if len(group) == 1 {
		return group[0]
	}
	if ready := keep(group, func(s *seen) bool { return !s.spec.Draining }); len(ready) > 0 {
		group = ready
	}
	uid := ""
	for _, s := range group {
		uid = cmp.Or(uid, s.spec.UID)
	}
	if same := keep(group, func(s *seen) bool { return s.spec.UID == uid }); len(same) > 0 {
		group = same
	}
	slices.SortStableFunc(group, func(a, b seen) int { return a.addr.Compare(b.addr) })
	s := group[0]
	for _, o := range all {
		if o.spec.UID == s.spec.UID && o.addr == s.addr && o.since.Before(s.since) {
			s.since = o.since
		}
	}
	var others []netip.Addr
	for _, o := range group {
		if o.addr != s.addr && !slices.Contains(others, o.addr) {
			others = append(others, o.addr)
		}
	}
	s.spec.Peers = slices.Concat(s.spec.Peers, prefixes(others))
	return s
}

// rightful returns those of one origin that may keep it.
func rightful(group []seen) []seen {
	if len(group) == 1 {
		return group
	}
	if ready := keep(group, func(s *seen) bool { return !s.spec.Draining }); len(ready) > 0 {
		group = ready
	}
	newest := slices.MaxFunc(group, func(a, b seen) int { return a.since.Compare(b.since) })
	if slices.ContainsFunc(group, func(s seen) bool { return s.host || s.since.IsZero() }) {
		return group
	}
	return keep(group, func(s *seen) bool { return s.since.Equal(newest.since) })
}

// keep returns those that match, in a slice of its own.
func keep(group []seen, match func(*seen) bool) (kept []seen) {
	for i := range group {
		if match(&group[i]) {
			kept = append(kept, group[i])
		}
	}
	return kept
}
