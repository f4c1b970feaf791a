package reader

import (
	"strings"
	"testing"
	"time"
)

// TestVersionsThatTellNoProcess has the version of an engine change without
// another process: what it says of itself comes late, and a page that tells when
// its process started knows better.
func TestVersionsThatTellNoProcess(t *testing.T) {
	for name, c := range map[string]struct {
		path, body string
		wait       time.Duration
	}{
		"late":          {"/v1/loads", loads(1), askAgain - 3*time.Second},
		"named process": {"/metrics", vllm(100, 1), askAgain},
	} {
		t.Run(name, func(t *testing.T) {
			p := serving(c.path, c.body)
			inBubble(t, p.handle, func(b *bench) {
				b.target.Facts.Version = "1"
				first := b.good().Source
				after(c.wait)
				b.target.Facts.Version = "2"
				for range 2 {
					if res := b.good(); res.Changed || res.Source != first {
						t.Errorf("the source %s is now %s", first, res.Source)
					}
				}
			})
		})
	}
}

// TestFieldsOfAWorsePageAreNotMissed has an engine get a better page, which has
// not all that the other one had.
func TestFieldsOfAWorsePageAreNotMissed(t *testing.T) {
	p := serving("/metrics", "sglang:num_running_reqs 1\nsglang:num_queue_reqs 0\nsglang:token_usage 0.5\nsglang:num_used_tokens 3\n")
	p.put("/v1/loads", "status 503")
	inBubble(t, p.handle, func(b *bench) {
		before := b.good()
		if !strings.Contains(before.Detail, "/metrics") {
			t.Fatalf("read %q at first", before.Detail)
		}
		p.put("/v1/loads", loads(1, 1)) // more ranks count more than fields
		after(askAgain)
		b.Improve(b.t.Context(), b.good(), 500*time.Millisecond)
		for range 5 {
			res := b.good()
			if !strings.Contains(res.Detail, "/v1/loads") || res.Source != before.Source {
				t.Fatalf("read %q then, source %s after %s", res.Detail, res.Source, before.Source)
			}
			if res.Gone != "" || len(res.Tally.Vanished) > 0 {
				t.Errorf("vanished %v, gone %q", res.Tally.Vanished, res.Gone)
			}
		}
	})
}
