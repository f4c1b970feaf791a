package browser

import (
	"math"
	"strings"
	"testing"
	"time"
)

// stale is the age at which a report stops being fresh in the planes of these
// tests, grace how much later the page has to show it, on whatever machine: how
// long it took is in the artefact.
const (
	stale = 3 * time.Second
	grace = 10 * time.Second
)

// TestKilledEngineTurnsGrey kills engines of three kinds as kill -9 does. The
// page must show none of them as fresh when its last report is too old, and the
// others must stay.
func TestKilledEngineTurnsGrey(t *testing.T) {
	need(t, chromium.start())
	kinds := "--kinds=sglang,sglang-poll,vllm"
	_, kept := fleet(t, "--engines=3", "--ranks=2", kinds)
	doomed, killed := fleet(t, "--engines=3", "--ranks=2", "--seed=2", kinds)
	args := []string{"--report-interval=500ms", "--stale-after=" + stale.String()}
	for _, url := range append(kept, killed...) {
		args = append(args, "--worker="+url)
	}
	_, api := serve(t, "serve", args...)
	p := open(t, api, desk)
	p.eval(inspector, nil)
	p.until(`inspector.count("fresh") === 6`)
	p.until(quote(append(kept, killed...)) + `.every((id) => inspector.painted(id) === "fresh")`)

	p.eval(`inspector.noteEnd(`+quote(killed)+`)`, nil)
	began := time.Now()
	doomed.kill()
	p.until(`inspector.ended() !== null`)
	var took float64
	p.eval(`inspector.ended()`, &took)
	leave(t, "killed-engines.json", map[string]any{
		"stale_after_ms": stale.Milliseconds(), "grey_after_ms": math.Round(took), "in_all_ms": time.Since(began).Milliseconds(),
	})
	if most := stale + grace; took > float64(most.Milliseconds()) {
		t.Errorf("the cells of killed engines were coloured for %.0f ms, more than %v", took, most)
	}
	var fresh []string
	p.eval(quote(kept)+`.filter((id) => inspector.painted(id) === "fresh")`, &fresh)
	if len(fresh) != len(kept) {
		t.Errorf("of the live engines %v are shown as fresh: %v", kept, fresh)
	}
	p.shot(artefacts(t) + "/killed-engines.png")
}

// TestStreamIsCut cuts the way to the plane and mends it. The page says so and
// goes on by itself, at a later version.
func TestStreamIsCut(t *testing.T) {
	p, way := openBehind(t)
	before := p.version()
	way.cut()
	p.untilState("lost")
	p.until(`inspector.banner() !== ""`)
	p.requireOneAge()
	p.shot(artefacts(t) + "/stream-lost.png")
	way.mend()
	p.requireRecovered(before)
	p.requireQuiet("net::ERR_")
}

// TestStreamIsFrozen loses all packets and closes nothing. The page notices by
// the silence, and reconnects when the network works again.
func TestStreamIsFrozen(t *testing.T) {
	p, way := openBehind(t)
	before := p.version()
	way.freeze()
	p.untilState("old", "lost")
	p.until(`inspector.banner() !== ""`)
	p.until(`inspector.count("fresh") === 0`)
	p.until(`["fresh", "coverage"].every((f) => inspector.pools(f).every((v) => v === "0"))`)
	p.until(`inspector.pools("hottest_worker_id").join("") + inspector.pools("num_running_reqs").join("") === ""`)
	p.requireOneAge()
	p.shot(artefacts(t) + "/stream-frozen.png")
	way.mend()
	p.requireRecovered(before)
	p.requireQuiet("net::ERR_")
}

// TestPlaneRestarts kills the plane and starts another one at its address. The
// page follows the new one, whose versions begin again.
func TestPlaneRestarts(t *testing.T) {
	need(t, chromium.start())
	_, urls := fleet(t, "--engines=2", "--ranks=2")
	args := []string{"--worker=" + urls[0], "--worker=" + urls[1]}
	plane, api := serve(t, "serve", args...)
	p := open(t, api, desk)
	p.eval(inspector, nil)
	p.until(`inspector.count("fresh") === 2`)
	var lineage string
	p.eval(`document.documentElement.dataset.lineage`, &lineage)
	plane.kill()
	p.untilState("lost", "old")
	serve(t, "serve", append(args, "--api-listen="+api)...)
	p.untilState("live")
	p.until(`document.documentElement.dataset.lineage !== ` + quote(lineage))
	p.until(`inspector.count("fresh") === 2`)
	p.requireQuiet("net::ERR_")
}

// openBehind opens the page of a plane with two engines behind a link.
func openBehind(t *testing.T) (*page, *link) {
	t.Helper()
	need(t, chromium.start())
	_, urls := fleet(t, "--engines=2", "--ranks=2")
	_, api := serve(t, "serve", "--worker="+urls[0], "--worker="+urls[1])
	way := newLink(t, api)
	p := open(t, way.addr, desk)
	p.eval(inspector, nil)
	p.untilState("live")
	p.until(`inspector.count("fresh") === 2`)
	p.until(`inspector.banner() === ""`)
	return p, way
}

// requireOneAge fails the test if the banner does not say the time of the last
// message that the header says.
func (p *page) requireOneAge() {
	p.t.Helper()
	var said []string
	p.eval(`[inspector.banner(), inspector.lastMessage()]`, &said)
	if said[1] == "" || !strings.Contains(said[0], said[1]) {
		p.t.Errorf("the banner says %q, the header %q", said[0], said[1])
	}
}

func (p *page) version() (v int64) {
	p.t.Helper()
	p.eval(`Number(document.documentElement.dataset.version)`, &v)
	return v
}

// requireRecovered waits for a live page at a version after one, and fails the
// test if the document was loaded anew: then nothing of the inspector is left.
func (p *page) requireRecovered(version int64) {
	p.t.Helper()
	p.untilState("live")
	p.until(`Number(document.documentElement.dataset.version) > ` + quote(version))
	p.until(`inspector.count("fresh") === 2`)
	p.until(`inspector.banner() === ""`)
}
