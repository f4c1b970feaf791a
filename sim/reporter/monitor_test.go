package reporter

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBackoffDoublesToFiveSeconds(t *testing.T) {
	for range 200 {
		var b backoff
		for _, want := range []time.Duration{250 * ms, 500 * ms, 1000 * ms, 2000 * ms, 4000 * ms, 5000 * ms, 5000 * ms} {
			if got := b.next(); got < want*8/10 || got > want*12/10 {
				t.Fatalf("waits %v, want %v give or take a fifth", got, want)
			}
		}
	}
}
