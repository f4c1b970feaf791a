package probe

import "github.com/loadplane/loadplane/store"

// Reasons that stand in reports only.
const (
	// ReasonLeftAlone: the page was not asked for, as it may be a queue that
	// reading empties.
	ReasonLeftAlone store.Reason = "left_alone"
)
