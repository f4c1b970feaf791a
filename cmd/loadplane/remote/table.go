package remote

import (
	"io"
	"strings"
	"unicode/utf8"
)

// column describes a column of a table.
type column struct {
	head string
	// width is the most that is shown, in characters; 0 for no limit.
	width int
	// right aligns to the right.
	right bool
}

// writeTable writes rows below the heads of the columns. What is too wide is
// cut, at the front, where names are alike.
func writeTable(w io.Writer, columns []column, rows [][]string) error {
	widths := make([]int, len(columns))
	cells := make([][]string, 0, len(rows)+1)
	head := make([]string, len(columns))
	for i, c := range columns {
		head[i] = c.head
	}
	for _, row := range append([][]string{head}, rows...) {
		line := make([]string, len(columns))
		for i, c := range columns {
			line[i] = fit(row[i], c.width)
			widths[i] = max(widths[i], utf8.RuneCountInString(line[i]))
		}
		cells = append(cells, line)
	}
	var b strings.Builder
	for _, line := range cells {
		var text strings.Builder
		for i, cell := range line {
			if i > 0 {
				text.WriteString(" ")
			}
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if columns[i].right {
				text.WriteString(pad + cell)
			} else {
				text.WriteString(cell + pad)
			}
		}
		b.WriteString(strings.TrimRight(text.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// fit makes s printable and at most width characters long.
func fit(s string, width int) string {
	runes := []rune(Printable(s, 4096))
	if width > 0 && len(runes) > width {
		return "…" + string(runes[len(runes)-width+1:])
	}
	if len(runes) == 0 {
		return "-"
	}
	return string(runes)
}
