package loadstat

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

const (
	// defaultTopic is the topic of an engine that names none.
	defaultTopic  = "load"
	maxTopicBytes = 255
	maxPort       = 1<<16 - 1
)

// sockets is where an engine publishes. It is a plain value and comparable.
type sockets struct {
	host, topic string
	// port is that of rank 0, ranks their number.
	port, ranks int
}

// addr returns the address of a rank's socket.
func (s *sockets) addr(rank int) string {
	return net.JoinHostPort(s.host, strconv.Itoa(s.port+rank))
}

// String says where the sockets are, for people.
func (s *sockets) String() string {
	return fmt.Sprintf("%d sockets from %s, topic %q", s.ranks, s.addr(0), s.topic)
}

// same says whether both have the same socket for a rank.
func (s *sockets) same(other *sockets, rank int) bool {
	return rank < min(s.ranks, other.ranks) && s.host == other.host && s.port == other.port && s.topic == other.topic
}

// locate finds out where to dial. The host is always that of the worker, as
// discovery has it. The reason says why there is nothing to dial, and the error
// states it.
func locate(t *registry.Target, maxRanks int) (sockets, store.Reason, error) {
	stat := &t.Facts.LoadStat
	if stat.Port == 0 {
		return sockets{}, registry.ReasonUnsupported, fmt.Errorf("the engine names no sockets for its load")
	}
	u, err := url.Parse(t.URL)
	if err != nil {
		return sockets{}, ReasonBadEndpoint, fmt.Errorf("the worker's URL: %w", err)
	}
	s := sockets{host: u.Hostname(), topic: cmp.Or(stat.Topic, defaultTopic), port: stat.Port, ranks: stat.Ranks}
	switch {
	case !isOwn(stat.Host, s.host):
		return sockets{}, ReasonForeignEndpoint, fmt.Errorf("the engine names the host %.64q, discovery says %q", stat.Host, s.host)
	case s.ranks < 1 || s.ranks > maxRanks:
		return sockets{}, ReasonBadEndpoint, fmt.Errorf("the engine names %d sockets, 1 to %d are allowed", s.ranks, maxRanks)
	case s.port < 1 || s.port+s.ranks-1 > maxPort:
		return sockets{}, ReasonBadEndpoint, fmt.Errorf("%d sockets from port %d are beyond port %d", s.ranks, s.port, maxPort)
	case len(s.topic) > maxTopicBytes:
		return sockets{}, ReasonBadEndpoint, fmt.Errorf("the topic has %d bytes, at most %d are allowed", len(s.topic), maxTopicBytes)
	}
	return s, "", nil
}

// isOwn says whether a host that an engine names is the one that it is known
// by: none and wildcards are, and so is any loopback address on this machine.
func isOwn(named, known string) bool {
	if named == "" || named == "*" || strings.EqualFold(named, known) {
		return true
	}
	a, err := netip.ParseAddr(strings.Trim(named, "[]"))
	if err != nil {
		return isLoopback(named) && isLoopback(known)
	}
	b, err := netip.ParseAddr(known)
	return a.IsUnspecified() || (err == nil && a.Unmap() == b.Unmap()) || (isLoopback(named) && isLoopback(known))
}

func isLoopback(host string) bool {
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || (err == nil && a.Unmap().IsLoopback())
}
