package query_test

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/api/query"
	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot/filter"
)

func newFilter(t *testing.T, s filter.Selection) *filter.Filter {
	t.Helper()
	f, err := filter.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestMessagesAndURLsSelectAlike(t *testing.T) {
	const rest = "&role=plain&role=decode&worker=a:1&label.tier=x&label.tier=y&label.rack=1"
	byURL, err := query.OfSnapshot("model=m2&model=m1&zone=eu" + rest)
	if err != nil {
		t.Fatal(err)
	}
	byMessage, err := query.Selection(&pb.Filter{
		Models: []string{"m1", "m2", "m1"}, Zones: []string{"eu"}, Roles: []pb.Role{pb.Role_ROLE_DECODE, pb.Role_ROLE_REGULAR},
		WorkerIds: []string{"a:1"}, Labels: []*pb.LabelMatch{{Key: "rack", Values: []string{"1"}}, {Key: "tier", Values: []string{"y", "x"}}},
	}, pb.Detail_DETAIL_UNSPECIFIED)
	if err != nil {
		t.Fatal(err)
	}
	want := newFilter(t, filter.Selection{
		Models: []string{"m1", "m2"}, Zones: []string{"eu"}, Roles: []store.Role{store.RoleRegular, store.RoleDecode},
		WorkerIDs: []string{"a:1"}, Labels: map[string][]string{"tier": {"x", "y"}, "rack": {"1"}},
	})
	if !byURL.Filter.Equal(want) || !byMessage.Filter.Equal(want) {
		t.Errorf("hashes %x by URL, %x by message, want %x", byURL.Filter.Hash(), byMessage.Filter.Hash(), want.Hash())
	}
	watch, err := query.OfWatch("model=m2&model=m1&zone=eu" + rest)
	if err != nil || !watch.Filter.Equal(want) {
		t.Errorf("a watch by URL: %v", err)
	}
}

func TestParameters(t *testing.T) {
	for raw, want := range map[string]query.Query{
		"":                 {},
		"detail=ranks":     {},
		"detail=workers":   {Brief: true},
		"shape=upstream":   {Upstream: true},
		"wait=20s":         {Wait: 20 * time.Second},
		"wait=0s":          {},
		"wait=1m1s":        {Wait: time.Minute},
		"wait=999h":        {Wait: time.Minute},
		"wait=1500ms&":     {Wait: 1500 * time.Millisecond},
		"detail=workers&&": {Brief: true},
	} {
		if got, err := query.OfSnapshot(raw); err != nil || got != want {
			t.Errorf("snapshot?%s: %+v, %v", raw, got, err)
		}
	}
	for raw, want := range map[string]query.Query{
		"":                                  {},
		"min_interval_ms=250":               {MinInterval: 250 * time.Millisecond},
		"heartbeat_ms=4294967295":           {Heartbeat: 4294967295 * time.Millisecond},
		"heartbeat_ms=500&detail=workers":   {Heartbeat: 500 * time.Millisecond, Brief: true},
		"min_interval_ms=0&heartbeat_ms=00": {},
	} {
		if got, err := query.OfWatch(raw); err != nil || got != want {
			t.Errorf("watch?%s: %+v, %v", raw, got, err)
		}
	}
}

func TestBadURLs(t *testing.T) {
	long := strings.Repeat("x", 257)
	var many []string
	for i := range 65 {
		many = append(many, fmt.Sprintf("model=m%d", i))
	}
	for _, c := range []struct {
		parse func(string) (query.Query, error)
		raw   string
		kind  error
		text  string
	}{
		{query.OfSnapshot, "%zz", query.ErrValue, "parsed"},
		{query.OfSnapshot, "a=b;c", query.ErrValue, "parsed"},
		{query.OfSnapshot, "models=m", query.ErrUnknown, `"models"`},
		{query.OfSnapshot, long + "=1", query.ErrUnknown, `"xxx`},
		{query.OfSnapshot, "min_interval_ms=1", query.ErrUnknown, "min_interval_ms"},
		{query.OfSnapshot, "shape=", query.ErrValue, `"upstream"`},
		{query.OfSnapshot, "shape=other", query.ErrValue, `"other"`},
		{query.OfSnapshot, "shape=upstream&shape=upstream", query.ErrValue, "once"},
		{query.OfSnapshot, "detail=", query.ErrValue, `"ranks" or "workers"`},
		{query.OfSnapshot, "detail=workers&detail=ranks", query.ErrValue, "once"},
		{query.OfSnapshot, "wait=20", query.ErrValue, "20s"},
		{query.OfSnapshot, "wait=-1s", query.ErrValue, "20s"},
		{query.OfSnapshot, "wait=1s&wait=1s", query.ErrValue, "once"},
		{query.OfSnapshot, "role=regular", query.ErrValue, `"regular"`},
		{query.OfSnapshot, "role=", query.ErrValue, "prefill"},
		{query.OfSnapshot, "model=", query.ErrFilter, "empty"},
		{query.OfSnapshot, "zone=" + long, query.ErrFilter, "64"},
		{query.OfSnapshot, "worker=%ff", query.ErrFilter, "UTF-8"},
		{query.OfSnapshot, "worker=%00", query.ErrFilter, "printable"},
		{query.OfSnapshot, "label.=x", query.ErrFilter, "label name"},
		{query.OfSnapshot, strings.Join(many, "&"), query.ErrFilter, "65"},
		{query.OfWatch, "wait=1s", query.ErrUnknown, `"wait"`},
		{query.OfWatch, "shape=upstream", query.ErrUnknown, `"shape"`},
		{query.OfWatch, "heartbeat_ms=1s", query.ErrValue, `"1s"`},
		{query.OfWatch, "heartbeat_ms=-1", query.ErrValue, "milliseconds"},
		{query.OfWatch, "min_interval_ms=4294967296", query.ErrValue, "milliseconds"},
		{query.OfWatch, "min_interval_ms=1&min_interval_ms=1", query.ErrValue, "once"},
	} {
		_, err := c.parse(c.raw)
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) || len(err.Error()) > 400 {
			t.Errorf("%s: %v, want %v with %q", c.raw, err, c.kind, c.text)
		}
	}
}

func TestBadMessages(t *testing.T) {
	for name, c := range map[string]struct {
		req  *pb.WatchSnapshotsRequest
		kind error
	}{
		"detail":           {&pb.WatchSnapshotsRequest{Detail: 9}, query.ErrValue},
		"client id":        {&pb.WatchSnapshotsRequest{ClientId: strings.Repeat("x", 129)}, query.ErrValue},
		"role not set":     {&pb.WatchSnapshotsRequest{Filter: &pb.Filter{Roles: []pb.Role{0}}}, query.ErrFilter},
		"role unknown":     {&pb.WatchSnapshotsRequest{Filter: &pb.Filter{Roles: []pb.Role{257}}}, query.ErrFilter},
		"role negative":    {&pb.WatchSnapshotsRequest{Filter: &pb.Filter{Roles: []pb.Role{-1}}}, query.ErrFilter},
		"label twice":      {&pb.WatchSnapshotsRequest{Filter: &pb.Filter{Labels: []*pb.LabelMatch{{Key: "a", Values: []string{"1"}}, {Key: "a", Values: []string{"2"}}}}}, query.ErrFilter},
		"label, no values": {&pb.WatchSnapshotsRequest{Filter: &pb.Filter{Labels: []*pb.LabelMatch{{Key: "a"}}}}, query.ErrFilter},
		"empty model":      {&pb.WatchSnapshotsRequest{Filter: &pb.Filter{Models: []string{""}}}, query.ErrFilter},
	} {
		if _, err := query.Watch(c.req); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v, want %v", name, err, c.kind)
		}
	}
	q, err := query.Watch(&pb.WatchSnapshotsRequest{
		Filter: &pb.Filter{}, Detail: pb.Detail_DETAIL_WORKERS, MinIntervalMs: 5, HeartbeatIntervalMs: 7, ClientId: "router-1",
	})
	if want := (query.Query{Brief: true, MinInterval: 5 * time.Millisecond, Heartbeat: 7 * time.Millisecond, ClientID: "router-1"}); err != nil || q != want {
		t.Errorf("got %+v, %v", q, err)
	}
}

// FuzzQuery holds that what is accepted has a filter exactly where one was
// asked for, and that an error has a kind and is short.
func FuzzQuery(f *testing.F) {
	for _, q := range []string{
		"", "shape=upstream", "a=b;c", "&", "model=a&model=b&label.x=", "label.=1", "role=plain&wait=20s", "heartbeat_ms=5", "zone=%ff", "worker=\x00",
	} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		for _, parse := range []func(string) (query.Query, error){query.OfSnapshot, query.OfWatch} {
			q, err := parse(raw)
			if err != nil {
				if !errors.Is(err, query.ErrUnknown) && !errors.Is(err, query.ErrValue) && !errors.Is(err, query.ErrFilter) {
					t.Errorf("%q: %v is of no kind", raw, err)
				}
				continue
			}
			values, err := url.ParseQuery(raw)
			if err != nil {
				t.Fatal(err)
			}
			selects := false
			for key := range values {
				selects = selects || strings.HasPrefix(key, "label.") || slices.Contains([]string{"model", "zone", "role", "worker"}, key)
			}
			if selects != (q.Filter != nil) || (q.Filter.Hash() != 0) != selects || q.Wait < 0 || q.Wait > time.Minute {
				t.Errorf("%q: %+v", raw, q)
			}
			if again, err := parse(raw); err != nil || !again.Filter.Equal(q.Filter) {
				t.Errorf("%q: another filter the second time", raw)
			}
		}
	})
}
