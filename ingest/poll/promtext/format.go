package promtext

import "bytes"

// Format is what a page looks like from its first bytes.
type Format uint8

// The formats.
const (
	// FormatEmpty: nothing but white space.
	FormatEmpty Format = iota
	// FormatText: not one of the others; it may be an exposition.
	FormatText
	// FormatJSON: an object or an array.
	FormatJSON
	// FormatHTML: begins with an angle bracket, as HTML and XML do.
	FormatHTML
)

// FormatOf tells the format of a page. It reads the first line of it at most.
func FormatOf(page []byte) Format {
	page = bytes.TrimLeft(page, " \t\r\n")
	switch {
	case len(page) == 0:
		return FormatEmpty
	case page[0] == '<':
		return FormatHTML
	case page[0] == '[':
		return FormatJSON
	case page[0] == '{' && !quotedName(page[1:]):
		return FormatJSON
	}
	return FormatText
}

// quotedName says that what follows a brace is a metric name in quotes, with
// which a sample may begin; in JSON a key and a colon follow there.
func quotedName(rest []byte) bool {
	rest = bytes.TrimLeft(rest, " \t\r\n")
	if len(rest) == 0 || rest[0] != '"' {
		return false
	}
	end := bytes.IndexAny(rest[1:], "\"\n")
	if end < 0 || rest[1+end] != '"' {
		return false
	}
	rest = bytes.TrimLeft(rest[end+2:], " \t\r\n")
	return len(rest) > 0 && (rest[0] == ',' || rest[0] == '}')
}
