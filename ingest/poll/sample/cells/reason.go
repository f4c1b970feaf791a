package cells

import "github.com/loadplane/loadplane/store"

// Reasons why a value on a page is not used. The field is unknown; the rest of
// the page is read.
const (
	// ReasonNotFinite: NaN or infinite.
	ReasonNotFinite store.Reason = "not_finite"
	// ReasonNegative: below zero; some engines send -1 for unknown.
	ReasonNegative store.Reason = "negative_value"
	// ReasonNotWhole: a count with a fraction.
	ReasonNotWhole store.Reason = "not_whole"
	// ReasonAboveLimit: above the limit of a report.
	ReasonAboveLimit store.Reason = "above_limit"
)
