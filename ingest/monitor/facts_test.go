package monitor

import (
	"context"
	"sync/atomic"

	"github.com/loadplane/loadplane/registry"
)

// facts is a prober of an engine that says where its load reporter is.
type facts struct{ port, asked atomic.Int32 }

func (f *facts) Facts(context.Context, registry.Target) registry.Finding {
	f.asked.Add(1)
	port := int(f.port.Load())
	return registry.Finding{Facts: registry.Facts{Family: "sglang", ReporterPort: port}, Complete: port != 0}
}

func (f *facts) Probe(ctx context.Context, t registry.Target) registry.Finding {
	return f.Facts(ctx, t)
}
