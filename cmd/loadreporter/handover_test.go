package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/owner"
	"github.com/loadplane/loadplane/sim"
)

// An owner that is asked to end leaves the worker to the standby; the last one
// takes it along.
func TestOwnerThatLeavesHandsTheWorkerOver(t *testing.T) {
	e := engine(t, sim.KindVLLM, 1)
	api, ingest := plane(t)
	owner, standby := pair(t, "--engine="+e.Info().URL, "--plane="+ingest, "--interval=100ms")
	until(t, "one fresh worker", func() bool { all := workers(t, api); return len(all) == 1 && all[0].Freshness == "fresh" })
	ended := make(chan error, 1)
	owner.signal(syscall.SIGTERM)
	go func() { ended <- owner.wait() }()
	gone := false
	until(t, "the standby reports", func() bool {
		gone = gone || len(workers(t, api)) == 0
		s := standby.status()
		return s.Role == "owner" && s.plane().Connected
	})
	if err := <-ended; err != nil {
		t.Errorf("the owner ended with %v", err)
	}
	if gone || !strings.Contains(owner.logged(), "the lease is left to another reporter") {
		t.Error("the worker was gone meanwhile")
	}
	standby.signal(syscall.SIGTERM)
	if err := standby.wait(); err != nil {
		t.Errorf("the last one ended with %v", err)
	}
	until(t, "no worker", func() bool { return len(workers(t, api)) == 0 })
}

// Whoever goes on with an engine names its process as the one before did: after
// kill -9, after an end, and after a restart without any state.
func TestLifeHasOneName(t *testing.T) {
	for _, kind := range []sim.Kind{sim.KindSGLangPoll, sim.KindVLLM} {
		t.Run(string(kind), func(t *testing.T) {
			e := engine(t, kind, 1)
			r, state := newRouter(t), t.TempDir()
			args := []string{"--engine=" + e.Info().URL, "--push-unknown=zero", "--stale-after=1h"}
			begin := func(state string) (p *process, source string) {
				p = start(t, append(args, "--state-dir="+state)...)
				until(t, "a sample", func() bool { code, _ := p.get("/readyz"); return code == 200 })
				_, _, n := r.counts()
				if code, body := p.ask(r, interval, time.Minute); code != 200 {
					t.Fatalf("%d %s", code, body)
				}
				return p, r.await(t, n, "a healthy report", healthy).GetSourceInstanceId()
			}
			first, source := begin(state)
			noted := func() bool {
				files, _ := os.ReadDir(state + "/" + fmt.Sprintf("loadreporter-%d", os.Geteuid()))
				for _, f := range files {
					if strings.HasSuffix(f.Name(), ".life") {
						return true
					}
				}
				return false
			}
			until(t, "the life of the engine is noted", noted)
			first.kill()
			second, next := begin(state)
			if next != source {
				t.Errorf("after kill -9: %s, before %s", next, source)
			}
			second.signal(syscall.SIGTERM)
			if err := second.wait(); err != nil {
				t.Error(err)
			}
			third, next := begin(state)
			if next != source {
				t.Errorf("after an end: %s, before %s", next, source)
			}
			third.kill()
			fourth, next := begin(t.TempDir())
			if (next == source) != (kind == sim.KindVLLM) {
				t.Errorf("without state: %s, before %s", next, source)
			}
			fourth.kill()
			reports := r.since(0)
			for i := 1; i < len(reports); i++ {
				a, b := reports[i-1], reports[i]
				if a.GetSourceInstanceId() == b.GetSourceInstanceId() && b.GetSequenceId() <= a.GetSequenceId() {
					t.Fatalf("sequence %d after %d", b.GetSequenceId(), a.GetSequenceId())
				}
			}
		})
	}
}

// A report to a plane has a sample that just ended, and not the one of an
// interval before.
func TestReportsHaveYoungSamples(t *testing.T) {
	e := engine(t, sim.KindTGI, 1) // whose page has no time of its own
	api, ingest := plane(t)
	start(t, "--engine="+e.Info().URL, "--state-dir="+t.TempDir(), "--plane="+ingest, "--interval=1s")
	young, last := 0, int64(0)
	until(t, "three reports in a row with a young sample", func() bool {
		all := workers(t, api)
		if len(all) != 1 || len(all[0].Ranks) == 0 || all[0].Reported == last {
			return young == 3
		}
		last = all[0].Reported
		taken, _ := all[0].Ranks[0]["snapshot_time_unix_ms"].(float64)
		if young++; last-int64(taken) > 700 {
			young = 0
		}
		return young == 3
	})
}

// Two names of the loopback interface must not make two owners.
func TestLoopbackNamesHaveOneOwner(t *testing.T) {
	e := engine(t, sim.KindSGLangPoll, 1)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(e.Info().URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	state := "--state-dir=" + t.TempDir()
	owner := start(t, "--engine=http://127.0.0.1:"+port, state)
	until(t, "an owner", func() bool { return owner.status().Role == "owner" })
	standby := start(t, "--engine=http://localhost:"+port, state)
	until(t, "a standby", func() bool {
		code, _ := standby.get("/readyz")
		return code == 200 && standby.status().Role == "standby"
	})
}

// Connections that say nothing must not keep probes and routers away.
func TestHalfOpenConnectionsKeepNobodyAway(t *testing.T) {
	e := engine(t, sim.KindSGLangPoll, 1)
	p := start(t, "--engine="+e.Info().URL, "--state-dir="+t.TempDir())
	for range 300 {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	if code, body := p.get("/livez"); code != http.StatusOK {
		t.Errorf("%d %s", code, body)
	}
}

// What is wrong with the state folder or the plane is said with what to do.
func TestErrorsNameTheCure(t *testing.T) {
	e := engine(t, sim.KindSGLangPoll, 1)
	state := t.TempDir()
	files, err := owner.FilesIn(state, strings.TrimPrefix(e.Info().URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(files.Lock, 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a := &app{out: &out, err: &out}
	if code := a.run(t.Context(), []string{"--engine=" + e.Info().URL, "--state-dir=" + state, "--listen=127.0.0.1:0"}); code != exitFailure || !strings.Contains(out.String(), "loadreporter: --state-dir: ") {
		t.Errorf("code %d with a lock that cannot be opened: %s", code, &out)
	}
	api, _ := plane(t)
	p := start(t, "--engine="+e.Info().URL, "--state-dir="+t.TempDir(), "--plane="+api)
	until(t, "an error", func() bool {
		s := p.status()
		return s.Role == "owner" && s.plane().Error != ""
	})
	if text := p.status().plane().Error; !strings.Contains(text, api+": registration: ") || !strings.Contains(text, "7401 by default") {
		t.Errorf("error %q", text)
	}
}
