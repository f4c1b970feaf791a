package sample

import (
	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
	"github.com/loadplane/loadplane/ingest/poll/sample/document"
	"github.com/loadplane/loadplane/ingest/poll/sample/series"
	"github.com/loadplane/loadplane/store"
)

// Reasons why a page cannot be read. Nothing of it is used.
const (
	// ReasonNotRecognised: the page is an exposition without a single name of
	// the engine's family.
	ReasonNotRecognised store.Reason = "not_recognised"
	// ReasonNoData: the page is empty, has no samples, or lists no ranks.
	ReasonNoData store.Reason = "no_data"
	// ReasonNoLoad: the page is of the engine's family and has no usable number
	// of requests or tokens.
	ReasonNoLoad store.Reason = "no_load"
	// ReasonHTMLPage: the page is HTML.
	ReasonHTMLPage store.Reason = "html_page"
	// ReasonJSONPage: the page is JSON where an exposition was expected.
	ReasonJSONPage store.Reason = "json_page"
	// ReasonTextPage: the page is text where JSON was expected.
	ReasonTextPage store.Reason = "text_page"
)

// Reasons why a value on a page is not used. The field is unknown; the rest of
// the page is read.
const (
	// ReasonOverBound: a capacity below what is used, or a maximum below what
	// runs. The bound is unknown, what is used and what runs stands.
	ReasonOverBound store.Reason = "over_bound"
	// ReasonUnclearUnit: a hit rate that may be a percent or a ratio.
	ReasonUnclearUnit store.Reason = "unclear_unit"
)

// The other reasons that Read returns and counts, by the names of those that
// decide them.
const (
	ReasonBadJSON           = document.ReasonBadJSON
	ReasonUnsupportedSchema = document.ReasonUnsupportedSchema
	ReasonNotANumber        = document.ReasonNotANumber
	ReasonSeveralModels     = series.ReasonSeveralModels
	ReasonTooManySeries     = series.ReasonTooManySeries
	ReasonAmbiguous         = series.ReasonAmbiguous
	ReasonBadLine           = series.ReasonBadLine
	ReasonRepeatedType      = series.ReasonRepeatedType
	ReasonNotFinite         = cells.ReasonNotFinite
	ReasonNegative          = cells.ReasonNegative
	ReasonNotWhole          = cells.ReasonNotWhole
	ReasonAboveLimit        = cells.ReasonAboveLimit
)
