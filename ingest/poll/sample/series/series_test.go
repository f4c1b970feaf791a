package series

import (
	"fmt"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
	"github.com/loadplane/loadplane/store"
)

func testFamily() *Family {
	return Compile(Family{
		Prefixes: []string{"e:", "e_"}, Rank: "rank", Models: []string{"model"},
		Rows: []cells.Row{
			{To: cells.Running, Names: []string{"run", "old_run"}},
			{To: cells.Waiting, Names: []string{"requests{type=wait}"}},
			{To: cells.Used, Names: []string{"requests{type=used}"}},
			{To: cells.Generated, Kind: cells.Counter, Names: []string{"tokens"}},
		},
	})
}

// read reads one page with a new reader.
func read(t *testing.T, page string, served ...string) (*cells.Page, store.Reason) {
	t.Helper()
	var p cells.Page
	p.Begin(served, 0)
	if refusal := NewReader(testFamily()).Read([]byte(page), &p); refusal != nil {
		return &p, refusal.Reason
	}
	return &p, ""
}

// TestReasons provokes every reason of this package.
func TestReasons(t *testing.T) {
	for _, c := range []struct {
		name, page string
		reason     store.Reason // of the refusal
		odd        store.Reason // of something on the page
	}{
		{"two models", "e:run{model=\"a\"} 1\ne:run{model=\"b\"} 1\n", ReasonSeveralModels, ""},
		{"many series", strings.Repeat("e:run 1\n", maxPoints+2), ReasonTooManySeries, ""},
		{"two series", "e:run{x=\"1\"} 1\ne:run{x=\"2\"} 1\n", "", ReasonAmbiguous},
		{"without a rank", "e:run{rank=\"0\"} 1\ne:run 1\n", "", ReasonAmbiguous},
		{"broken", "e:run 1\n!\n", "", ReasonBadLine},
		{"typed twice", "# TYPE x gauge\n# TYPE x gauge\ne:run 1\n", "", ReasonRepeatedType},
		{"no rank", "e:run 1\ne:run{rank=\"-1\"} 1\n", ingest.ReasonBadRank, ""},
		{"empty rank", "e:run{rank=\"1\"} 1\ne:run{rank=\"\"} 1\n", "", ReasonAmbiguous},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, refused := read(t, c.page)
			if refused != c.reason || c.odd != "" && (len(p.Odd) != 1 || p.Odd[c.odd] != 1) {
				t.Errorf("refused as %q, counted %v, want %q%q", refused, p.Odd, c.reason, c.odd)
			}
		})
	}
}

func TestNamesAndSelectors(t *testing.T) {
	for page, want := range map[string]string{
		"e:run 1\ne_run 2\n":                "e:run=1",
		"e_run 2\ne:old_run 3\n":            "e_run=2",
		"e:old_run 3\n":                     "e:old_run=3",
		"e:requests{type=\"wait\"} 4\n":     "e:requests{type=wait}=4",
		"e:requests{type=\"other\"} 4\n":    "",
		"e:requests 4\n":                    "",
		"e:tokens{a=\"1\"} 4\ne:tokens 5\n": "e:tokens=9",
	} {
		p, _ := read(t, page)
		got := ""
		for i := range p.Ranks {
			for _, c := range p.Ranks[i].In {
				if c.State == cells.Known {
					got += fmt.Sprintf("%s=%g", c.Name, c.Value)
				}
			}
		}
		if got != want {
			t.Errorf("%q is read as %q, want %q", page, got, want)
		}
	}
}

func TestFamily(t *testing.T) {
	f := testFamily()
	for name, want := range map[string]bool{"e:x": true, "e_x": true, "e:": false, "ex": false, "xe:x": false, "": false} {
		if got := f.Has([]byte(name)); got != want {
			t.Errorf("family has %q: %t", name, got)
		}
	}
	if n := f.Names(); len(n) != 11 || n[0] != "e:run" || n[3] != "e_old_run" {
		t.Errorf("names %q", n)
	}
}

// TestReaderIsAsBeforeUntilKeep: a page that is not kept does not count as one
// on which a process stood still.
func TestReaderIsAsBeforeUntilKeep(t *testing.T) {
	r := NewReader(testFamily())
	for i := range 3 * cells.Window {
		var p cells.Page
		page := fmt.Sprintf("e:run{pid=\"1\"} 5\ne:run{pid=\"2\"} %d\n", i)
		if refusal := r.Read([]byte(page), &p); refusal != nil || p.Frozen {
			t.Fatalf("page %d: frozen %t", i, p.Frozen)
		}
	}
}
