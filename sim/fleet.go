package sim

import (
	"context"
	"fmt"
	"net"
	"sync"
)

// Fleet is a number of simulated engines. All methods are safe for concurrent
// use, except that Run is called once.
type Fleet struct {
	engines []*Engine
}

// New checks the options and binds a listener for every engine. It starts
// nothing; a fleet that is not wanted gives its listeners back through Run
// with a context that has ended. Its error names the option or the address.
func New(opts Options) (*Fleet, error) {
	var d net.Dialer
	return newFleet(opts, network{
		listen: func(address string) (net.Listener, error) { return net.Listen("tcp", address) },
		dial: func(ctx context.Context, address string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", address)
		},
	})
}

func newFleet(opts Options, n network) (*Fleet, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	f := &Fleet{}
	if err := f.populate(opts, n); err != nil {
		for _, e := range f.engines {
			e.close()
		}
		return nil, err
	}
	return f, nil
}

// populate makes the engines. All ports of HTTP are taken before free ones are,
// so that none of these is one of those.
func (f *Fleet) populate(opts Options, n network) error {
	for i := range opts.Engines {
		e, err := newEngine(i, opts, n)
		if err != nil {
			return fmt.Errorf("sim: engine %d cannot listen: %w", i, err)
		}
		f.engines = append(f.engines, e)
	}
	for i, e := range f.engines {
		if err := e.begin(); err != nil {
			return fmt.Errorf("sim: engine %d has no ports beside HTTP: %w", i, err)
		}
	}
	return nil
}

// Run serves all engines. It blocks until ctx ends and every goroutine of the
// fleet has stopped, and returns nil.
func (f *Fleet) Run(ctx context.Context) error {
	var group sync.WaitGroup
	for _, e := range f.engines {
		group.Go(func() { e.run(ctx) })
	}
	group.Wait()
	return nil
}

// Engines returns the engines in the order of their indexes.
func (f *Fleet) Engines() []*Engine {
	return append([]*Engine(nil), f.engines...)
}

// URLs returns the base URLs of the engines.
func (f *Fleet) URLs() []string {
	urls := make([]string, len(f.engines))
	for i, e := range f.engines {
		urls[i] = e.info.URL
	}
	return urls
}

// Workers returns what discovery should know of the engines, without those that
// register themselves.
func (f *Fleet) Workers() []WorkerInfo {
	var infos []WorkerInfo
	for _, e := range f.engines {
		if e.info.Kind.listed() {
			infos = append(infos, e.info)
		}
	}
	return infos
}
