package loadreport

import (
	"time"

	"github.com/loadplane/loadplane/store"
)

// SampleAge returns how old the oldest sample of a load was when the engine
// built the report, by the engine's own clock: 0 to one hour. It is false where
// one of the times is unknown.
func SampleAge(l *store.Load) (time.Duration, bool) {
	if len(l.Samples) == 0 || l.ReportUnixMs < 0 {
		return 0, false
	}
	oldest := l.Samples[0].TimeUnixMs
	for _, s := range l.Samples[1:] {
		oldest = min(oldest, s.TimeUnixMs)
	}
	// Both are below 2^63, so their difference cannot overflow.
	age := max(0, l.ReportUnixMs-oldest)
	return time.Duration(min(age, int64(time.Hour/time.Millisecond))) * time.Millisecond, oldest >= 0
}
