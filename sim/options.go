package sim

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
)

// Bounds of Options.
const (
	maxEngines = 10_000
	maxRanks   = 4_096
)

// Role is the part of a request's life that an engine serves.
type Role string

// The roles, in the words of a worker flag.
const (
	RolePlain   Role = "plain"
	RolePrefill Role = "prefill"
	RoleDecode  Role = "decode"
)

func (r Role) workerType() pb.WorkerType {
	switch r {
	case RolePrefill:
		return pb.WorkerType_WORKER_TYPE_PREFILL
	case RoleDecode:
		return pb.WorkerType_WORKER_TYPE_DECODE
	default:
		return pb.WorkerType_WORKER_TYPE_REGULAR
	}
}

// Options configure a Fleet. The zero value is eight plain engines with four
// ranks each on free ports of 127.0.0.1.
type Options struct {
	// Engines is the number of engines, 1 to 10,000; 0 means 8.
	Engines int
	// Kinds are given to the engines in turn; empty gives all the push load
	// reporter, or MixedKinds to a mixed fleet, without KindNative where there
	// is no Plane.
	Kinds []Kind
	// Ranks is the number of data-parallel ranks of an engine, 1 to 4,096; 0
	// means 4. Kinds without ranks have one.
	Ranks int
	// Listen is the host to listen on, without a port; empty means 127.0.0.1.
	Listen string
	// BasePort is the port of the first engine, the next ones follow; 0 gives
	// every engine a free port. Ports beside that of HTTP are always free ones.
	BasePort int
	// Mixed makes every fourth engine a prefill and every fourth a decode
	// engine, from the second and the third on, where they are an SGLang; the
	// rest stay plain.
	Mixed bool
	// Model is the served model; empty means "sim-model".
	Model string
	// Zones are given to the engines in turn; empty gives them none.
	Zones []string
	// Seed makes the load repeatable. Engines differ within a seed.
	Seed uint64
	// NoTraffic leaves out the requests that engines make up, so that only those
	// that are sent to them count.
	NoTraffic bool
	// FirstSample is the time from the first registration of a life to its
	// first load sample, at least 0. Reports before it are UNREACHABLE.
	FirstSample time.Duration
	// Plane returns the base URL of the plane at which native engines register.
	// It is called while Run runs. KindNative needs it.
	Plane func() string
	// Faults happen by themselves while Run runs.
	Faults []Fault
	// Logger is nil for the default one.
	Logger *slog.Logger
}

// withDefaults returns the options with defaults in the place of zeros, or an
// error that names the field out of range.
func (o Options) withDefaults() (Options, error) {
	o.Engines = orDefault(o.Engines, 8)
	o.Ranks = orDefault(o.Ranks, 4)
	o.Listen = orDefault(o.Listen, "127.0.0.1")
	o.Model = orDefault(o.Model, "sim-model")
	o.Logger = orDefault(o.Logger, slog.Default())
	if len(o.Kinds) == 0 {
		o.Kinds = []Kind{KindSGLang}
		if o.Mixed {
			o.Kinds = o.mixedKinds()
		}
	}
	return o, o.validate()
}

// mixedKinds are those that can be.
func (o Options) mixedKinds() []Kind {
	return slices.DeleteFunc(MixedKinds(), func(k Kind) bool { return !k.listed() && o.Plane == nil })
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

func (o Options) validate() error {
	switch {
	case o.Engines < 1 || o.Engines > maxEngines:
		return fmt.Errorf("sim: Engines is %d, must be 1 to %d", o.Engines, maxEngines)
	case o.Ranks < 1 || o.Ranks > maxRanks:
		return fmt.Errorf("sim: Ranks is %d, must be 1 to %d", o.Ranks, maxRanks)
	case o.BasePort < 0 || o.BasePort > 0 && o.BasePort+o.Engines-1 > 65535:
		return fmt.Errorf("sim: BasePort is %d, must be 0 or leave %d ports up to 65535", o.BasePort, o.Engines)
	case o.FirstSample < 0:
		return fmt.Errorf("sim: FirstSample is %v, must not be negative", o.FirstSample)
	}
	for _, k := range o.Kinds {
		if !slices.Contains(Kinds(), k) {
			return fmt.Errorf("sim: unknown kind %q; known are %s", k, named(Kinds()))
		}
		if !k.listed() && o.Plane == nil {
			return fmt.Errorf("sim: kind %q needs a plane to register at", k)
		}
	}
	for _, f := range o.Faults {
		if err := f.validate(); err != nil {
			return err
		}
		if f.Engine != AllEngines && f.Engine >= o.Engines {
			return fmt.Errorf("sim: fault %q: engine %d of %d", f, f.Engine, o.Engines)
		}
	}
	return nil
}

func (o Options) kind(i int) Kind { return o.Kinds[i%len(o.Kinds)] }

func (o Options) role(i int) Role {
	mixed := o.Mixed && o.kind(i).sglang()
	switch {
	case mixed && i%4 == 1:
		return RolePrefill
	case mixed && i%4 == 2:
		return RoleDecode
	default:
		return RolePlain
	}
}

func (o Options) ranks(i int) int {
	if o.kind(i).ranked() {
		return o.Ranks
	}
	return 1
}

func (o Options) zone(i int) string {
	if len(o.Zones) == 0 {
		return ""
	}
	return o.Zones[i%len(o.Zones)]
}

func (o Options) port(i int) int {
	if o.BasePort == 0 {
		return 0
	}
	return o.BasePort + i
}

// WorkerInfo is what discovery should know of an engine. It is a plain value.
type WorkerInfo struct {
	// URL is the base URL, http://host:port.
	URL string
	// Kind is what the engine behaves as. Discovery needs not know it.
	Kind Kind
	// Role is the engine's role; RolePlain for all but SGLang.
	Role Role
	// Model is the served model.
	Model string
	// Zone is the engine's zone, empty for none.
	Zone string
}

// Flag returns the value of a worker flag for the engine:
// URL[,role=...],model=...[,zone=...], the role for SGLang only.
func (w WorkerInfo) Flag() string {
	parts := []string{w.URL}
	if role := w.NamedRole(); role != "" {
		parts = append(parts, "role="+role)
	}
	parts = append(parts, "model="+w.Model)
	if w.Zone != "" {
		parts = append(parts, "zone="+w.Zone)
	}
	return strings.Join(parts, ",")
}

// NamedRole returns the role that discovery should name: that of an SGLang,
// empty for others.
func (w WorkerInfo) NamedRole() string {
	if !w.Kind.sglang() {
		return ""
	}
	return string(w.Role)
}
