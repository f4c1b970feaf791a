package browser

import (
	"fmt"
	"os"
	"testing"
)

// TestScreens opens the overview and a worker in both themes and at two widths,
// and leaves pictures of them. Nothing may be wider than the screen.
func TestScreens(t *testing.T) {
	need(t, chromium.start())
	_, api := serve(t, "demo", "--mixed")
	p := open(t, api, desk)
	p.eval(inspector, nil)
	p.until(`inspector.count("fresh") >= 10`)
	p.passVersions(20)
	for _, view := range []string{"overview", "worker"} {
		if view == "worker" {
			p.eval(`inspector.openHottest()`, nil)
			p.passVersions(20)
		}
		for _, s := range []screen{{1280, 800, "light"}, {1280, 800, "dark"}, {400, 800, "light"}, {400, 800, "dark"}} {
			p.do(step{Do: "look", Width: s.width, Height: s.height, Scheme: s.scheme}, nil)
			p.passVersions(3)
			var width int
			p.eval(`document.documentElement.scrollWidth`, &width)
			if width > s.width {
				t.Errorf("%s is %d pixels wide on a screen of %d", view, width, s.width)
			}
			p.do(step{Do: "shot", Whole: true, Path: fmt.Sprintf("%s/%s-%s-%d.png", artefacts(t), view, s.scheme, s.width)}, nil)
		}
	}
}

// mostImageBytes bounds a picture of the documentation.
const mostImageBytes = 200_000

// TestImagesOfTheDocs takes the pictures of the page that the documentation
// shows, into the folder that IMAGES names:
//
//	IMAGES=$PWD/docs/images go test -count=1 -run '^TestImagesOfTheDocs$' ./e2e/browser
func TestImagesOfTheDocs(t *testing.T) {
	dir := os.Getenv("IMAGES")
	if dir == "" {
		t.Skip("IMAGES names no folder to write to")
	}
	need(t, os.MkdirAll(dir, 0o755))
	need(t, chromium.start())
	_, api := serve(t, "demo", "--mixed", "--fault=silent:engine=4,after=5s")
	p := open(t, api, desk)
	p.eval(inspector, nil)
	p.until(`inspector.count("stale") >= 1`)
	for _, scheme := range []string{"light", "dark"} {
		p.do(step{Do: "look", Width: desk.width, Height: desk.height, Scheme: scheme}, nil)
		p.passVersions(3)
		file := fmt.Sprintf("%s/page-%s.png", dir, scheme)
		p.shot(file)
		info, err := os.Stat(file)
		need(t, err)
		if info.Size() > mostImageBytes {
			t.Errorf("%s has %d bytes, more than %d", file, info.Size(), mostImageBytes)
		}
	}
}

// passVersions waits until the page has shown some more versions.
func (p *page) passVersions(n int64) {
	p.t.Helper()
	p.until(fmt.Sprintf(`Number(document.documentElement.dataset.version) >= %d`, p.version()+n))
}
