package registry

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/store"
)

// do fails the test where an order of an operator does, and lets it be taken up.
func (p *plane) do(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
	p.after(2 * testSettle)
}

func wantError(t *testing.T, err error, mention string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), mention) {
		t.Errorf("got %v, want an error that mentions %q", err, mention)
	}
}

func TestAdminList(t *testing.T) {
	const flagged, found = "http://10.0.0.2:1", "http://10.0.0.3:1"
	sourcedWith(t, func(o *Options) { o.Workers, o.MaxWorkers = []string{flagged}, 3 }, func(p *plane, a, b *teller) {
		p.list(a, found)
		p.list(b)
		add := func(value string) error { return p.AddWorker(specsOf(t, value)[0]) }
		p.do(add(testWorker + ",zone=z"))
		e, _ := p.entry(testWorker)
		if e == nil || e.Worker.DiscoveredBy != "admin" || e.Worker.Zone != "z" || p.status("admin").Workers != 1 {
			t.Fatalf("%+v", e)
		}
		wantError(t, add(testWorker), "listed by admin already")
		wantError(t, add(flagged), "listed by flag already")
		wantError(t, add("http://10.0.0.4:1,dialect=poll"), "poll is not available")
		wantError(t, add("http://10.0.0.4:1"), "as many workers as are allowed")
		wantError(t, p.RemoveWorker(found), "listed by alpha")
		wantError(t, p.RemoveWorker("http://10.0.0.9:1"), "there is no worker")
		p.do(add(found + ",zone=y")) // wins over the source
		if e, _ := p.entry(found); e.Worker.DiscoveredBy != "admin+alpha" || e.Worker.Zone != "y" {
			t.Errorf("%+v", e.Worker)
		}
		p.do(p.RemoveWorker(found))
		if e, _ := p.entry(found); e.Worker.DiscoveredBy != "alpha" || e.Worker.Zone != "" {
			t.Errorf("%+v", e.Worker)
		}
		p.do(p.RemoveWorker(testWorker))
		if e, _ := p.entry(testWorker); e != nil || p.status("admin").Workers != 0 {
			t.Errorf("%+v", e)
		}
		p.do(add(flagged + ",id=mine,zone=x")) // one worker, by another id
		if e, _ := p.entry(flagged); p.listed() != 2 || e.Worker.DiscoveredBy != "flag+admin" || e.Worker.Zone != "x" {
			t.Errorf("%d workers, %+v", p.listed(), e.Worker)
		}
		wantError(t, p.RemoveWorker(flagged), "listed by flag+admin, and by admin as mine")
		p.do(p.RemoveWorker("mine"))
		wantError(t, p.RemoveWorker(flagged), "listed by flag, not by admin")
	})
}

// TestAdminListIsBounded where its entries are workers that are there anyway.
func TestAdminListIsBounded(t *testing.T) {
	sourcedWith(t, func(o *Options) { o.Workers, o.MaxWorkers = []string{testWorker}, 2 }, func(p *plane, a, b *teller) {
		p.list(a)
		p.list(b)
		for _, id := range []string{"x", "y"} {
			p.do(p.AddWorker(specsOf(t, testWorker+",id="+id)[0]))
		}
		wantError(t, p.AddWorker(specsOf(t, testWorker+",id=z")[0]), "as many workers as are allowed")
	})
}

func TestDrainByAnOperator(t *testing.T) {
	draining := func(p *plane) bool {
		e, _ := p.entry(testWorker)
		return e.Worker.Draining
	}
	sourced(t, func(p *plane, a, b *teller) {
		wantError(t, p.DrainWorker(testWorker, true), "there is no worker")
		p.list(a, testWorker)
		p.list(b)
		stream := p.bindAs("s1", 1)
		p.do(p.DrainWorker(testWorker, true))
		if !draining(p) || stream.Err() != nil {
			t.Error("it does not drain, or its stream ended")
		}
		if p.list(a, testWorker+",zone=z"); !draining(p) {
			t.Error("a change of discovery undid it")
		}
		p.do(p.DrainWorker(testWorker, false))
		if draining(p) || stream.Err() != nil {
			t.Error("it drains on, or its stream ended")
		}
		p.list(a, testWorker+",draining=true")
		wantError(t, p.DrainWorker(testWorker, false), "drained by alpha")
		p.do(p.DrainWorker(testWorker, true))
		if p.list(a, testWorker); !draining(p) {
			t.Error("the source undid what an operator did")
		}
		p.list(a)
		if p.list(a, testWorker); draining(p) {
			t.Error("it drains on once it was gone")
		}
	})
}

func TestDrainOfARegisteredWorker(t *testing.T) {
	registered(t, func(p *plane) {
		l := p.register(nil)
		p.do(p.DrainWorker(testWorker, true))
		if e, _ := p.entry(testWorker); !e.Worker.Draining {
			t.Error("it does not drain")
		}
		if _, err := p.renew(l, nil); err != nil {
			t.Fatal(err)
		}
		p.settle()
		if e, _ := p.entry(testWorker); !e.Worker.Draining {
			t.Error("a renewal undid it")
		}
		wantError(t, p.RemoveWorker(testWorker), "listed by registration")
		if err := p.Deregister(l.ID, testPeer); err != nil {
			t.Fatal(err)
		}
		p.register(nil)
		if e, _ := p.entry(testWorker); e.Worker.Draining {
			t.Error("it drains on once it was gone")
		}
	})
}

// TestClashIsToldOnce: an id that two sources give to two engines.
func TestClashIsToldOnce(t *testing.T) {
	var out bytes.Buffer
	sourcedWith(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&out, nil)) }, func(p *plane, a, b *teller) {
		p.list(a, testWorker+",id=x")
		p.list(b, "http://10.0.0.2:1,id=x")
		p.list(b, "http://10.0.0.2:1,id=x,zone=z")
		if n := strings.Count(out.String(), "names another one"); n != 1 {
			t.Errorf("%d lines", n)
		}
		if e, _ := p.entry("x"); p.listed() != 1 || e.Worker.Origin != testOrigin || !p.sources.clashes["x"] {
			t.Errorf("%d workers, %+v", p.listed(), e)
		}
		p.list(a)
		if e, _ := p.entry("x"); e.Worker.DiscoveredBy != "beta" || len(p.sources.clashes) != 0 || e.Reason == store.ReasonDuplicateOrigin {
			t.Errorf("%+v, clashes %v", e, p.sources.clashes)
		}
	})
}
