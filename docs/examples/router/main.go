// Command router is a small OpenAI-compatible router: it follows a plane, and
// sends every request to the worker, or the DP rank, that the plane's view
// makes the best. It is an example to start from.
//
//	router -plane http://127.0.0.1:7400 -listen 127.0.0.1:8080 -per-rank
//
// The model is that of the request's body. Answers are streamed through. Until
// the first byte of an answer a request may go to another worker. Requests that
// need a prefill and a decode worker are out of scope: package balance has
// PickPair for them, but how the two are told of each other is the engine's
// matter.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/loadplane/loadplane/client"
	"github.com/loadplane/loadplane/client/balance"
	"github.com/loadplane/loadplane/client/pick"
)

// drain is how long requests may take to end after SIGTERM.
const drain = 30 * time.Second

type flags struct {
	planes, listen, policy, clientID string
	perRank                          bool
}

func main() {
	var f flags
	flag.StringVar(&f.planes, "plane", "http://127.0.0.1:7400", "base URLs of planes, separated by commas")
	flag.StringVar(&f.listen, "listen", "127.0.0.1:8080", "address to listen on; port 0 takes a free one")
	flag.StringVar(&f.policy, "policy", "power-of-k", "power-of-k, least-load, expected-wait, free-tokens, or round-robin to compare with")
	flag.BoolVar(&f.perRank, "per-rank", false, "pick DP ranks in place of workers")
	flag.StringVar(&f.clientID, "client-id", defaultID(), "name in the logs of the plane, of this process alone")
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(f, log); err != nil {
		log.Error("router failed", "error", err)
		os.Exit(1)
	}
}

// defaultID names the process. A plane spreads its messages to clients of
// different names.
func defaultID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "router"
	}
	return fmt.Sprintf("%.100s-%d", host, os.Getpid()) // 128 bytes are allowed
}

// run serves until SIGINT or SIGTERM, and until the requests are over then.
func run(f flags, log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	watcher, err := client.NewWatcher(watchOptions(f, log))
	if err != nil {
		return err
	}
	proxy, err := newProxy(f, watcher, log)
	if err != nil {
		return err
	}
	var listening net.ListenConfig
	listener, err := listening.Listen(ctx, "tcp", f.listen)
	if err != nil {
		return err
	}
	log.Info("listening", "address", listener.Addr().String())

	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stop()
	tasks.Go(func() { _ = watcher.Run(ctx) }) // It returns nil, and leaves the last view.
	return serve(ctx, listener, handler(watcher, proxy))
}

func watchOptions(f flags, log *slog.Logger) client.Options {
	return client.Options{
		Addresses: strings.Split(f.planes, ","), ClientID: f.clientID, Logger: log,
		// A hundred milliseconds are new enough beside what the router dispatched
		// itself since, which it knows.
		MinInterval: 100 * time.Millisecond,
	}
}

// newProxy sets up picking as the flags say.
func newProxy(f flags, watcher *client.Watcher, log *slog.Logger) (http.Handler, error) {
	o := balance.Options{Watcher: watcher, Pick: pick.Options{PerRank: f.perRank}}
	picked := func(*balance.Route) {}
	if f.policy == "round-robin" {
		turns := newTurns()
		o.Pick.Policy, o.Pick.Score, picked = pick.Custom, turns.score, turns.took
	} else if policy, err := pick.ParsePolicy(f.policy); err != nil {
		return nil, fmt.Errorf("-policy: %w", err)
	} else {
		o.Pick.Policy = policy
	}
	balancer, err := balance.New(o)
	if err != nil {
		return nil, err
	}
	return reverseProxy(&transport{balancer: balancer, picked: picked, engines: engines(), log: log}), nil
}

// handler routes what the router answers itself.
func handler(watcher *client.Watcher, proxy http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v1/", proxy)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if view, _ := watcher.View(); view == nil {
			http.Error(w, "no view yet", http.StatusServiceUnavailable)
		}
		// A plane that is gone does not make the router unhealthy.
	})
	return mux
}

func serve(ctx context.Context, listener net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	err := server.Shutdown(limit)
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
