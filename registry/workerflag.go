package registry

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/loadplane/loadplane/store"
)

// Limits of what discovery may say of a worker.
const (
	maxModelBytes = 256
	maxZoneBytes  = 64
	maxPathBytes  = 4096
	maxListed     = 64
	minInterval   = 10 * time.Millisecond

	maxRunningLimit = 1 << 31
	maxPort         = 1<<16 - 1
)

// reporterPortLabel is the label that names the port of the load reporter where
// the key does not.
const reporterPortLabel = "reporter_port"

// WorkerSpec is one worker as a source of discovery names it. It is a plain value
// and must not be changed once handed over.
type WorkerSpec struct {
	// ID names the worker: by default its normalised URL scheme://host:port.
	ID string
	// URL is the base URL of the engine, without trailing slashes.
	URL string
	// Origin is the normalised host:port of URL.
	Origin string
	// Role is RoleUnspecified where it was not named; what the engine says
	// stands then, else RoleRegular.
	Role store.Role
	// Models are sorted and without duplicates; at most 64. Nil where none was
	// named; what the engine says stands then.
	Models []string
	// Zone is empty where it was not named.
	Zone string
	// Labels are nil without any; at most 64.
	Labels map[string]string
	// Dialect is the configured one; DialectUnspecified is auto.
	Dialect store.Dialect
	// Peers are addresses, beside those of the URL's host, from which the
	// engine may connect; at most 64.
	Peers []netip.Prefix
	// Draining says that the worker must get no new work.
	Draining bool
	// TokenFile and CAFile replace the general credentials; empty for those.
	TokenFile, CAFile string
	// Interval is the report interval, 10 ms or more; 0 for the general one.
	Interval time.Duration
	// MaxRunning is the most requests that a rank runs at once, 1 to 2^31; 0
	// where it was not named.
	MaxRunning int64
	// ReporterPort is the port of the engine's load reporter, 1 to 65535; 0
	// where it was not named. The monitor dialect dials it, and the push dialect
	// registers there in place of the URL's port.
	ReporterPort int
	// UID is the identity of what runs behind the URL, such as a Pod's; empty
	// where the source knows none. Another UID is another worker, whose load
	// begins anew.
	UID string
	// NoEngine says that nothing that reports runs here, such as a follower of
	// a multi-node engine. It is listed, and not asked.
	NoEngine bool
	// Guarded says that the address came from outside the plane's own settings:
	// addresses of the deny list are not dialled for it.
	Guarded bool
}

// ParseWorkerFlag reads the value of one --worker flag,
// URL[,key=value...], with the keys id, role (plain, prefill, decode), model
// and peers (both repeatable, and lists by +), zone, dialect, label.NAME,
// draining, token_file, ca_file, interval, max_running and reporter_port. The
// error names the key.
func ParseWorkerFlag(value string) (WorkerSpec, error) {
	raw, rest, more := strings.Cut(value, ",")
	s, err := NewSpec(raw)
	if err != nil || !more {
		return s, err
	}
	for pair := range strings.SplitSeq(rest, ",") {
		key, v, ok := strings.Cut(pair, "=")
		if !ok {
			return WorkerSpec{}, fmt.Errorf("%q is not key=value", cut(pair))
		}
		if err := s.Set(key, v); err != nil {
			return WorkerSpec{}, fmt.Errorf("%s: %w", cut(key), err)
		}
	}
	return s, nil
}

// NewSpec returns the spec of a URL alone, with its normalised form as the ID.
// The error says what is wrong with the URL.
func NewSpec(raw string) (WorkerSpec, error) {
	if err := checkText(raw, maxAddrBytes); err != nil {
		return WorkerSpec{}, fmt.Errorf("url: %w", err)
	}
	u, origin, err := splitURL(raw)
	switch {
	case err != nil:
		return WorkerSpec{}, fmt.Errorf("url: %w", err)
	case u.User != nil:
		return WorkerSpec{}, errors.New("url: user information is not allowed")
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(raw, "#"):
		return WorkerSpec{}, errors.New("url: query and fragment are not allowed")
	}
	id := u.Scheme + "://" + origin
	if err := checkText(id, maxAddrBytes); err != nil {
		return WorkerSpec{}, fmt.Errorf("url: %w", err)
	}
	return WorkerSpec{
		ID:     id,
		URL:    strings.TrimRight(u.String(), "/"),
		Origin: origin,
	}, nil
}

// Set changes one key by its text, by the rules of ParseWorkerFlag. The error
// does not name the key.
func (s *WorkerSpec) Set(key, value string) (err error) {
	name, isLabel := strings.CutPrefix(key, "label.")
	switch {
	case isLabel:
		return s.setLabel(name, value)
	case key == "id":
		s.ID, err = value, checkText(value, maxAddrBytes)
	case key == "role":
		s.Role, err = parseWord(value, store.RoleRegular, store.RolePrefill, store.RoleDecode)
	case key == "model":
		err = s.addModels(strings.Split(value, "+"))
	case key == "zone":
		s.Zone, err = value, checkText(value, maxZoneBytes)
	case key == "dialect":
		s.Dialect, err = parseWord(value, store.DialectUnspecified, store.DialectPush, store.DialectMonitor,
			store.DialectLoadstat, store.DialectPoll, store.DialectNative, store.DialectNone)
	case key == "peers":
		err = s.addPeers(strings.Split(value, "+"))
	case key == "draining":
		s.Draining, err = parseBool(value)
	case key == "token_file":
		s.TokenFile, err = value, checkText(value, maxPathBytes)
	case key == "ca_file":
		s.CAFile, err = value, checkText(value, maxPathBytes)
	case key == "interval":
		s.Interval, err = parseInterval(value)
	case key == "max_running":
		s.MaxRunning, err = parseMaxRunning(value)
	case key == "reporter_port":
		s.ReporterPort, err = parsePort(value)
	default:
		err = errors.New("unknown key")
	}
	return err
}

func (s *WorkerSpec) setLabel(name, value string) error {
	if err := checkText(name, maxZoneBytes); err != nil {
		return fmt.Errorf("label name: %w", err)
	}
	if err := checkText(value, maxModelBytes); err != nil {
		return err
	}
	if name == reporterPortLabel {
		if _, err := parsePort(value); err != nil {
			return err
		}
	}
	if len(s.Labels) >= maxListed {
		return fmt.Errorf("more than %d labels", maxListed)
	}
	s.Labels = maps.Clone(s.Labels)
	if s.Labels == nil {
		s.Labels = make(map[string]string)
	}
	s.Labels[name] = value
	return nil
}

func (s *WorkerSpec) addModels(names []string) error {
	for _, name := range names {
		if err := checkText(name, maxModelBytes); err != nil {
			return err
		}
	}
	models := slices.Concat(s.Models, names)
	slices.Sort(models)
	s.Models = slices.Compact(models)
	return checkCount(len(s.Models))
}

func (s *WorkerSpec) addPeers(texts []string) error {
	for _, text := range texts {
		p, err := parsePeer(text)
		if err != nil {
			return fmt.Errorf("%q is not an IP address or CIDR", cut(text))
		}
		s.Peers = append(s.Peers, p)
	}
	return checkCount(len(s.Peers))
}

// parsePeer reads a CIDR or an address; ranges of mapped IPv4 addresses and
// zones are refused.
func parsePeer(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err == nil && p.Addr().Is4In6() {
		err = errors.New("mapped")
	}
	return p.Masked(), err
}

// parseWord returns the one of known whose word is text.
func parseWord[T fmt.Stringer](text string, known ...T) (T, error) {
	words := make([]string, len(known))
	for i, k := range known {
		if words[i] = k.String(); words[i] == text {
			return k, nil
		}
	}
	return known[0], fmt.Errorf("%q is not supported; known are %s", cut(text), strings.Join(words, ", "))
}

func parseBool(text string) (bool, error) {
	if text != "true" && text != "false" {
		return false, fmt.Errorf("%q is not true or false", cut(text))
	}
	return text == "true", nil
}

func parseInterval(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration", cut(text))
	}
	if d < minInterval || d%time.Millisecond != 0 {
		return 0, fmt.Errorf("%s is below %s or not in whole milliseconds", d, minInterval)
	}
	return d, nil
}

func parseMaxRunning(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > maxRunningLimit {
		return 0, fmt.Errorf("%q is not a whole number from 1 to %d", cut(text), int64(maxRunningLimit))
	}
	return n, nil
}

func parsePort(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxPort {
		return 0, fmt.Errorf("%q is not a port from 1 to %d", cut(text), maxPort)
	}
	return n, nil
}

// reporterPort returns the port of the load reporter that discovery names; 0
// for none.
func (s *WorkerSpec) reporterPort() int {
	if s.ReporterPort != 0 {
		return s.ReporterPort
	}
	port, err := parsePort(s.Labels[reporterPortLabel])
	if err != nil {
		return 0
	}
	return port
}

// checkText refuses text that is empty, too long or not printable.
func checkText(text string, limit int) error {
	switch {
	case text == "":
		return errors.New("value is empty")
	case len(text) > limit:
		return fmt.Errorf("value is longer than %d bytes", limit)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) }):
		return errors.New("value is not printable UTF-8")
	}
	return nil
}

func checkCount(n int) error {
	if n > maxListed {
		return errors.New("more than " + strconv.Itoa(maxListed) + " values")
	}
	return nil
}

// cut bounds text that comes from outside to 256 bytes of valid UTF-8.
func cut(text string) string {
	const limit = 256
	if len(text) > limit {
		text = text[:limit]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\n", "; ")
}
