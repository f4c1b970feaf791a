package inspect

import (
	"context"
	"strings"
	"time"

	"github.com/loadplane/loadplane/cmd/loadplane/remote"
	"github.com/loadplane/loadplane/ingest/probe"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"github.com/spf13/pflag"
)

// Flags say how an engine is asked. Register fills them; they are a plain value.
type Flags struct {
	tokenFile, ca string
	reporterPort  int
	timeout       time.Duration
}

// Register adds the flags to fs.
func (f *Flags) Register(fs *pflag.FlagSet) {
	fs.StringVar(&f.tokenFile, "token-file", "", "file with the bearer token for the engine")
	fs.StringVar(&f.ca, "ca", "", "PEM file with the CAs of the engine; default: those of the system")
	fs.IntVar(&f.reporterPort, "reporter-port", 0, "port of the engine's load reporter, where the engine does not name it")
	fs.DurationVar(&f.timeout, "timeout", 2*time.Second, "bound of each request")
}

// Ask asks the engine at a URL. A *remote.UsageError is a fault of the flags or
// the URL; else it fails only when ctx ends.
func (f Flags) Ask(ctx context.Context, url string) (*probe.Report, error) {
	target, err := f.target(url)
	if err != nil {
		return nil, err
	}
	p, err := probe.New(probe.Options{Clock: store.NewClock(), Timeout: f.timeout})
	if err != nil {
		return nil, err
	}
	report := p.Inspect(ctx, target)
	return report, ctx.Err()
}

func (f Flags) target(url string) (registry.Target, error) {
	if f.timeout <= 0 {
		return registry.Target{}, remote.Usagef("--timeout: want more than 0")
	}
	if strings.Contains(url, ",") {
		return registry.Target{}, remote.Usagef("%q is not http://HOST:PORT or https://HOST:PORT", url)
	}
	if f.reporterPort < 0 || f.reporterPort > 65535 {
		return registry.Target{}, remote.Usagef("--reporter-port: want 1 to 65535")
	}
	spec, err := registry.ParseWorkerFlag(url)
	if err != nil {
		return registry.Target{}, remote.Usagef("%w", err)
	}
	if _, err := egress.ReadToken(f.tokenFile); err != nil {
		return registry.Target{}, remote.Usagef("--token-file: %w", err)
	}
	if _, err := egress.ReadRoots(f.ca); err != nil {
		return registry.Target{}, remote.Usagef("--ca: %w", err)
	}
	return registry.Target{
		ID: spec.ID, URL: spec.URL, Origin: spec.Origin, Interval: time.Second, TokenFile: f.tokenFile, CAFile: f.ca,
		ReporterPort: f.reporterPort,
	}, nil
}
