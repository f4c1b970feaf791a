package child

import (
	"errors"
	"strings"
	"testing"
)

// A question gets one answer, in order, and a fault of it ends nothing.
func TestServe(t *testing.T) {
	roles := map[string]Role{
		"double": Takes(func(n int) (int, error) { return 2 * n, nil }),
		"fail":   Does(func(Nothing) error { return errors.New("the fact") }),
	}
	in := strings.NewReader(`{"do":"double","arg":21}{"do":"fail","arg":{}}{"do":"double","arg":"x"}{"do":"other"}{"do":"double","arg":1}`)
	var out strings.Builder
	if err := Serve(roles, in, &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{`"value":42`, `"error":"the fact"`, `"error":`, `"error":"unknown question"`, `"value":2`}
	if len(lines) != len(want) {
		t.Fatalf("%d answers to %d questions: %q", len(lines), len(want), lines)
	}
	for i, w := range want {
		if !strings.Contains(lines[i], w) {
			t.Errorf("answer %d is %s, want %s", i, lines[i], w)
		}
	}
	if err := Serve(roles, strings.NewReader("{"), &out); err == nil {
		t.Error("a broken question is no error")
	}
}
