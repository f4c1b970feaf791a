package table

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable returns s without characters that a terminal or a reader may take
// for something else, cut to limit bytes.
func Printable(s string, limit int) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError, unicode.Is(unicode.Cf, r), !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, s)
	if len(clean) <= limit {
		return clean
	}
	cut := limit - len("...")
	for cut > 0 && !utf8.RuneStart(clean[cut]) {
		cut--
	}
	return clean[:cut] + "..."
}
