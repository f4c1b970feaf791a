package balance

import (
	"fmt"
	"time"

	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/client/pick"
)

// DefaultCooldown is how long a worker is left alone after Route.Failed.
const DefaultCooldown = time.Second

// Viewer has the view in force, as a client.Watcher has. View must be safe for
// concurrent use, must not block, and returns nil before the first view only.
type Viewer interface {
	// View returns the view, and a channel that closes when another is in force.
	View() (*client.View, <-chan struct{})
}

// Worker is one that a router knows by itself. It is a plain value.
type Worker struct {
	// ID is the worker_id; empty stands for URL. Where the plane names the
	// worker so too, its open requests are counted together.
	ID string
	// URL is the base URL of the engine.
	URL string
	// Model is the served model; empty serves all.
	Model string
	// Role is what the worker serves; RoleAny stands for RolePlain.
	Role pick.Role
}

// Options set up a Balancer.
type Options struct {
	// Watcher has the view, and is run by the caller. Required.
	Watcher Viewer
	// Pick says how workers are compared. A Score sees the reported load and
	// what this process has there itself. PerRank needs a Watcher with the
	// detail of ranks, which is its default.
	Pick pick.Options
	// Model and Role are those of requests that name none. An empty Model takes
	// workers of all. RoleAny stands for RolePlain, or for the only role that
	// the view has of the model.
	Model string
	Role  pick.Role
	// AssumedTokens are the prompt tokens of requests that name none; 0 counts
	// those as a request only.
	AssumedTokens int64
	// Static are used before the first view, and for pools that the view does
	// not have at all. They are ranked by the requests that this process has
	// there. FailClosed excludes them.
	Static []Worker
	// Cooldown is how long a worker is left alone after Route.Failed, as long as
	// there are others; 0 is DefaultCooldown, below 0 is none.
	Cooldown time.Duration
}

func (o *Options) validate() error {
	if o.Watcher == nil {
		return fmt.Errorf("%w: Watcher is needed", ErrOption)
	}
	if o.Pick.FailClosed && len(o.Static) > 0 {
		return fmt.Errorf("%w: Static with FailClosed, which takes fresh workers only", ErrOption)
	}
	for i, w := range o.Static {
		if w.URL == "" {
			return fmt.Errorf("%w: Static: worker %d has no URL", ErrOption, i)
		}
	}
	return nil
}

func (o *Options) fill() {
	if o.Pick.Now == nil {
		o.Pick.Now = time.Now
	}
	if o.Cooldown == 0 {
		o.Cooldown = DefaultCooldown
	}
}

func orPlain(r pick.Role) pick.Role {
	if r == pick.RoleAny {
		return pick.RolePlain
	}
	return r
}
