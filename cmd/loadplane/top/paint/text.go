package paint

import (
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
)

const (
	// maxText bounds a text from outside, bytes.
	maxText = 1024
	// maxCluster bounds the characters that stand in one cell: a letter with
	// its marks.
	maxCluster = 4
	ellipsis   = "…"
	// Unknown stands for a value that is not known.
	Unknown = "-"
)

// Align says how a text fills its place.
type Align uint8

// The places of a text.
const (
	Left Align = iota
	Right
	// Front is Left, but what is too long is cut at its front: names are alike
	// there.
	Front
)

// Clean returns s as one line of characters that take as many cells as is
// counted here, in any terminal: what a terminal would obey, what takes none,
// and what terminals do not agree on is a question mark.
func Clean(s string) string {
	var b strings.Builder
	for cluster, width := range clusters(table.Printable(s, maxText)) {
		if width < 1 || width != ansi.WcWidth.StringWidth(cluster) || utf8.RuneCountInString(cluster) > maxCluster {
			cluster = "?"
		}
		b.WriteString(cluster)
	}
	return b.String()
}

// Width is the width of clean text.
func Width(s string) int { return ansi.StringWidth(s) }

// clusters yields what stands in one place of a screen, and its width in cells.
func clusters(s string) iter.Seq2[string, int] {
	return func(yield func(string, int) bool) {
		for s != "" {
			cluster, width := ansi.FirstGraphemeCluster(s, ansi.GraphemeWidth)
			if cluster == "" || !yield(cluster, width) {
				return
			}
			s = s[len(cluster):]
		}
	}
}

// Fit returns s, cleaned, exactly width cells wide.
func Fit(s string, width int, a Align) string {
	s = Cut(Clean(s), width, a)
	pad := strings.Repeat(" ", max(0, width-Width(s)))
	if a == Right {
		return pad + s
	}
	return s + pad
}

// Cut returns clean text at most width cells wide.
func Cut(s string, width int, a Align) string {
	has := Width(s)
	switch {
	case has <= width:
		return s
	case width < 1:
		return ""
	case a == Front:
		for cluster, cells := range clusters(s) {
			if has <= width-1 {
				break
			}
			s, has = s[len(cluster):], has-cells
		}
		return ellipsis + s
	}
	return ansi.Truncate(s, width, ellipsis)
}

// Wrap returns clean text in lines of at most width cells, behind a label and
// below it. There are at most most lines.
func Wrap(label, s string, width, most int) (lines []string) {
	indent := strings.Repeat(" ", Width(label))
	text := ansi.Wrap(Clean(s), max(1, width-len(indent)), " ")
	for line := range strings.SplitSeq(text, "\n") {
		if len(lines) == most {
			break
		}
		lines = append(lines, Cut(label+strings.TrimRight(line, " "), width, Left))
		label = indent
	}
	return lines
}

// Pack returns clean parts in lines of at most width cells, behind a label and
// below it. A part is broken only where it is longer than a line.
func Pack(label string, parts []string, width int) (lines []string) {
	indent, text := strings.Repeat(" ", Width(label)), ""
	for _, p := range parts {
		p = Clean(p)
		if text != "" && Width(label+text+"  "+p) > width {
			lines = append(lines, Cut(label+text, width, Left))
			label, text = indent, ""
		}
		if text != "" {
			text += "  "
		}
		text += p
	}
	return append(lines, Cut(label+text, width, Left))
}

// Count shows a number that may be unknown.
func Count(v *int64) string {
	if v == nil {
		return Unknown
	}
	return remote.Short(*v)
}

// Percent shows a share that may be unknown, in at most four cells.
func Percent(v *float64) string {
	if v == nil {
		return Unknown
	}
	return fmt.Sprintf("%.0f%%", min(*v, 9.99)*100)
}

// Rate shows a rate that may be unknown, in at most five cells.
func Rate(v *float64) string {
	switch {
	case v == nil:
		return Unknown
	case *v < 99.95:
		return fmt.Sprintf("%.1f", *v)
	}
	return remote.Short(int64(min(*v, 1e15) + 0.5))
}

// Ratio shows how many times more than the mean the largest is.
func Ratio(v *float64) string {
	if v == nil {
		return Unknown
	}
	return fmt.Sprintf("x%.1f", min(*v, 9999))
}

// Span shows a time in at most five cells.
func Span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Truncate(100*time.Millisecond).Seconds())
	case d < 10*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 10*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 240*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", min(int(d.Hours()/24), 9999))
}
