package table

import (
	"strings"
	"testing"
)

// people is a table that is made to fit.
func people() *Table {
	return &Table{
		Columns: []Column{Left("NAME", 0), Right("AGE", 0), Left("TEXT", 0)},
		Rows:    [][]string{{"abcdefghij", "7", "one two three"}, {"k", "", "four"}},
	}
}

func text(t *testing.T, table *Table) string {
	t.Helper()
	var b strings.Builder
	if err := table.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestNarrow(t *testing.T) {
	for _, c := range []struct {
		name  string
		room  int
		steps []Step
		want  string
	}{
		{"it fits", 28, []Step{Tail("TEXT", 4)}, "abcdefghij   7 one two three"},
		{"the end is cut", 25, []Step{Tail("TEXT", 4)}, "abcdefghij   7 one two t…"},
		{"the front is cut", 25, []Step{Front("NAME", 4)}, "…efghij   7 one two three"},
		{"down to its least, then the next", 20, []Step{Tail("TEXT", 8), Front("NAME", 4)}, "…efghij   7 one two…"},
		{"as far as it goes", 5, []Step{Tail("TEXT", 8), Front("NAME", 4)}, "…hij   7 one two…"},
		{"a column that is not there", 25, []Step{Front("GONE", 4), Tail("TEXT", 4)}, "abcdefghij   7 one two t…"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := people()
			p.Narrow(c.room, c.steps)
			if got := strings.Split(text(t, p), "\n")[1]; got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestDrop(t *testing.T) {
	for room, want := range map[int]string{28: "", 20: "", 17: "", 16: "AGE", 12: "AGE TEXT", 1: "AGE TEXT"} {
		p := people()
		gone := p.Drop(room, []Step{Tail("TEXT", 8), Front("NAME", 4)}, []string{"AGE", "TEXT"})
		if got := strings.Join(gone, " "); got != want {
			t.Errorf("%d columns: %q is gone, want %q", room, got, want)
		}
		for _, head := range gone {
			if strings.Contains(text(t, p), head) {
				t.Errorf("%d columns: %s is there:\n%s", room, head, text(t, p))
			}
		}
	}
}

func TestWrap(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"short", "a b", "label  a b\n"},
		{"empty", "", "label  \n"},
		{"fits", strings.Repeat("x", 36) + " " + strings.Repeat("y", 36), "label  " + strings.Repeat("x", 36) + " " + strings.Repeat("y", 36) + "\n"},
		{"does not", strings.Repeat("x", 37) + " " + strings.Repeat("y", 36), "label  " + strings.Repeat("x", 37) + "\n       " + strings.Repeat("y", 36) + "\n"},
		{"long word", strings.Repeat("x", 150), "label  " + strings.Repeat("x", 73) + "\n       " + strings.Repeat("x", 73) + "\n       xxxx\n"},
	} {
		if got := Wrap("label  ", tt.text); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func FuzzWrap(f *testing.F) {
	f.Add("a b")
	f.Add(strings.Repeat("ü", 200) + "\x1b\n" + strings.Repeat("z", 2000))
	f.Fuzz(func(t *testing.T, text string) {
		got := Wrap("name  ", text)
		requireWidth(t, got)
		if strings.ContainsAny(got, "\r\x1b\x00\u202e") || !strings.HasPrefix(got, "name  ") || !strings.HasSuffix(got, "\n") {
			t.Fatalf("%q: %q", text, got)
		}
	})
}

func FuzzPrintable(f *testing.F) {
	f.Add("a\x00b\u202e", 10)
	f.Add("ééééé", 5)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = 4 + max(0, limit%1000)
		got := Printable(s, limit)
		if len(got) > limit || strings.ContainsAny(got, "\n\r\x1b\x00\u202e") {
			t.Fatalf("%q with %d: %q", s, limit, got)
		}
	})
}

// requireWidth fails for lines wider than a terminal.
func requireWidth(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
