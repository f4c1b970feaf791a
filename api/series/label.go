package series

import (
	"strings"
	"unicode"
)

// maxLabelBytes bounds a name in a label.
const maxLabelBytes = 128

// Label makes a name from outside fit for a label: what cannot be printed, a
// quote and a backslash are a "_", and above 128 bytes it is cut at a rune. Two
// names may become one label.
func Label(name string) string {
	clean := strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || r == '"' || r == '\\' || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, name)
	if len(clean) <= maxLabelBytes {
		return clean
	}
	return strings.ToValidUTF8(clean[:maxLabelBytes], "")
}
