package paint

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

func TestClean(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"plain", "127.0.0.1:8000", "127.0.0.1:8000"},
		{"escape", "a\x1b[2Jb", "a?[2Jb"},
		{"C1 control", "a\u009b31mb", "a?31mb"},
		{"lines and tabs", "a\r\n\tb", "a???b"},
		{"bidi marks", "a\u202eb\u2066", "a?b?"},
		{"no UTF-8", "a\xffb", "a?b"},
		{"wide", "模型", "模型"},
		{"letter with a mark", "e\u0301", "e\u0301"},
		{"letter with many marks", "e" + strings.Repeat("\u0301", 9), "?"},
		{"mark alone", "\u0301x", "?x"},
		{"joined emoji", "👩\u200d👩", "👩?👩"},
		{"emoji whose width is disputed", "☺\ufe0f", "?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Clean(c.text); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	if got := Clean(strings.Repeat("x", 5000)); len(got) > maxText {
		t.Errorf("%d bytes", len(got))
	}
}

func TestFit(t *testing.T) {
	for _, c := range []struct {
		name, text string
		width      int
		align      Align
		want       string
	}{
		{"left", "ab", 4, Left, "ab  "},
		{"right", "ab", 4, Right, "  ab"},
		{"exact", "abcd", 4, Right, "abcd"},
		{"end cut", "abcdef", 4, Left, "abc…"},
		{"front cut", "abcdef", 4, Front, "…def"},
		{"wide end cut", "模型模型", 4, Left, "模… "},
		{"wide front cut", "模型模型", 4, Front, "…型 "},
		{"one cell", "abc", 1, Front, "…"},
		{"no room", "abc", 0, Left, ""},
		{"less than none", "abc", -3, Right, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Fit(c.text, c.width, c.align); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestWrapAndPack(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want []string
	}{
		{"wrap", Wrap("x ", "aa bb cc", 7, 9), []string{"x aa bb", "  cc"}},
		{"wrap at most", Wrap("", "aa bb cc", 2, 2), []string{"aa", "bb"}},
		{"wrap a long word", Wrap("", "aaaaa", 2, 9), []string{"aa", "aa", "a"}},
		{"wrap without room", Wrap("label ", "aa", 3, 1), []string{"la…"}},
		{"pack", Pack("x ", []string{"a b", "c d", "e"}, 8), []string{"x a b", "  c d  e"}},
		{"pack a long part", Pack("x ", []string{"abcdefgh", "e"}, 6), []string{"x abc…", "  e"}},
		{"pack nothing", Pack("x ", nil, 8), []string{"x "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.Join(c.got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("%q, want %q", c.got, c.want)
			}
		})
	}
}

func TestNumbers(t *testing.T) {
	huge := math.MaxFloat64
	for _, c := range []struct{ name, got, want string }{
		{"unknown count", Count(nil), "-"},
		{"count", Count(new(int64(9999))), "9999"},
		{"large count", Count(new(int64(131072))), "131k"},
		{"unknown share", Percent(nil), "-"},
		{"share", Percent(new(0.456)), "46%"},
		{"share above all", Percent(&huge), "999%"},
		{"unknown rate", Rate(nil), "-"},
		{"small rate", Rate(new(0.04)), "0.0"},
		{"rate", Rate(new(4464.2)), "4464"},
		{"rate at the edge", Rate(new(99.96)), "100"},
		{"large rate", Rate(new(1e12)), "1000G"},
		{"huge rate", Rate(&huge), "1000T"},
		{"unknown ratio", Ratio(nil), "-"},
		{"ratio", Ratio(new(1.25)), "x1.2"},
		{"less than no time", Span(-time.Hour), "0.0s"},
		{"short time", Span(1990 * time.Millisecond), "1.9s"},
		{"seconds", Span(10 * time.Second), "10s"},
		{"minutes", Span(10 * time.Minute), "10m"},
		{"hours", Span(10 * time.Hour), "10h"},
		{"days", Span(240 * time.Hour), "10d"},
		{"long time", Span(math.MaxInt64), "9999d"},
		{"unknown tenths", Digit(nil), "?"},
		{"no tenths", Digit(new(-1.0)), "0"},
		{"tenths", Digit(new(0.99)), "9"},
		{"all", Digit(new(1.0)), "F"},
		{"bar", Bar(new(0.5), 4), "██░░"},
		{"bar of too much", Bar(&huge, 4), "████"},
		{"bar of less than nothing", Bar(new(-1.0), 4), "░░░░"},
		{"bar of unknown", Bar(nil, 4), "    "},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.got != c.want {
				t.Errorf("%q, want %q", c.got, c.want)
			}
		})
	}
}

func TestHeat(t *testing.T) {
	for usage, want := range map[float64]Tone{0: Good, 0.69: Good, 0.7: Warn, 0.9: Bad, 2: Bad} {
		if got := Heat(&usage); got != want {
			t.Errorf("%v has tone %d, want %d", usage, got, want)
		}
	}
	if Heat(nil) != Dim {
		t.Error("an unknown share has a colour")
	}
}

func TestLine(t *testing.T) {
	l := Say(Bad, "red").Add(Plain, " and ").Add(Dim, "faint")
	if got := l.Text(); got != "red and faint" {
		t.Errorf("%q", got)
	}
	for _, width := range []int{0, 2, 5, 9, 40} {
		painted := l.Paint(width)
		if got, want := ansi.Strip(painted), Cut("red", min(3, width), Left); !strings.HasPrefix(got, want) || Width(got) > width {
			t.Errorf("%d cells: %q", width, got)
		}
	}
	if got := l.Paint(40); !strings.Contains(got, "\x1b[") || strings.Contains(Say(Plain, "x").Paint(9), "\x1b") {
		t.Errorf("tones are painted as %q", got)
	}
	if got := l.Choose(20).Text(); got != "red and faint       " {
		t.Errorf("chosen: %q", got)
	}
	both := Beside([]Line{Say(Good, "a"), Say(Good, "long text")}, []Line{nil, Say(Good, "b"), Say(Good, "c")}, 5)
	for i, want := range []string{"a    ", "long…b", "     c"} {
		if got := both[i].Text(); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
}

// FuzzFit wants exactly the width, on one line, without what a terminal obeys.
func FuzzFit(f *testing.F) {
	for _, s := range []string{"", "127.0.0.1:80", "a\x1b[2J\u009b\n", "模型\u202e", "e\u0301\u0301", "👩\u200d👩\u200d👧", "🇩🇪🇩", "\xff\xfe", "ﷺ\u0e33"} {
		f.Add(s, 7, uint8(0))
		f.Add(s, 1, uint8(2))
	}
	f.Fuzz(func(t *testing.T, s string, width int, a uint8) {
		width = max(0, min(width, 200))
		got := Fit(s, width, Align(a%3))
		if !utf8.ValidString(got) || ansi.StringWidth(got) != width || ansi.StringWidthWc(got) != width {
			t.Fatalf("%q in %d cells: %q has %d or %d", s, width, got, ansi.StringWidth(got), ansi.StringWidthWc(got))
		}
		if strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e' || r == '\u200b' }) {
			t.Fatalf("%q gives %q", s, got)
		}
	})
}

// FuzzWrap wants lines of at most the width.
func FuzzWrap(f *testing.F) {
	f.Add("label ", "some text 模型模型 \x1b[2J", 12)
	f.Fuzz(func(t *testing.T, label, text string, width int) {
		width = max(0, min(width, 200))
		label = Clean(label)
		for _, l := range append(Wrap(label, text, width, 6), Pack(label, strings.Fields(text), width)...) {
			if ansi.StringWidth(l) > width || strings.ContainsAny(l, "\n\r\x1b") {
				t.Fatalf("%q in %d cells: %q", text, width, l)
			}
		}
	})
}

// A bar is rounded to whole cells, and stays within its width.
func TestBarIsRounded(t *testing.T) {
	for usage, want := range map[float64]string{-1: "░░", 0.24: "░░", 0.26: "█░", 0.74: "█░", 0.76: "██", 9: "██"} {
		if got := Bar(&usage, 2); got != want {
			t.Errorf("%v: %s, want %s", usage, got, want)
		}
	}
}

// The edges of what is to be noticed, of rates, spans and shares.
func TestEdges(t *testing.T) {
	for usage, want := range map[float64]Tone{0.69: Good, 0.7: Warn, 0.75: Warn, 0.89: Warn, 0.9: Bad} {
		if got := Heat(&usage); got != want {
			t.Errorf("%v has tone %v, want %v", usage, got, want)
		}
	}
	if Heat(nil) != Dim || Digit(new(1.0)) != "F" || Digit(new(0.999)) != "9" {
		t.Errorf("unknown has tone %v, full is %s, almost %s", Heat(nil), Digit(new(1.0)), Digit(new(0.999)))
	}
	for got, want := range map[string]string{
		Rate(new(99.94)): "99.9", Rate(new(99.96)): "100", Percent(new(1e9)): "999%", Ratio(new(1e9)): "x9999.0",
		Span(10*time.Minute - time.Second): "599s", Span(10 * time.Minute): "10m", Span(10*time.Hour - time.Second): "599m", Span(10 * time.Hour): "10h",
		Span(1990 * time.Millisecond): "1.9s",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
