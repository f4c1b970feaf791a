package remote

import (
	"bytes"
	"math"
	"strings"
	"testing"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/protobuf/proto"
)

// sourceList has a source of each kind of status, with the widest values.
func sourceList() *pb.ListWorkersResponse {
	evil := "evil\x1b[31m\n\u202e"
	return &pb.ListWorkersResponse{DiscoveryError: proto.String("told once only"), Sources: []*pb.DiscoverySource{
		{Name: "flag", Synced: true, Workers: proto.Uint32(2), ListedAgeMs: proto.Uint64(1500)},
		{Name: strings.Repeat("n", 64), Synced: true, Workers: proto.Uint32(math.MaxUint32), ListedAgeMs: proto.Uint64(math.MaxUint64), Error: proto.String(strings.Repeat("e ", 200) + evil)},
		{Name: "kubernetes", Error: proto.String("no list yet: forbidden")}, {Name: "dns"},
		{Name: "registration", Synced: true, Workers: proto.Uint32(0)},
	}}
}

func TestSourcesAreNarrow(t *testing.T) {
	var b bytes.Buffer
	if err := writeSources(&b, sourceList()); err != nil {
		t.Fatal(err)
	}
	requireWidth(t, b.String())
	lines := strings.Split(b.String(), "\n")
	for i, want := range map[int]string{
		0: "", 1: "SOURCE SYNCED WORKERS LISTED STATUS", 2: "flag yes 2 1500ms ok",
		3: "…nnnnnnnnnnnnnnnnnnn yes 4294967295 99999h error, last list kept",
		4: "kubernetes no - - no list yet", 5: "dns no - - waited for", 6: "registration yes 0 - ok",
	} {
		if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
	if !strings.Contains(b.String(), "\nkubernetes: no list yet: forbidden\n") || strings.ContainsAny(b.String(), "\x1b\u202e") || strings.Contains(b.String(), "told once") {
		t.Errorf("the errors are not as they should be:\n%q", b.String())
	}
}

// A plane that does not tell of its sources may still tell why they fail.
func TestSourcesOfAnOlderPlane(t *testing.T) {
	for text, list := range map[string]*pb.ListWorkersResponse{
		"": {}, "\nThe last list stays in force; a new one cannot be had:\nfile: gone\n": {DiscoveryError: proto.String("file: gone")},
	} {
		var b bytes.Buffer
		if err := writeSources(&b, list); err != nil || b.String() != text {
			t.Errorf("error %v, got %q, want %q", err, b.String(), text)
		}
	}
}

// A worker that drains says so, unless there is worse; the wide table always
// does.
func TestDrainingIsShown(t *testing.T) {
	for trouble, w := range map[string]*pb.Worker{
		"draining": {WorkerId: "a", Freshness: pb.Freshness_FRESHNESS_FRESH, Draining: true},
		"age":      {WorkerId: "b", Freshness: pb.Freshness_FRESHNESS_STALE, FreshnessReason: "age", Draining: true},
	} {
		list := one(&pb.WorkerInfo{Worker: w})
		if got := cell(list, "TROUBLE"); got != trouble {
			t.Errorf("trouble %q, want %q", got, trouble)
		}
		if got := cell(list, "DRAINS"); got != "yes" {
			t.Errorf("drains %q", got)
		}
	}
}
