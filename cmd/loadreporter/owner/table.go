package owner

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/push"
)

// tablePath is where the socket streams the owner's routers, a line of JSON
// whenever they changed and once in a beat.
const tablePath = "/targets"

const (
	// beat is the time between two lines of the table at most.
	beat = time.Second
	// hungAfter is after how long without a line the owner does not answer.
	hungAfter = 3 * beat
	// maxLineBytes bounds a line; a row has less than 200 bytes.
	maxLineBytes = 1 << 20
)

// row is a router in the table.
type row struct {
	Target     netip.AddrPort `json:"target"`
	IntervalMs int64          `json:"report_interval_ms"`
	LeaseMs    int64          `json:"lease_left_ms"`
}

// table is a line of the table.
type table struct {
	Targets []row `json:"targets"`
}

func tableOf(targets []push.Target, now time.Time) table {
	t := table{Targets: make([]row, 0, len(targets))}
	for i := range targets {
		if left := targets[i].Expires.Sub(now).Milliseconds(); left > 0 {
			t.Targets = append(t.Targets, row{targets[i].Addr, targets[i].Interval.Milliseconds(), left})
		}
	}
	return t
}

// lease is a router as one knows it who does not report to it.
type lease struct {
	interval time.Duration
	expires  time.Time
}

// parseTable reads a line. It refuses one with a row that cannot be.
func parseTable(line []byte, now time.Time) (map[netip.AddrPort]lease, error) {
	var t table
	if err := json.Unmarshal(line, &t); err != nil {
		return nil, fmt.Errorf("the table of the owner: %w", err)
	}
	leases := make(map[netip.AddrPort]lease, len(t.Targets))
	for _, r := range t.Targets {
		if !r.Target.IsValid() || r.Target.Port() == 0 || r.IntervalMs <= 0 || r.LeaseMs <= 0 {
			return nil, errors.New("the table of the owner has a row without a target, an interval or a lease")
		}
		most, longest := push.MaxDuration.Milliseconds(), push.MaxLease.Milliseconds()
		leases[r.Target] = lease{
			interval: time.Duration(min(r.IntervalMs, most)) * time.Millisecond,
			expires:  now.Add(time.Duration(min(r.LeaseMs, longest)) * time.Millisecond),
		}
	}
	return leases, nil
}

// streamTable answers a request with the table until it ends.
func (s *Seat) streamTable(w http.ResponseWriter, r *http.Request) {
	defer s.follow()()
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := http.NewResponseController(w)
	enc := json.NewEncoder(w)
	timer := time.NewTimer(beat)
	defer timer.Stop()
	for {
		targets, changed := s.opts.Node.Targets()
		now := time.Now()
		if out.SetWriteDeadline(now.Add(callTimeout)) != nil || enc.Encode(tableOf(targets, now)) != nil || out.Flush() != nil {
			return
		}
		timer.Reset(beat)
		select {
		case <-changed:
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
	}
}

// followTable copies the table of the owner until the connection ends. heard
// says that there was a line.
func (s *Seat) followTable(ctx context.Context) (heard bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://owner"+tablePath, http.NoBody)
	if err != nil {
		return false, err
	}
	resp, err := s.streams.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("the owner answered %d", resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4<<10), maxLineBytes)
	for lines.Scan() {
		now := time.Now()
		leases, err := parseTable(lines.Bytes(), now)
		if err != nil {
			return heard, err
		}
		heard = true
		s.hear(leases, now)
	}
	return heard, lines.Err()
}
