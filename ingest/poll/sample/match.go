package sample

import "strings"

// how says by which names a field was found, and what joins them.
type how struct {
	op    string
	names [5]string
}

// What joins the names of a computed field. opRate stands for the rate of what
// is otherwise joined by opMinus.
const (
	opNone  = ""
	opTimes = " * "
	opMinus = " - "
	opPlus  = " + "
	opOver  = " / "
	opRate  = "rate"
)

// nameHint stands for what the caller knows.
const nameHint = "hint"

// text returns the names for people.
func (h how) text() string {
	op := h.op
	if op == opRate {
		op = opMinus
	}
	n := 0
	for n < len(h.names) && h.names[n] != "" {
		n++
	}
	text := strings.Join(h.names[:n], op)
	if h.op == opRate {
		return "rate(" + text + ")"
	}
	return text
}
