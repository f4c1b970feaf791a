package query

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot/filter"
)

// What may be wrong with a request. Each error of the package is one of them
// by errors.Is, and says what is wrong by its text.
var (
	// ErrUnknown: a parameter does not exist.
	ErrUnknown = errors.New("unknown parameter")
	// ErrValue: a parameter has a value that it cannot have.
	ErrValue = errors.New("bad value")
	// ErrFilter: a filter is out of its bounds.
	ErrFilter = errors.New("bad filter")
)

// fault is an error of one kind with a text of its own.
type fault struct {
	kind error
	text string
}

// Errorf returns an error that is of one of the kinds above and says what the
// format makes of args.
func Errorf(kind error, format string, args ...any) error {
	return fault{kind, fmt.Sprintf(format, args...)}
}

// Unknown returns the error of a parameter that does not exist.
func Unknown(key string) error {
	return Errorf(ErrUnknown, "the query key %q does not exist", Echo(key))
}

// Echo returns what an error repeats of a request: its first 64 bytes, as
// valid UTF-8.
func Echo(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxEcho)], "") }

// Error returns the text alone.
func (f fault) Error() string { return f.text }

// Unwrap returns the kind.
func (f fault) Unwrap() error { return f.kind }

const (
	// maxEcho bounds what an error repeats of a request, bytes.
	maxEcho = 64
	// maxWait is the longest time that an answer is held back.
	maxWait = time.Minute
	// maxClientID bounds the name of a client, bytes.
	maxClientID = 128
)

// Query is what a request asks for. It is a plain value.
type Query struct {
	// Filter is nil for all workers.
	Filter *filter.Filter
	// Brief leaves out the ranks.
	Brief bool
	// Upstream asks for the shape that SGLang's router shows.
	Upstream bool
	// Wait is how long an unchanged answer may be held back, up to a minute.
	Wait time.Duration
	// MinInterval and Heartbeat are those asked for; 0 for none.
	MinInterval, Heartbeat time.Duration
	// ClientID names the client; may be empty.
	ClientID string
}

// Selection returns what a message selects, at which detail.
func Selection(f *pb.Filter, d pb.Detail) (Query, error) {
	var q Query
	switch d {
	case pb.Detail_DETAIL_UNSPECIFIED, pb.Detail_DETAIL_RANKS:
	case pb.Detail_DETAIL_WORKERS:
		q.Brief = true
	default:
		return q, Errorf(ErrValue, "detail %d does not exist", d)
	}
	s := filter.Selection{
		Models: f.GetModels(), Zones: f.GetZones(), WorkerIDs: f.GetWorkerIds(),
		Labels: make(map[string][]string, len(f.GetLabels())),
	}
	for _, r := range f.GetRoles() {
		if r < 0 || r > pb.Role_ROLE_DECODE {
			r = pb.Role_ROLE_UNSPECIFIED
		}
		s.Roles = append(s.Roles, store.Role(r))
	}
	for _, l := range f.GetLabels() {
		if _, twice := s.Labels[l.GetKey()]; twice {
			return q, Errorf(ErrFilter, "labels: a name is there twice")
		}
		s.Labels[l.GetKey()] = l.GetValues()
	}
	return q.with(s)
}

// Watch returns what the request for a watch asks for.
func Watch(req *pb.WatchSnapshotsRequest) (Query, error) {
	q, err := Selection(req.GetFilter(), req.GetDetail())
	if err != nil {
		return q, err
	}
	q.MinInterval = time.Duration(req.GetMinIntervalMs()) * time.Millisecond
	q.Heartbeat = time.Duration(req.GetHeartbeatIntervalMs()) * time.Millisecond
	q.ClientID = req.GetClientId()
	if len(q.ClientID) > maxClientID {
		return q, Errorf(ErrValue, "client_id has %d bytes, the limit is %d", len(q.ClientID), maxClientID)
	}
	return q, nil
}

// with adds the filter of a selection.
func (q Query) with(s filter.Selection) (Query, error) {
	f, err := filter.New(s)
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n") // one fault a line
		return q, Errorf(ErrFilter, "%s", first)
	}
	q.Filter = f
	return q, nil
}

// OfSnapshot returns what the query of a URL asks of a snapshot.
func OfSnapshot(raw string) (Query, error) { return parse(raw, (*parser).snapshot) }

// OfWatch returns what the query of a URL asks of a watch.
func OfWatch(raw string) (Query, error) { return parse(raw, (*parser).watch) }

// parser reads one query. It is for one goroutine.
type parser struct {
	Query
	selection filter.Selection
}

func parse(raw string, own func(p *parser, key string, values []string) error) (Query, error) {
	all, err := url.ParseQuery(raw)
	if err != nil {
		return Query{}, Errorf(ErrValue, "the query cannot be parsed")
	}
	p := parser{selection: filter.Selection{Labels: make(map[string][]string)}}
	for key, values := range all {
		if known, err := p.common(key, values); err != nil {
			return p.Query, err
		} else if known {
			continue
		}
		if err := own(&p, key, values); err != nil {
			return p.Query, err
		}
	}
	return p.with(p.selection)
}

// common reads what both kinds of requests may ask for.
func (p *parser) common(key string, values []string) (known bool, err error) {
	name, isLabel := strings.CutPrefix(key, "label.")
	switch {
	case isLabel:
		p.selection.Labels[name] = values
	case key == "model":
		p.selection.Models = values
	case key == "zone":
		p.selection.Zones = values
	case key == "worker":
		p.selection.WorkerIDs = values
	case key == "role":
		p.selection.Roles, err = roles(values)
	case key == "detail":
		p.Brief, err = word(key, values, "ranks", "workers")
	default:
		return false, nil
	}
	return true, err
}

func (p *parser) snapshot(key string, values []string) (err error) {
	switch key {
	case "shape":
		p.Upstream, err = word(key, values, "", "upstream")
	case "wait":
		p.Wait, err = duration(key, values)
	default:
		err = Unknown(key)
	}
	return err
}

func (p *parser) watch(key string, values []string) (err error) {
	switch key {
	case "min_interval_ms":
		p.MinInterval, err = milliseconds(key, values)
	case "heartbeat_ms":
		p.Heartbeat, err = milliseconds(key, values)
	default:
		err = Unknown(key)
	}
	return err
}

func roles(values []string) ([]store.Role, error) {
	out := make([]store.Role, 0, len(values))
	for _, v := range values {
		role := store.RoleUnspecified
		for _, r := range []store.Role{store.RoleRegular, store.RolePrefill, store.RoleDecode} {
			if r.String() == v {
				role = r
			}
		}
		if role == store.RoleUnspecified {
			return nil, Errorf(ErrValue, "role can be \"plain\", \"prefill\" or \"decode\", and is %q", Echo(v))
		}
		out = append(out, role)
	}
	return out, nil
}

// word says whether the one value is second; first may be named too, unless it
// is empty.
func word(key string, values []string, first, second string) (bool, error) {
	v, err := single(key, values)
	switch {
	case err != nil:
		return false, err
	case v == second:
		return true, nil
	case v == first && first != "":
		return false, nil
	case first == "":
		return false, Errorf(ErrValue, "%s can only be %q, and is %q", key, second, Echo(v))
	}
	return false, Errorf(ErrValue, "%s can be %q or %q, and is %q", key, first, second, Echo(v))
}

// duration reads a time such as 20s or 1m30s; above a minute it is a minute.
func duration(key string, values []string) (time.Duration, error) {
	v, err := single(key, values)
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		return 0, Errorf(ErrValue, "%s must be a time such as 20s, and is %q", key, Echo(v))
	}
	return min(d, maxWait), nil
}

func milliseconds(key string, values []string) (time.Duration, error) {
	v, err := single(key, values)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil {
		return 0, Errorf(ErrValue, "%s must be a number of milliseconds, and is %q", key, Echo(v))
	}
	return time.Duration(n) * time.Millisecond, nil
}

func single(key string, values []string) (string, error) {
	if len(values) != 1 {
		return "", Errorf(ErrValue, "%s can be there once only", key)
	}
	return values[0], nil
}
