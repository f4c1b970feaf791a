package series

import "github.com/loadplane/loadplane/store"

// Reasons why a page cannot be read. Nothing of it is used.
const (
	// ReasonSeveralModels: one rank has series of several models, and discovery
	// does not name exactly one of them, or the page has more than 64 models.
	ReasonSeveralModels store.Reason = "several_models"
	// ReasonTooManySeries: the page has more than 65536 series of load.
	ReasonTooManySeries store.Reason = "too_many_series"
)

// Reasons why something on a page is not used. The rest of it is.
const (
	// ReasonAmbiguous: several series for one field of one rank, or one without
	// a rank on a page with ranks.
	ReasonAmbiguous store.Reason = "ambiguous"
	// ReasonBadLine: a line that is neither a comment nor a sample.
	ReasonBadLine store.Reason = "bad_line"
	// ReasonRepeatedType: a second TYPE line for one name. Nothing is lost.
	ReasonRepeatedType store.Reason = "repeated_type"
)
