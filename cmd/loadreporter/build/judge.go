package build

import (
	"fmt"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/source"
	"github.com/loadplane/loadplane/store"
)

// NoSample is the error of a report before the first good sample.
const NoSample = "no successful load sample"

// maxErrorBytes bounds the error text of a report.
const maxErrorBytes = 512

// Verdict is what a report says of its sample. It is a plain value.
type Verdict struct {
	// Status is the reporter's judgement.
	Status store.Status
	// Err says why the status is not healthy; empty for a healthy one. It has
	// 512 bytes at most.
	Err string
}

// Judge judges a sample at a moment. Without a good sample, where the engine
// refused the last connection, and where a failing engine gave no good sample
// for staleAfter, it is unreachable; a failure of another kind, and a sample
// older than staleAfter, makes it stale.
func Judge(s *source.Snapshot, now time.Time, staleAfter time.Duration) Verdict {
	age, why := now.Sub(s.Taken), failure(s)
	switch {
	case len(s.Ranks) == 0 && why == "":
		return Verdict{store.StatusUnreachable, NoSample}
	case len(s.Ranks) == 0:
		return Verdict{store.StatusUnreachable, bound(NoSample + ": " + why)}
	case why != "" && (s.Refused || age > staleAfter):
		return Verdict{store.StatusUnreachable, bound(why)}
	case why != "":
		return Verdict{store.StatusStale, bound(why)}
	case age > staleAfter:
		return Verdict{store.StatusStale, fmt.Sprintf("the load sample is %d ms old", age.Milliseconds())}
	}
	return Verdict{Status: store.StatusHealthy}
}

// failure returns what is wrong with the last sample; empty after a good one.
func failure(s *source.Snapshot) string {
	switch {
	case s.Reason != "" && s.Err != "":
		return string(s.Reason) + ": " + s.Err
	case s.Reason != "":
		return string(s.Reason)
	case s.Err != "":
		return s.Err
	case s.Refused:
		return "the engine refused the connection"
	}
	return ""
}

// bound cuts a text at the start of a rune.
func bound(s string) string {
	if len(s) <= maxErrorBytes {
		return s
	}
	n := maxErrorBytes
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}
