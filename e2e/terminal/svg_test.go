package terminal

import (
	"encoding/xml"
	"fmt"
	"html"
	"image/color"
	"os"
	"path/filepath"
	"strings"
	"testing"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/ansi"
)

// The measures of a picture of a screen, in its units.
const (
	cellWidth, cellHeight = 8.4, 18.0
	margin                = 12.0
	paper, ink, faint     = "#16181d", "#d7dae0", "#7d8590"
)

// palette has the colours of a terminal by the names of the program's tones.
var palette = map[color.Color]string{
	ansi.Red: "#ff7b72", ansi.Green: "#56d364", ansi.Yellow: "#e3b341",
}

// look is how a run of cells is drawn.
type look struct {
	ink, paper string
	bold       bool
}

func lookOf(s uv.Style) look {
	l := look{ink: ink, paper: paper, bold: s.Attrs&uv.AttrBold != 0}
	if s.Attrs&uv.AttrFaint != 0 {
		l.ink = faint
	}
	if s.Fg != nil {
		l.ink = palette[s.Fg]
		if l.ink == "" {
			r, g, b, _ := s.Fg.RGBA()
			l.ink = fmt.Sprintf("#%02x%02x%02x", r>>8, g>>8, b>>8)
		}
	}
	if s.Attrs&uv.AttrReverse != 0 {
		l.ink, l.paper = l.paper, l.ink
	}
	return l
}

// run is a part of a line of cells that look alike.
type run struct {
	look
	from, cells int
	text        string
}

// runs returns the parts of a line of the screen.
func (x *terminal) runs(y int) (out []run) {
	for i := 0; i < x.emulator.Width(); {
		text, width, l := " ", 1, look{ink: ink, paper: paper}
		if c := x.emulator.CellAt(i, y); c != nil {
			l = lookOf(c.Style)
			if c.Content != "" {
				text, width = c.Content, max(1, c.Width)
			}
		}
		if n := len(out) - 1; n >= 0 && out[n].look == l {
			out[n].text, out[n].cells = out[n].text+text, out[n].cells+width
		} else {
			out = append(out, run{l, i, width, text})
		}
		i += width
	}
	return out
}

// svg draws the screen.
func (x *terminal) svg() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	width, height := 2*margin+cellWidth*float64(x.emulator.Width()), 2*margin+cellHeight*float64(x.emulator.Height())
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="14" role="img" aria-label="loadplane top">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%.0f" height="%.0f" rx="8" fill="%s"/>`+"\n", width, height, paper)
	for y := range x.emulator.Height() {
		for _, r := range x.runs(y) {
			r.draw(&b, y)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (r run) draw(b *strings.Builder, y int) {
	left, top, width := margin+cellWidth*float64(r.from), margin+cellHeight*float64(y), cellWidth*float64(r.cells)
	if r.paper != paper {
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.0f" fill="%s"/>`+"\n", left, top, width, cellHeight, r.paper)
	}
	if strings.TrimSpace(r.text) == "" {
		return
	}
	weight := ""
	if r.bold {
		weight = ` font-weight="bold"`
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" fill="%s"%s textLength="%.1f" lengthAdjust="spacingAndGlyphs" xml:space="preserve">%s</text>`+"\n",
		left, top+13.5, r.ink, weight, width, html.EscapeString(r.text))
}

// A picture of the live screen, with an engine that is stale, has all its text
// and colours. TERMINAL_PICTURE names the file to write it to; the one of
// the README is docs/images/top.svg.
func TestScreenshot(t *testing.T) {
	p := demo(t, "--mixed", "--engines=11", "--ranks=4", "--seed=7", "--fault=down:engine=6,after=4s")
	x := open(t, size{100, 24}, nil, "top", "--server="+p.url)
	lines := x.until("a stale worker among fresh ones", func(lines []string) bool {
		return strings.HasPrefix(lines[1], "11 workers: 10 fresh 1 stale") && hottestFirst(lines[:len(lines)-1])
	})
	picture := x.svg()
	path := os.Getenv("TERMINAL_PICTURE")
	if path == "" {
		path = filepath.Join(t.ArtifactDir(), "top.svg")
	}
	if err := os.WriteFile(path, []byte(picture), 0o644); err != nil {
		t.Fatal(err)
	}
	var read struct {
		Text []struct {
			Fill string `xml:"fill,attr"`
			Text string `xml:",chardata"`
		} `xml:"text"`
	}
	if err := xml.Unmarshal([]byte(picture), &read); err != nil {
		t.Fatal(err)
	}
	all, fills := "", map[string]bool{}
	for _, r := range read.Text {
		all += r.Text
		fills[r.Fill] = true
	}
	if !fills["#56d364"] || !fills["#e3b341"] || !fills[paper] {
		t.Errorf("colours are %v", fills)
	}
	for _, word := range strings.Fields(lines[0]) {
		if !strings.Contains(all, word) {
			t.Errorf("no %q in the picture", word)
		}
	}
	x.keys("q")
	x.wait()
}
