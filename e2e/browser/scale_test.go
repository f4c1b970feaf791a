package browser

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
)

// The fleet of the test of frame times: all of it reports once in scaleInterval.
const (
	scaleWorkers  = 5000
	scaleRanks    = 8
	scaleInterval = 2 * time.Second
	// scaleFor is how long frames are measured: a third each while nothing is
	// done, the heatmap is scrolled, and the table is.
	scaleFor = 10 * time.Second
	// longestFrame is what tells a slow machine from a page that hangs.
	longestFrame = 3 * time.Second
)

// frames are times between frames, milliseconds.
type frames struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_ms"`
	P95   float64 `json:"p95_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
	// Versions is how many were shown meanwhile.
	Versions int `json:"versions"`
	// CPU is what the page's thread used a frame.
	CPU spent `json:"cpu_ms_per_frame"`
}

// spent is processor time of the page's thread, milliseconds. It is the same
// however busy the machine is with other work.
type spent struct {
	All    float64 `json:"all"`
	Script float64 `json:"script"`
	Layout float64 `json:"layout"`
}

func (p *page) spent() (s spent) {
	p.t.Helper()
	p.do(step{Do: "spent"}, &s)
	return s
}

// framesOf measures frames while something is scrolled for a time.
func (p *page) framesOf(what string, d time.Duration) (f frames) {
	p.t.Helper()
	before := p.spent()
	p.eval(fmt.Sprintf(`inspector.frames(%q, %d)`, what, d.Milliseconds()), &f)
	after, n := p.spent(), float64(max(1, f.Count))
	round := func(v float64) float64 { return math.Round(v/n*10) / 10 }
	f.CPU = spent{round(after.All - before.All), round(after.Script - before.Script), round(after.Layout - before.Layout)}
	return f
}

// TestFramesOfFiveThousandWorkers scrolls the page of a large fleet
// that changes, and records how long the frames took. It asserts only that the
// page lives: what frames take is the machine's, and is in the artefact.
func TestFramesOfFiveThousandWorkers(t *testing.T) {
	need(t, chromium.start())
	plane := startPlane(t, scaleInterval)
	var workers []*store.Worker
	for i := range scaleWorkers {
		w := named(fmt.Sprintf("http://engine-%04d:30000", i))
		w.Models = []string{fmt.Sprint("model-", i%7)}
		workers = append(workers, w)
	}
	plane.add(workers...)
	plane.feed(scaleInterval, scaleRanks)
	opened := time.Now()
	p := open(t, plane.addr, desk)
	p.eval(inspector, nil)
	p.untilState("live")
	p.until(fmt.Sprintf(`inspector.count("fresh") === %d`, scaleWorkers))
	shown := time.Since(opened)

	result := map[string]any{
		"workers": scaleWorkers, "ranks": scaleRanks, "interval_ms": scaleInterval.Milliseconds(),
		"cpus": runtime.NumCPU(), "all_fresh_after_ms": shown.Milliseconds(),
	}
	for _, what := range []string{"still", "heat", "grid"} {
		f := p.framesOf(what, scaleFor/3)
		result[what] = f
		t.Logf("%s: %+v", what, f)
		if f.Max > float64(longestFrame.Milliseconds()) {
			t.Errorf("%s: a frame took %.0f ms", what, f.Max)
		}
	}
	p.passVersions(2)
	p.untilState("live")
	p.shot(artefacts(t) + "/five-thousand-workers.png")
	p.requireQuiet()
	leave(t, "frames.json", result)
}
