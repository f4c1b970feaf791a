package pick

// Reason is a machine-readable word that says why a choice was not made by the
// policy's own rule, or why there is none.
type Reason string

// Reasons of a choice that was made by local load in place of reported load.
const (
	// ReasonFewFresh: fewer of the pool's workers than MinFresh are fresh, so
	// that all that may be reached were ranked by local load.
	ReasonFewFresh Reason = "few_fresh"
	// ReasonNoCommonField: no number that the policy compares is known of every
	// fresh candidate.
	ReasonNoCommonField Reason = "no_common_field"
)

// Reasons why nothing was chosen.
const (
	// ReasonNoCandidates: the pool has no worker, or all of them are draining.
	ReasonNoCandidates Reason = "no_candidates"
	// ReasonNoneReachable: nothing is fresh, and every other worker is
	// unreachable.
	ReasonNoneReachable Reason = "none_reachable"
	// ReasonNoneFresh: nothing is fresh, and the picker fails closed.
	ReasonNoneFresh Reason = "none_fresh"
	// ReasonAllTried: the request avoids every candidate that is left.
	ReasonAllTried Reason = "all_tried"
)
