package dns

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/loadplane/loadplane/registry"
	"github.com/miekg/dns"
)

// srvPrefix marks a name that is asked for SRV records.
const srvPrefix = "srv:"

// Record is one name of the DNS behind which workers are. It is a plain value.
type Record struct {
	// Name is the name as it was written.
	Name string
	// Port is the workers' port, 1 to 65535; 0 where SRV records say it.
	Port uint16
	// keys are those of each worker.
	keys   [][2]string
	scheme string
}

// SRV says whether SRV records are asked for, and not addresses.
func (r *Record) SRV() bool { return r.Port == 0 }

// ParseRecord reads the value of one --dns flag: NAME:PORT for addresses, or
// srv:NAME for SRV records, and [,key=value...] with the keys of --worker but
// id, and with scheme (http, the default, or https). The error names the key.
func ParseRecord(value string) (Record, error) {
	raw, rest, more := strings.Cut(value, ",")
	r, err := newRecord(raw)
	if err != nil || !more {
		return r, err
	}
	sample, err := r.spec(netip.AddrPortFrom(netip.IPv4Unspecified(), max(r.Port, 1)))
	if err != nil {
		return Record{}, err
	}
	for pair := range strings.SplitSeq(rest, ",") {
		key, v, ok := strings.Cut(pair, "=")
		switch {
		case !ok:
			return Record{}, fmt.Errorf("%.64q is not key=value", pair)
		case key == "scheme" && (v == "http" || v == "https"):
			r.scheme = v
		case key == "scheme":
			return Record{}, fmt.Errorf("scheme: %.64q is neither http nor https", v)
		case key == "id":
			return Record{}, errors.New("id: workers of a name have their addresses as ids")
		default:
			if err := sample.Set(key, v); err != nil {
				return Record{}, fmt.Errorf("%.64s: %w", key, err)
			}
			r.keys = append(r.keys, [2]string{key, v})
		}
	}
	return r, nil
}

// newRecord reads what stands before the keys.
func newRecord(raw string) (Record, error) {
	r := Record{scheme: "http"}
	name, isSRV := strings.CutPrefix(raw, srvPrefix)
	if !isSRV {
		host, port, err := net.SplitHostPort(raw)
		if err != nil {
			return r, fmt.Errorf("%.256q is neither NAME:PORT nor srv:NAME", raw)
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return r, fmt.Errorf("%.64q is not a port", port)
		}
		name, r.Port = host, uint16(n)
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return r, fmt.Errorf("%s is an address; name it by --worker", name)
	}
	if _, ok := dns.IsDomainName(name); !ok || name == "" || name == "." || !printable(name) {
		return r, fmt.Errorf("%.256q is not a name", name)
	}
	r.Name = name
	return r, nil
}

// printable says that a name has only what host names and services are made
// of.
func printable(name string) bool {
	return !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-_.", c)
	})
}

// spec returns the worker at an address. Its id is its normalised URL.
func (r *Record) spec(at netip.AddrPort) (registry.WorkerSpec, error) {
	s, err := registry.NewSpec(r.scheme + "://" + netip.AddrPortFrom(at.Addr().Unmap(), at.Port()).String())
	if err != nil {
		return s, err
	}
	for _, kv := range r.keys {
		if err := s.Set(kv[0], kv[1]); err != nil {
			return s, fmt.Errorf("%s: %w", kv[0], err)
		}
	}
	s.Guarded = true
	return s, nil
}

// specs returns the workers at addresses, sorted by id.
func (r *Record) specs(at []netip.AddrPort) ([]registry.WorkerSpec, error) {
	byID := make(map[string]registry.WorkerSpec, len(at))
	for _, a := range at {
		s, err := r.spec(a)
		if err != nil {
			return nil, err
		}
		byID[s.ID] = s
	}
	specs := make([]registry.WorkerSpec, 0, len(byID))
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		specs = append(specs, byID[id])
	}
	return specs, nil
}
