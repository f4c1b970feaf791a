package document

import "github.com/loadplane/loadplane/store"

// Reasons why a page cannot be read. Nothing of it is used.
const (
	// ReasonBadJSON: the page begins as JSON and cannot be decoded.
	ReasonBadJSON store.Reason = "bad_json"
	// ReasonUnsupportedSchema: the JSON has none of the known shapes.
	ReasonUnsupportedSchema store.Reason = "unsupported_schema"
)

// Reasons why a value on a page is not used. The field is unknown; the rest of
// the page is read.
const (
	// ReasonNotANumber: JSON of another type where a number is expected.
	ReasonNotANumber store.Reason = "not_a_number"
)
