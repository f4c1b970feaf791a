package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/push"
)

// Limits of bodies.
const (
	maxRegistrationBytes = 64 << 10
	maxHintBytes         = 4 << 10
	maxReasonBytes       = 64
	maxNamedBytes        = 64
)

// keys are those of a start_reporting body; all are required.
var keys = []string{"ip", "lease_ttl_ms", "port", "report_interval_ms"}

// parseRequest reads the body of start_reporting by the rules of engines:
// exactly four keys, an address literal, integers that are not written in any
// other way. The port has 1 to 65535, the times any number from 1; those above
// push.MaxDuration and push.MaxLease are taken for these.
func parseRequest(body []byte) (push.Registration, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return push.Registration{}, errors.New("the body is not a JSON object")
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(keys, key) {
			return push.Registration{}, fmt.Errorf("%.*q is not a known key", maxNamedBytes, key)
		}
	}
	for _, key := range keys {
		if _, ok := fields[key]; !ok {
			return push.Registration{}, fmt.Errorf("%s is missing", key)
		}
	}
	ip, errIP := literal(fields["ip"])
	port, errPort := integer(fields, "port", math.MaxUint16)
	interval, errInterval := integer(fields, "report_interval_ms", math.MaxInt64)
	lease, errLease := integer(fields, "lease_ttl_ms", math.MaxInt64)
	r := push.Registration{
		Target:   netip.AddrPortFrom(ip, uint16(port)),
		Interval: millis(interval, push.MaxDuration), Lease: millis(lease, push.MaxLease),
	}
	return r, errors.Join(errIP, errPort, errInterval, errLease)
}

func literal(raw json.RawMessage) (netip.Addr, error) {
	var text string
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
		return netip.Addr{}, errors.New("ip is not a string")
	}
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, errors.New("ip is not an IPv4 or IPv6 address")
	}
	return ip.Unmap(), nil
}

func integer(fields map[string]json.RawMessage, key string, most int64) (int64, error) {
	n, err := strconv.ParseInt(string(fields[key]), 10, 64)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%s is not an integer", key)
	case n < 1 || n > most:
		return 0, fmt.Errorf("%s is not within 1 to %d", key, most)
	}
	return n, nil
}

// millis returns a time that is not longer than most.
func millis(ms int64, most time.Duration) time.Duration {
	return time.Duration(min(ms, most.Milliseconds())) * time.Millisecond
}

// parseHint reads the body of a refresh: nothing, or an object of reason and
// count.
func parseHint(body []byte) (Hint, error) {
	h := Hint{Count: 1}
	if len(bytes.TrimSpace(body)) == 0 {
		return h, nil
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	p := &h
	if err := dec.Decode(&p); err != nil || p == nil || dec.More() {
		return Hint{}, errors.New("the body is not an object of reason and count")
	}
	switch {
	case len(h.Reason) > maxReasonBytes:
		return Hint{}, fmt.Errorf("reason has more than %d bytes", maxReasonBytes)
	case h.Count < 1 || h.Count > math.MaxInt32:
		return Hint{}, fmt.Errorf("count is not within 1 to %d", math.MaxInt32)
	}
	return h, nil
}
