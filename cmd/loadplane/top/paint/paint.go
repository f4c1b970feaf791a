package paint

import (
	"math"
	"strings"

	"charm.land/lipgloss/v2"
)

// Tone is what a text means. Terminals show it as colour or weight; the text
// says it too.
type Tone uint8

// The tones, from what needs no notice to what does.
const (
	Plain Tone = iota
	Good
	Warn
	Bad
	Dim
	Strong
	chosen
)

// styles are by tone; the terminal's own colours suit dark and light.
var styles = [...]lipgloss.Style{
	Plain:  lipgloss.NewStyle(),
	Good:   lipgloss.NewStyle().Foreground(lipgloss.Green),
	Warn:   lipgloss.NewStyle().Foreground(lipgloss.Yellow),
	Bad:    lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true),
	Dim:    lipgloss.NewStyle().Faint(true),
	Strong: lipgloss.NewStyle().Bold(true),
	chosen: lipgloss.NewStyle().Reverse(true),
}

// piece is a part of a line.
type piece struct {
	text string
	tone Tone
}

// Line is a line of the screen. Its texts are clean.
type Line []piece

// Say returns a line of one piece.
func Say(t Tone, text string) Line { return Line{{text, t}} }

// Add returns the line with one more piece.
func (l Line) Add(t Tone, text string) Line { return append(l, piece{text, t}) }

// Text returns the line without its tones.
func (l Line) Text() string {
	var b strings.Builder
	for _, p := range l {
		b.WriteString(p.text)
	}
	return b.String()
}

// Choose returns the line as a chosen one, width cells wide.
func (l Line) Choose(width int) Line {
	return Say(chosen, Fit(l.Text(), width, Left))
}

// fit returns the line exactly width cells wide.
func (l Line) fit(width int) Line {
	out := make(Line, 0, len(l)+1)
	for _, p := range l {
		p.text = Cut(p.text, width, Left)
		width -= Width(p.text)
		out = append(out, p)
	}
	return append(out, piece{strings.Repeat(" ", max(0, width)), Plain})
}

// Beside puts lines beside each other, those on the left width cells wide.
func Beside(l, r []Line, width int) []Line {
	out := make([]Line, 0, max(len(l), len(r)))
	for i := range max(len(l), len(r)) {
		var both Line
		if i < len(l) {
			both = l[i]
		}
		if i < len(r) {
			both = append(both.fit(width), r[i]...)
		}
		out = append(out, both)
	}
	return out
}

// Paint returns the line with escapes for its tones, at most width cells wide.
func (l Line) Paint(width int) string {
	var b strings.Builder
	for _, p := range l {
		text := Cut(p.text, width, Left)
		width -= Width(text)
		if p.tone == Plain {
			b.WriteString(text)
		} else if text != "" {
			b.WriteString(styles[p.tone].Render(text))
		}
	}
	return b.String()
}

// Heat is the tone of a share of a KV cache in use.
func Heat(usage *float64) Tone {
	switch {
	case usage == nil:
		return Dim
	case *usage >= 0.9:
		return Bad
	case *usage >= 0.7:
		return Warn
	}
	return Good
}

// Bar shows a share in width cells; no bar where it is unknown.
func Bar(usage *float64, width int) string {
	if usage == nil {
		return strings.Repeat(" ", width)
	}
	full := int(math.Round(min(max(*usage, 0), 1) * float64(width)))
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}

// Digit shows a share in one cell: its tenths, F where all is in use, a
// question mark where it is unknown.
func Digit(usage *float64) string {
	switch {
	case usage == nil:
		return "?"
	case *usage >= 1:
		return "F"
	}
	return string(rune('0' + int(max(0, *usage)*10)))
}
