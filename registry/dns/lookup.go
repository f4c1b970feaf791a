package dns

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// udpBytes is the size of the UDP answers that are asked for, which no path
// cuts (the DNS flag day of 2020 recommends it).
const udpBytes = 1232

// Bounds of what one name may lead to.
const (
	// maxTargets is that of the targets of an SRV name.
	maxTargets = 2000
	// maxAddresses is that of the addresses, each with its port.
	maxAddresses = 10_000
)

// Exchange sends one question to a server and returns the answer, over TCP or
// UDP. It is for one call at a time on each server, or for several.
type Exchange func(ctx context.Context, server string, tcp bool, question *dns.Msg) (*dns.Msg, error)

// exchange asks over the network.
func exchange(ctx context.Context, server string, tcp bool, question *dns.Msg) (*dns.Msg, error) {
	c := &dns.Client{Net: "udp", UDPSize: udpBytes}
	if tcp {
		c.Net = "tcp"
	}
	answer, _, err := c.ExchangeContext(ctx, question, server)
	return answer, err
}

// resolver asks servers in turn. It is safe for concurrent use.
type resolver struct {
	servers []string
	config  *dns.ClientConfig
	timeout time.Duration
	ask     Exchange
}

// found is what a record's name leads to at one moment.
type found struct {
	at []netip.AddrPort
	// ttl is the shortest time to live of all that led there.
	ttl time.Duration
	// name is the full name that was answered.
	name string
}

// add adds addresses with a port, up to the bound.
func (f *found) add(addrs []netip.Addr, port uint16) error {
	if len(f.at)+len(addrs) > maxAddresses {
		return failf(ReasonBadAnswer, "%s has more than %d addresses", f.name, maxAddresses)
	}
	for _, a := range addrs {
		f.at = append(f.at, netip.AddrPortFrom(a, port))
	}
	return nil
}

// lookup returns where a record's name leads to; at least one address without
// an error. settled is the full name that was answered before; only while there
// is none, the suffixes of the search list are tried in turn. Else a name that
// is not there for a moment would lead to what another suffix makes of it.
func (r *resolver) lookup(ctx context.Context, record *Record, settled string) (found, error) {
	names := []string{settled}
	if settled == "" {
		names = r.config.NameList(record.Name)
	}
	var first error
	for _, name := range names {
		f, err := r.lookupName(ctx, name, record)
		if err == nil {
			return f, nil
		}
		first = cmp.Or(first, err)
		// Another suffix is tried only where the name is not there: a server
		// that failed may know it.
		if !absent(err) {
			return found{}, err
		}
	}
	return found{}, first
}

func (r *resolver) lookupName(ctx context.Context, name string, record *Record) (found, error) {
	if record.SRV() {
		return r.services(ctx, name)
	}
	addrs, ttl, err := r.addresses(ctx, name)
	if err != nil {
		return found{}, err
	}
	f := found{ttl: ttl, name: name}
	err = f.add(addrs, record.Port)
	return f, err
}

// addresses returns the IPv4 addresses of a name; where it has none, the IPv6
// ones. So a worker with both counts once.
func (r *resolver) addresses(ctx context.Context, name string) ([]netip.Addr, time.Duration, error) {
	rrs, ttl, err := r.query(ctx, name, dns.TypeA)
	if err != nil && reasonOf(err) == ReasonNoRecords {
		rrs, ttl, err = r.query(ctx, name, dns.TypeAAAA)
	}
	if err != nil {
		return nil, 0, err
	}
	return addrsOf(rrs), ttl, nil
}

func addrsOf(rrs []dns.RR) (addrs []netip.Addr) {
	for _, rr := range rrs {
		var ip net.IP
		switch rr := rr.(type) {
		case *dns.A:
			ip = rr.A
		case *dns.AAAA:
			ip = rr.AAAA
		}
		if a, ok := netip.AddrFromSlice(ip); ok {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs
}

// services returns the addresses of the targets of a name's SRV records. Their
// priorities and weights are for clients that choose; here each is a worker.
func (r *resolver) services(ctx context.Context, name string) (found, error) {
	rrs, ttl, err := r.query(ctx, name, dns.TypeSRV)
	if err != nil {
		return found{}, err
	}
	offers, targets := offered(rrs)
	if targets > maxTargets {
		return found{}, failf(ReasonBadAnswer, "%s has more than %d targets", name, maxTargets)
	}
	f := found{ttl: ttl, name: name}
	known := make(map[string][]netip.Addr, targets)
	for _, o := range offers {
		if _, ok := known[o.target]; !ok {
			if known[o.target], err = r.target(ctx, o.target, &f); err != nil {
				return found{}, err
			}
		}
		if err := f.add(known[o.target], o.port); err != nil {
			return found{}, err
		}
	}
	if len(f.at) == 0 {
		return found{}, failf(ReasonNoRecords, "%s has no service", name)
	}
	return f, nil
}

// target returns the addresses of one target, none where it is not there: the
// others are there all the same.
func (r *resolver) target(ctx context.Context, name string, f *found) ([]netip.Addr, error) {
	addrs, ttl, err := r.addresses(ctx, name)
	switch {
	case err == nil:
		f.ttl = min(f.ttl, ttl)
	case !absent(err):
		return nil, err
	}
	return addrs, nil
}

// offer is what one SRV record says.
type offer struct {
	target string
	port   uint16
}

// offered returns what SRV records offer, and how many targets that are. A
// target of "." says that the service is decidedly not there (RFC 2782), and no
// engine is at port 0.
func offered(rrs []dns.RR) (offers []offer, targets int) {
	known := make(map[string]bool)
	for _, rr := range rrs {
		srv, ok := rr.(*dns.SRV)
		if !ok || srv.Target == "." || srv.Port == 0 {
			continue
		}
		o := offer{strings.ToLower(srv.Target), srv.Port}
		known[o.target] = true
		offers = append(offers, o)
	}
	return offers, len(known)
}

// query asks the servers in turn for records of one type, until one says
// definitely what there is.
func (r *resolver) query(ctx context.Context, name string, kind uint16) (rrs []dns.RR, ttl time.Duration, err error) {
	err = failf(ReasonNoAnswer, "there is no server to ask")
	for _, server := range r.servers {
		var answer *dns.Msg
		if answer, err = r.exchange(ctx, server, name, kind); err != nil {
			continue
		}
		if rrs, ttl, err = read(answer, name, kind); err == nil {
			return rrs, ttl, nil
		}
		if absent(err) {
			return nil, 0, err
		}
	}
	return nil, 0, err
}

// exchange asks one server, over TCP where UDP had no room for the answer.
func (r *resolver) exchange(ctx context.Context, server, name string, kind uint16) (*dns.Msg, error) {
	ctx, stop := context.WithTimeout(ctx, r.timeout)
	defer stop()
	question := new(dns.Msg).SetQuestion(name, kind).SetEdns0(udpBytes, false)
	answer, err := r.ask(ctx, server, false, question)
	if err == nil && answer.Truncated {
		answer, err = r.ask(ctx, server, true, question)
	}
	var no net.Error
	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil, errors.As(err, &no):
		return nil, failf(ReasonNoAnswer, "%s does not answer for %s: %v", server, name, err)
	}
	return nil, failf(ReasonBadAnswer, "%s answers for %s: %v", server, name, err)
}

// read returns the records of one type that answer a question, through aliases
// (CNAME), and the shortest time to live of all of them.
func read(m *dns.Msg, name string, kind uint16) (rrs []dns.RR, ttl time.Duration, err error) {
	what := dns.TypeToString[kind] + " of " + name
	switch {
	case m.Rcode == dns.RcodeNameError:
		return nil, 0, failf(ReasonNoName, "%s does not exist", name)
	case m.Rcode != dns.RcodeSuccess:
		return nil, 0, failf(ReasonServerFailed, "%s: the server answers %s", what, dns.RcodeToString[m.Rcode])
	case m.Truncated:
		return nil, 0, failf(ReasonBadAnswer, "%s: the answer is cut", what)
	case len(m.Question) != 1 || !strings.EqualFold(m.Question[0].Name, name) || m.Question[0].Qtype != kind:
		return nil, 0, failf(ReasonBadAnswer, "%s: the answer is to another question", what)
	}
	path, lowest := chain(m.Answer, name)
	for _, rr := range m.Answer {
		h := rr.Header()
		if h.Rrtype == kind && h.Class == dns.ClassINET && slices.Contains(path, strings.ToLower(h.Name)) {
			rrs, lowest = append(rrs, rr), min(lowest, h.Ttl)
		}
	}
	if len(rrs) == 0 {
		return nil, 0, failf(ReasonNoRecords, "%s: there is no record", what)
	}
	return rrs, time.Duration(lowest) * time.Second, nil
}

// chain returns the names that a name leads to by aliases, itself first, in
// lower case, and the shortest time to live of the aliases.
func chain(answer []dns.RR, name string) (path []string, lowest uint32) {
	path, lowest = []string{strings.ToLower(name)}, 1<<31-1 // RFC 2181 section 8
	for grown := true; grown; {
		grown = false
		for _, rr := range answer {
			alias, ok := rr.(*dns.CNAME)
			if !ok || strings.ToLower(alias.Hdr.Name) != path[len(path)-1] {
				continue
			}
			if to := strings.ToLower(alias.Target); !slices.Contains(path, to) {
				path, lowest, grown = append(path, to), min(lowest, alias.Hdr.Ttl), true
			}
			break
		}
	}
	return path, lowest
}
