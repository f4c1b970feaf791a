package registry

import "context"

// Source is a discovery source beside the flags, the workers file and the
// admin list. A Registry calls its methods from one goroutine at a time.
type Source interface {
	// Name is what operators see as the source of a worker and what metrics are
	// labelled with, such as "kubernetes" or "dns". It never changes and no two
	// sources of a Registry share it.
	Name() string
	// Run delivers the whole list at first and at every change of it, or why it
	// cannot be had; it may deliver an equal list again, to say that it is still
	// so. It returns once ctx ended and every goroutine of its own has stopped.
	// deliver does not block for long and is not called after Run returned; it
	// is called by one goroutine at a time. Run is called once. A panic of Run
	// ends the source alone; the goroutines that it starts are its own, and a
	// panic in one of them ends the process unless the source recovers it.
	Run(ctx context.Context, deliver func(Listing))
}

// Listing is what a Source knows at one moment. It is a plain value and must
// not be changed once delivered.
type Listing struct {
	// Specs is the whole list, in any order, at most one for each ID. An empty
	// list is one. It is ignored where Err is set.
	Specs []WorkerSpec
	// Err says why there is no new list. The last list stays in force, and the
	// source counts as failing until the next list.
	Err error
}
