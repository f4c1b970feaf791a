package api

import (
	"strings"
	"testing"
)

// FuzzIfNoneMatch puts a tag among other text, in one header or two. It is
// found wherever it stands as a whole, and nothing else is.
func FuzzIfNoneMatch(f *testing.F) {
	for _, s := range []string{"", "*", `W/"a"`, `"a", "b"`, `"`, `""`, `W/`, "\x00", `"a`, `a"b"c`} {
		f.Add(s, `1f-2`, true)
		f.Add(s, `a`, false)
	}
	f.Fuzz(func(t *testing.T, other, opaque string, split bool) {
		if strings.Contains(opaque, `"`) {
			return
		}
		tag := `W/"` + opaque + `"`
		for _, held := range newTags([]string{other}, tag) {
			if len(held) < 2 || strings.Trim(held[1:len(held)-1], `"`) != held[1:len(held)-1] || held[0] != '"' || held[len(held)-1] != '"' {
				t.Errorf("%q has the tag %q", other, held)
			}
			if !strings.Contains(other, held) && strings.TrimSpace(other) != "*" {
				t.Errorf("%q does not have the tag %q", other, held)
			}
		}
		headers := []string{tag + "," + other}
		if split {
			headers = []string{tag, other}
		}
		if !newTags(headers, "").has(tag) {
			t.Errorf("%q not found in %q", tag, headers)
		}
	})
}
