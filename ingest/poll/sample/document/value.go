package document

import (
	"bytes"
	"iter"
	"strconv"

	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
)

// value is one value of a page that is valid JSON, as it is written there,
// without white space around it; nil for none. It is read without being
// decoded: of the many numbers of a page few are wanted. Keys are compared as
// they are written; those that are wanted need no escapes.
type value []byte

// left drops white space before a value.
func (v value) left() value {
	for len(v) > 0 && isSpace(v[0]) {
		v = v[1:]
	}
	return v
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// kind is the first byte, which tells the kind of a value; 0 for none.
func (v value) kind() byte {
	if len(v) == 0 {
		return 0
	}
	return v[0]
}

func (v value) null() bool { return v.kind() == 'n' }

// number returns a number: absent for null and for no value, unusable for a
// value of another kind and one beyond a float64.
func (v value) number() (float64, cells.State) {
	switch c := v.kind(); {
	case c == 0 || c == 'n':
		return 0, cells.Absent
	case c != '-' && (c < '0' || c > '9'):
		return 0, cells.Unusable
	}
	n, err := strconv.ParseFloat(string(v), 64)
	if err != nil {
		return 0, cells.Unusable
	}
	return n, cells.Known
}

// text returns a string; empty for another kind and one with escapes.
func (v value) text() string {
	if v.kind() != '"' || bytes.IndexByte(v, '\\') >= 0 {
		return ""
	}
	return string(v[1 : len(v)-1])
}

// get returns the member of an object with a key; of equal keys the last.
func (v value) get(key string) value {
	var found value
	for k, member := range v.members() {
		if string(k) == key {
			found = member
		}
	}
	return found
}

// members returns the members of an object; those of anything else are none.
// Keys are without their quotes.
func (v value) members() iter.Seq2[value, value] {
	return func(yield func(value, value) bool) {
		if v.kind() != '{' {
			return
		}
		rest := v[1:].left()
		for rest.kind() == '"' {
			key, tail := rest.cut()
			member, tail := tail[1:].left().cut() // behind the colon
			if !yield(key[1:len(key)-1], member) {
				return
			}
			rest = tail[1:].left() // behind the comma or the brace
		}
	}
}

// elements returns the elements of an array; those of anything else are none.
func (v value) elements() iter.Seq[value] {
	return func(yield func(value) bool) {
		if v.kind() != '[' {
			return
		}
		for rest := v[1:].left(); len(rest) > 0 && rest[0] != ']'; {
			element, tail := rest.cut()
			if !yield(element) {
				return
			}
			if tail[0] == ']' {
				return
			}
			rest = tail[1:].left()
		}
	}
}

// cut returns the value that v begins with, and what follows it from the next
// byte that is no space.
func (v value) cut() (first, rest value) {
	end, depth := 0, 0
	for end < len(v) {
		switch v[end] {
		case '"':
			end = v.endOfString(end)
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		end++
		if depth == 0 && v.ends(end) {
			break
		}
	}
	return v[:end], v[end:].left()
}

// endOfString returns the index of the quote that ends the string begun at i.
func (v value) endOfString(i int) int {
	for i++; i < len(v) && v[i] != '"'; i++ {
		if v[i] == '\\' {
			i++
		}
	}
	return i
}

// ends says that outside of brackets a value ends before i.
func (v value) ends(i int) bool {
	if i >= len(v) || isSpace(v[i]) {
		return true
	}
	switch v[i] {
	case ',', ':', ']', '}':
		return true
	}
	return false
}
