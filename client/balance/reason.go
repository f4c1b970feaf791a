package balance

import "github.com/loadplane/loadplane/client/pick"

// Reasons why a choice was made among Options.Static, or why there is none,
// beside those of package pick.
const (
	// ReasonNoView: no plane has sent a view yet.
	ReasonNoView pick.Reason = "no_view"
	// ReasonUnknownPool: the view has no worker of the model and role.
	ReasonUnknownPool pick.Reason = "unknown_pool"
)
