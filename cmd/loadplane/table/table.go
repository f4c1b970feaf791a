package table

import (
	"io"
	"slices"
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

// Write writes rows, of a cell for each column, below the heads of the
// columns. Cells are made printable; what is too wide is cut, at the front,
// where names are alike. An empty cell is a dash.
func Write(w io.Writer, columns []Column, rows [][]string) error {
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

// Left returns a column of at most width characters that aligns to the left; 0
// for no limit.
func Left(head string, width int) Column { return Column{Head: head, Width: width} }

// Right returns one that aligns to the right.
func Right(head string, width int) Column { return Column{Head: head, Width: width, Right: true} }

// Table is a table that can be made to fit. It is for one goroutine.
type Table struct {
	Columns []Column
	// Rows have a cell for each column.
	Rows [][]string
}

// Write writes the table, as the function of that name does.
func (t *Table) Write(w io.Writer) error { return Write(w, t.Columns, t.Rows) }

// Step makes the column of a head narrower, down to least characters. It is a
// plain value.
type Step struct {
	head  string
	least int
	// tail says that the end of what is too long is cut, and not its front.
	tail bool
}

// Front returns a step that cuts the front of what is too long.
func Front(head string, least int) Step { return Step{head: head, least: least} }

// Tail returns a step that cuts the end of what is too long.
func Tail(head string, least int) Step { return Step{head: head, least: least, tail: true} }

// Narrow takes steps, in their order, until a line has at most room characters.
func (t *Table) Narrow(room int, steps []Step) {
	for _, s := range steps {
		i := t.Find(s.head)
		if i < 0 {
			continue
		}
		wide := t.width(i)
		if to := max(wide+room-t.line(nil), s.least); to < wide {
			t.cut(i, to, s.tail)
		}
	}
}

// Drop removes columns, in the order of heads, until the steps can make a line
// fit. It returns the heads of those that it removed.
func (t *Table) Drop(room int, steps []Step, heads []string) (gone []string) {
	least := map[string]int{}
	for _, s := range steps {
		least[s.head] = s.least
	}
	for _, head := range heads {
		if t.line(least) <= room {
			break
		}
		i := t.Find(head)
		t.Columns = slices.Delete(t.Columns, i, i+1)
		for r := range t.Rows {
			t.Rows[r] = slices.Delete(t.Rows[r], i, i+1)
		}
		gone = append(gone, head)
	}
	return gone
}

// line returns the length of the longest line, where columns are cut to least.
func (t *Table) line(least map[string]int) int {
	n := len(t.Columns) - 1
	for i, c := range t.Columns {
		wide := t.width(i)
		if most := least[c.Head]; most > 0 {
			wide = min(wide, most)
		}
		n += wide
	}
	return n
}

// Find returns the place of a column; -1 for none.
func (t *Table) Find(head string) int {
	return slices.IndexFunc(t.Columns, func(c Column) bool { return c.Head == head })
}

// width returns the width of a column.
func (t *Table) width(i int) int {
	n := utf8.RuneCountInString(t.Columns[i].Head)
	for _, row := range t.Rows {
		n = max(n, utf8.RuneCountInString(fit(row[i], t.Columns[i].Width)))
	}
	return n
}

func (t *Table) cut(i, width int, tail bool) {
	if !tail {
		t.Columns[i].Width = width
		return
	}
	for _, row := range t.Rows {
		if runes := []rune(fit(row[i], 0)); len(runes) > width {
			row[i] = string(runes[:width-1]) + "…"
		}
	}
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
