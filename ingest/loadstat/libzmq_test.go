package loadstat

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// python returns an interpreter that has the real library, or skips.
func python(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(name, "-c", "import zmq").Run() == nil {
			return name
		}
	}
	if os.Getenv("LIBZMQ") == "required" {
		t.Fatal("no python3 with the module zmq, which LIBZMQ=required demands")
	}
	t.Skip("no python3 with the module zmq (Debian: python3-zmq)")
	return ""
}

// publish starts a publisher and returns its first port and how to end it.
func publish(t *testing.T, args ...any) (port int, end func()) {
	t.Helper()
	words := []string{"testdata/publisher.py"}
	for _, a := range args {
		words = append(words, fmt.Sprint(a))
	}
	cmd := exec.Command(python(t), words...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if port, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		t.Fatal(err)
	}
	return port, end
}

// TestLibzmq subscribes to publishers on the real libzmq, and
// restarts them, once with pings.
func TestLibzmq(t *testing.T) {
	const worker = "http://127.0.0.1:30000"
	port, end := publish(t, 0, 4, 10, 2_000_000)
	p := newPlane(t, func(reg *registry.Options, opts *Options) {
		reg.Workers, reg.ReportInterval = []string{worker + ",dialect=loadstat"}, 100*time.Millisecond
		reg.Logger, opts.Dial = slog.New(slog.DiscardHandler), nil
	})
	p.facts.set(worker, registry.LoadStat{Host: "0.0.0.0", Port: port, Topic: "load", Ranks: 4})
	ctx, stop := context.WithCancel(t.Context())
	p.runs.Go(func() { _ = p.store.Run(ctx) })
	p.runs.Go(func() { _ = p.registry.Run(ctx) })
	defer p.runs.Wait()
	defer stop()

	first := p.await(t, worker, "", 4, 10)
	r := first.Ranks[2]
	if usage, _ := r.Float(store.TokenUsage); usage != 0.3 || known(&r, store.NumTotalTokens) != 350 ||
		known(&r, store.NumWaitingUncachedTokens) != 40 || known(&r, store.MaxRunningRequests) != 128 {
		t.Errorf("rank 2 is %+v", r)
	}
	if first.Load.Samples[2].PrefillBusyUs != 7000 {
		t.Errorf("the counters of rank 2 are %+v", first.Load.Samples[2])
	}

	end()
	_, end = publish(t, port, 4, 50, 1_000_000, 100)
	second := p.await(t, worker, first.Load.Source, 4, 50)
	end()
	publish(t, port, 4, 90, 0)
	p.await(t, worker, second.Load.Source, 4, 90)
	if p.metric(p.sub.metrics.negative)+p.metric(p.sub.metrics.mismatches)+p.metric(p.sub.metrics.old) != 0 {
		t.Error("messages of the real library are odd")
	}
}

// known is a shown count, -1 for unknown.
func known(r *store.Rank, f store.Field) int64 {
	if v, ok := r.Count(f); ok {
		return v
	}
	return -1
}

// await waits until a worker is fresh with some ranks and requests, of another
// source than before.
func (p *plane) await(t *testing.T, id, before string, ranks int, running int64) worker {
	t.Helper()
	late := time.After(time.Minute)
	for {
		st, stale := p.store.Current()
		for i, e := range st.Entries {
			if e.Worker.ID == id && e.Freshness == store.Fresh && e.Load.Source != before && len(e.Ranks) == ranks &&
				known(&e.Ranks[ranks-1], store.NumRunningReqs) == running+int64(ranks-1) {
				return worker{e, st.Live[i], store.Diagnostics{}}
			}
		}
		select {
		case <-late:
			t.Fatalf("the worker is not fresh with %d ranks of another source than %q: %+v", ranks, before, p.worker(id))
		case <-stale:
		}
	}
}
