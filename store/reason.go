package store

// Reason is a machine-readable word that says why something is as it is. The
// words are part of the API and listed in docs/operations.md.
type Reason string

// Reasons why a worker is not fresh. The first that holds, in this order, is
// shown.
const (
	// ReasonNoEngine: never heard, and discovery says that nothing reports
	// there, or connections were refused for five minutes, as the followers of
	// a multi-node engine do.
	ReasonNoEngine Reason = "no_engine"
	// ReasonDuplicateOrigin: another worker with a lower id has this origin.
	ReasonDuplicateOrigin Reason = "duplicate_origin"
	// ReasonEngineUnreachable: the last report says that the engine could not
	// be sampled.
	ReasonEngineUnreachable Reason = "engine_unreachable"
	// ReasonSuspended: the machine slept since the last report.
	ReasonSuspended Reason = "suspended"
	// ReasonAge: the last report is stale_after old or older.
	ReasonAge Reason = "age"
	// ReasonZeroCapacity: a rank of a healthy report has no token capacity or
	// no request capacity.
	ReasonZeroCapacity Reason = "zero_capacity"
	// ReasonEngineStale: the engine calls its own sample old.
	ReasonEngineStale Reason = "engine_stale"
	// ReasonNoReport: discovered, and nothing received yet. Trouble with the
	// registration, where there is any, is shown in its place.
	ReasonNoReport Reason = "no_report"
)

// Flag is a bit for something odd about the values of a worker.
type Flag uint16

// The flags, in the order in which they are shown.
const (
	// FlagInconsistent: every load is zero in two reports between which a
	// cumulative counter grew.
	FlagInconsistent Flag = 1 << iota
	// FlagSuspect: requests run, and the values stand still for 30 s while
	// another worker of the pool changed.
	FlagSuspect
	// FlagRatioAboveOne: a ratio above 1 was reported.
	FlagRatioAboveOne
	// FlagStalled: for 30 s a rank has had requests waiting and none running.
	// Workers that only prefill never have it.
	FlagStalled
	// FlagFrozenSeries: an engine's page has a value of a process that stands
	// still beside one that moves; the moving one is taken.
	FlagFrozenSeries
	// FlagUnstableSource: the answers of an engine come from several processes
	// by turns, or three of the last ten were each of another process than the
	// one before.
	FlagUnstableSource
	// FlagRanksUnknown: the engine has more DP ranks than its page shows, or
	// its page does not tell them apart; what is shown as one rank is then what
	// it says of them all.
	FlagRanksUnknown
)

var flagWords = []string{
	"inconsistent", "suspect", "ratio_above_one", "stalled", "frozen_series", "unstable_source", "ranks_unknown",
}

// Words returns the names of the flags that are set, in a fixed order; nil
// for none.
func (f Flag) Words() []string {
	var words []string
	for i, w := range flagWords {
		if f&(1<<i) != 0 {
			words = append(words, w)
		}
	}
	return words
}
