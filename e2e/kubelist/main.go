// Command kubelist prints what discovery in Kubernetes hands to the registry: one
// line of JSON for each listing, until a signal.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/kube"
)

// line is a listing as it is printed.
type line struct {
	Workers []worker `json:"workers"`
	Error   string   `json:"error"`
}

type worker struct {
	ID           string            `json:"id"`
	URL          string            `json:"url"`
	UID          string            `json:"uid"`
	Role         string            `json:"role"`
	Models       []string          `json:"models"`
	Zone         string            `json:"zone"`
	Labels       map[string]string `json:"labels"`
	ReporterPort int               `json:"reporter_port"`
	Draining     bool              `json:"draining"`
	NoEngine     bool              `json:"no_engine"`
	Guarded      bool              `json:"guarded"`
}

func main() { os.Exit(run(slog.New(slog.NewTextHandler(os.Stderr, nil)))) }

// run prints listings until a signal and returns the code to exit with.
func run(log *slog.Logger) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	opts := kube.Options{Logger: log}
	flag.StringVar(&opts.Kubeconfig, "kubeconfig", "", "path of a kubeconfig")
	flag.StringVar(&opts.Selector, "selector", "", "label selector of pods")
	flag.Func("namespaces", "namespace; repeatable", appendTo(&opts.Namespaces))
	flag.Func("services", "name of a Service; repeatable", appendTo(&opts.Services))
	flag.Parse()
	source, err := kube.New(opts)
	if err != nil {
		log.Error("discovery not possible", "error", err)
		return 1
	}
	out := json.NewEncoder(os.Stdout)
	source.Run(ctx, func(l registry.Listing) {
		if err := out.Encode(printed(l)); err != nil {
			log.Error("listing not written", "error", err)
		}
	})
	return 0
}

func appendTo(list *[]string) func(string) error {
	return func(s string) error {
		*list = append(*list, s)
		return nil
	}
}

// printed returns a listing as it is printed.
func printed(l registry.Listing) line {
	if l.Err != nil {
		return line{Error: l.Err.Error()}
	}
	ws := make([]worker, len(l.Specs))
	for i := range l.Specs {
		s := &l.Specs[i]
		ws[i] = worker{
			ID: s.ID, URL: s.URL, UID: s.UID, Role: s.Role.String(), Models: s.Models, Zone: s.Zone,
			Labels: s.Labels, ReporterPort: s.ReporterPort, Draining: s.Draining, NoEngine: s.NoEngine, Guarded: s.Guarded,
		}
	}
	return line{Workers: ws}
}
