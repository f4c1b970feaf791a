package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	loadmonitorv1 "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// These are fields of messages that no table of the store lists.
var (
	besidesFields = []string{"dp_rank"}
	besidesSums   = []string{"rank_count", "hottest_rank", "hottest_rank_reason"}
)

func TestFieldsAgreeWithRankLoad(t *testing.T) {
	var table []string
	for _, f := range store.Fields {
		table = append(table, numberLine(f.Name, int(f.Number), f.Float))
	}
	agree(t, table, numberLines((&loadplanev1.RankLoad{}).ProtoReflect().Descriptor(), besidesFields, true))
}

func TestFieldsAgreeWithPushDialect(t *testing.T) {
	var table []string
	for _, f := range store.Fields {
		if f.Number <= 14 {
			table = append(table, numberLine(f.Name, int(f.Number), f.Float))
		}
	}
	besides := append(slices.Clone(besidesFields), "snapshot_time_unix_ms")
	agree(t, table, numberLines((&loadmonitorv1.RankLoad{}).ProtoReflect().Descriptor(), besides, false))
}

func TestSumsAgreeWithAggregate(t *testing.T) {
	var table []string
	for _, s := range store.Sums {
		table = append(table, numberLine(s.Name, int(s.Number), s.Float))
	}
	agree(t, table, numberLines((&loadplanev1.Aggregate{}).ProtoReflect().Descriptor(), besidesSums, true))
}

// TestEnumsAgree holds the numbers of the store's words to those of the wire.
func TestEnumsAgree(t *testing.T) {
	cases := []struct {
		name string
		enum protoreflect.EnumDescriptor
		want []fmt.Stringer
	}{
		{"role", loadplanev1.Role(0).Descriptor(), []fmt.Stringer{store.RoleUnspecified, store.RoleRegular, store.RolePrefill, store.RoleDecode}},
		{"status", loadplanev1.Status(0).Descriptor(), []fmt.Stringer{store.StatusUnspecified, store.StatusHealthy, store.StatusStale, store.StatusUnreachable}},
		{"freshness", loadplanev1.Freshness(0).Descriptor(), []fmt.Stringer{store.FreshnessUnspecified, store.Missing, store.Fresh, store.Stale, store.Unreachable}},
		{"dialect", loadplanev1.Dialect(0).Descriptor(), []fmt.Stringer{
			store.DialectUnspecified, store.DialectPush, store.DialectMonitor, store.DialectLoadstat,
			store.DialectPoll, store.DialectNative, store.DialectNone,
		}},
	}
	// renamed are the words that JSON and flags have for a name of the wire.
	renamed := map[string]string{"regular": "plain", "role unspecified": "", "status unspecified": "", "freshness unspecified": "", "dialect unspecified": "auto"}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := c.enum.Values().Len(); got != len(c.want) {
				t.Fatalf("%d values on the wire, %d in the store", got, len(c.want))
			}
			for i, v := range c.want {
				w := wireWord(c.name, c.enum.Values().Get(i))
				if short, ok := renamed[w]; ok {
					w = short
				}
				if v.String() != w || int(c.enum.Values().Get(i).Number()) != i {
					t.Errorf("number %d is %q in the store, %q on the wire", i, v, w)
				}
			}
		})
	}
}

// wireWord returns the name of a value without the name of its enum; the zero
// value keeps it.
func wireWord(enum string, v protoreflect.EnumValueDescriptor) string {
	w := strings.ToLower(string(v.Name()))[len(enum)+1:]
	if v.Number() == 0 {
		return enum + " " + w
	}
	return w
}

func numberLine(name string, number int, float bool) string {
	kind := protoreflect.Int64Kind
	if float {
		kind = protoreflect.DoubleKind
	}
	return fmt.Sprintf("%s = %d: %s", name, number, kind)
}

// numberLines returns the fields of a message but those in besides. A field
// whose presence is not the one wanted says so.
func numberLines(m protoreflect.MessageDescriptor, besides []string, optional bool) (lines []string) {
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if slices.Contains(besides, string(f.Name())) {
			continue
		}
		line := fmt.Sprintf("%s = %d: %s", f.Name(), f.Number(), f.Kind())
		if f.HasOptionalKeyword() != optional || f.IsList() {
			line += " with another presence"
		}
		lines = append(lines, line)
	}
	return lines
}

func agree(t *testing.T, table, wire []string) {
	t.Helper()
	for _, line := range table {
		if !slices.Contains(wire, line) {
			t.Errorf("in the store only: %s", line)
		}
	}
	for _, line := range wire {
		if !slices.Contains(table, line) {
			t.Errorf("on the wire only: %s", line)
		}
	}
}
