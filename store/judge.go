package store

import "time"

// suspectAfter is how long values may stand still, with requests running,
// while others of the pool change.
const suspectAfter = 30 * time.Second

// stalledAfter is how long requests may wait at a rank that runs none.
const stalledAfter = 30 * time.Second

// judge returns what an entry with this receipt is at now. l is nil until the
// worker is heard.
func judge(e *Entry, l *Live, now Instant) (Freshness, Reason) {
	if l == nil {
		return Missing, missingReason(e)
	}
	aged := now >= l.ValidUntil
	switch {
	case e.Load.Status == StatusUnreachable && aged:
		return Stale, ReasonEngineUnreachable
	case e.Load.Status == StatusUnreachable:
		return Unreachable, ReasonEngineUnreachable
	case l.suspended:
		return Stale, ReasonSuspended
	case aged:
		return Stale, ReasonAge
	case e.zero && e.Load.Status == StatusHealthy:
		return Stale, ReasonZeroCapacity
	case e.Load.Status == StatusStale:
		return Stale, ReasonEngineStale
	default:
		return Fresh, ""
	}
}

func missingReason(e *Entry) Reason {
	switch {
	case e.note == ReasonNoEngine, e.Worker.NoEngine:
		return ReasonNoEngine
	case e.Worker.Duplicate:
		return ReasonDuplicateOrigin
	case e.note != "":
		return e.note
	default:
		return ReasonNoReport
	}
}

// due returns when age alone will change the judgement; 0 for never.
func due(e *Entry, l *Live) Instant {
	if l == nil || e.Reason == ReasonAge || e.Reason == ReasonSuspended ||
		(e.Freshness == Stale && e.Reason == ReasonEngineUnreachable) {
		return 0
	}
	return l.ValidUntil
}

// zeroCapacity says that a rank reports no room at all, as an engine does
// before its first real sample.
func zeroCapacity(ranks []Rank) bool {
	for i := range ranks {
		tokens, okT := ranks[i].Count(MaxTotalNumTokens)
		requests, okR := ranks[i].Count(MaxRunningRequests)
		if (okT && tokens == 0) || (okR && requests == 0) {
			return true
		}
	}
	return false
}

// partial says that a core field is unknown on a rank.
func partial(ranks []Rank) bool {
	for i := range ranks {
		for f, info := range Fields {
			if info.Core && !ranks[i].Has(Field(f)) {
				return true
			}
		}
	}
	return false
}
