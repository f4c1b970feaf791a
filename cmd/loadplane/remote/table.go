package remote

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Column describes a column of a table. It is a plain value.
type Column struct {
	Head string
	// Width is the most that is shown, in characters; 0 for no limit.
	Width int
	// Right aligns to the right.
	Right bool
}

// WriteTable writes rows, of a cell for each column, below the heads of the
// columns. Cells are made printable; what is too wide is cut, at the front,
// where names are alike. An empty cell is a dash.
func WriteTable(w io.Writer, columns []Column, rows [][]string) error {
	widths := make([]int, len(columns))
	cells := make([][]string, 0, len(rows)+1)
	head := make([]string, len(columns))
	for i, c := range columns {
		head[i] = c.Head
	}
	for _, row := range append([][]string{head}, rows...) {
		line := make([]string, len(columns))
		for i, c := range columns {
			line[i] = fit(row[i], c.Width)
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
			if columns[i].Right {
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

// Columns is the width of what is written for people, in characters.
const Columns = 80

// Wrap returns text in lines of at most Columns characters, behind a label and
// below it. It is made printable and cut to 1 KiB.
func Wrap(label, text string) string {
	indent := strings.Repeat(" ", utf8.RuneCountInString(label))
	room := Columns - len(indent)
	var b strings.Builder
	line := []rune(nil)
	flush := func() {
		b.WriteString(label + string(line) + "\n")
		label, line = indent, nil
	}
	for word := range strings.FieldsSeq(Printable(text, 1024)) {
		runes := []rune(word)
		if len(line) > 0 && len(line)+1+len(runes) > room {
			flush()
		}
		if len(line) > 0 {
			line = append(line, ' ')
		}
		for line = append(line, runes...); len(line) > room; {
			rest := line[room:]
			line = line[:room]
			flush()
			line = append(line, rest...)
		}
	}
	flush()
	return b.String()
}
