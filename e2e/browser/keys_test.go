package browser

import (
	"testing"
)

// mostTabs is how many presses of Tab may be needed to reach anything of the
// page but single workers.
const mostTabs = 40

// TestKeyboardAlone opens a worker from the heatmap, and one from the table,
// without a pointer, and goes back. What has the focus must show it.
func TestKeyboardAlone(t *testing.T) {
	need(t, chromium.start())
	_, api := serve(t, "demo", "--engines=4", "--ranks=4")
	p := open(t, api, desk)
	p.eval(inspector, nil)
	p.until(`inspector.count("fresh") === 4`)

	p.press("Tab")
	var first string
	p.eval(`document.activeElement.textContent`, &first)
	if first != "Skip to the content" {
		t.Errorf("the first Tab goes to %q", first)
	}
	p.tabTo(`document.activeElement.matches("[role=application]")`)
	p.press("ArrowRight", "ArrowRight")
	p.until(`inspector.focusedCell() !== ""`)
	var before, after string
	p.eval(`inspector.focusedCell()`, &before)
	p.press("ArrowRight")
	p.until(`inspector.focusedCell() !== ` + quote(before))
	p.eval(`inspector.focusedCell()`, &after)
	t.Logf("the heatmap said %q, then %q", before, after)
	p.requireOpens()

	p.tabTo(`document.activeElement.matches("#grid a, #grid [role=row], #grid [data-worker], [role=table]#grid")`)
	p.requireOpens()
	p.requireQuiet()
}

// tabTo presses Tab until an expression is true. What has the focus on the way
// must show it.
func (p *page) tabTo(code string) {
	p.t.Helper()
	for range mostTabs {
		p.press("Tab")
		var there, shown bool
		p.eval(`inspector.focusShows()`, &shown)
		if !shown {
			var what string
			p.eval(`document.activeElement.outerHTML.slice(0, 200)`, &what)
			p.t.Errorf("the focus does not show on %s", what)
		}
		if p.eval(code, &there); there {
			return
		}
	}
	p.t.Fatalf("%d presses of Tab do not reach %s", mostTabs, code)
}

// requireOpens opens a worker by Enter and goes back by its link.
func (p *page) requireOpens() {
	p.t.Helper()
	p.press("Enter")
	p.until(`location.hash.startsWith("#/worker/") && inspector.workerShown() !== ""`)
	p.tabTo(`document.activeElement.matches("#worker a[href='#/']")`)
	p.press("Enter")
	p.until(`!location.hash.startsWith("#/worker/") && inspector.workerShown() === ""`)
}
