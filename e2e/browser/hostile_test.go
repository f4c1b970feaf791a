package browser

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/loadplane/loadplane/store"
)

// marker is what a name sets in the page if it is run.
const marker = "window.ran=1"

// tricks are names that discovery takes: printable, up to 256 bytes.
var tricks = []string{
	"<script>" + marker + "</script>",
	"<img src=x onerror=" + marker + ">",
	`"><svg onload=` + marker + ">",
	"' onmouseover='" + marker,
	"javascript:" + marker,
	"data:text/html,<script>" + marker + "</script>",
	"</title></style></textarea><script>" + marker + "</script>",
	"<iframe srcdoc='<script>parent.ran=1</script>'>",
	"<a href=javascript:" + marker + " autofocus onfocus=" + marker + ">",
	"<style>*{background:url(http://127.0.0.1:1/)}</style>",
	"<base href=http://127.0.0.1:1/>",
	"<template><slot onslotchange=" + marker + "></template>",
	"{{constructor.constructor('" + marker + "')()}}",
	"${" + marker + "}",
	"`;" + marker + "//",
	`\";` + marker + `;//`,
	"&lt;script&gt;" + marker + "&#60;/script&#62;",
	"%3Cscript%3E" + marker + "%3C%2Fscript%3E%",
	"<!--<script>" + marker + "-->",
	"__proto__", "constructor", "toString", "hasOwnProperty", "null", "undefined",
	"#/worker/../../x?y=z&a[]=1",
	"שלום עולם مرحبا",
	"Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘",
	"𝕏🦊漢字",
	strings.Repeat("W", 240),
	strings.Repeat("<b>", 80),
	`[data-worker="x"],*`,
}

// beyond are names that discovery refuses, and that nothing on the way to the
// page refuses: controls, marks of direction, what has no width, and 1 KB.
var beyond = []string{
	"safe\u202egnp.exe", "a\u2066b\u2069c", "\u200f\u200fright", "\u061cx", "zero\u200b\u200c\u200dwidth",
	"\ufeffbom", "nul\x00byte", "line\nbreak\r\n", "tab\there", "\x1b[31mred\x1b[0m", "del\x7f", "c1\u0085\u009b31m",
	"sep\u2028\u2029end", "\u202d\u202c\u2067\u2068", "soft\u00adhyphen", "tag\U000e0041\U000e007f", "fill\u3164er\u115f",
	strings.Repeat("\u202e", 340), strings.Repeat("\x00", 1024), strings.Repeat("\n", 1024),
	strings.Repeat("x", 1024), strings.Repeat("<script>"+marker+"</script>", 35), strings.Repeat("漢", 341),
	"\U0001f469\u200d\U0001f467\ufe0f", "\u202e<script>" + marker + "</script>\u2066",
}

const hostileWorkers = 200

// TestHostileNamesOfDiscovery lists workers by a file whose ids, models, zones
// and labels are tricks.
func TestHostileNamesOfDiscovery(t *testing.T) {
	need(t, chromium.start())
	type listed struct {
		URL     string            `json:"url"`
		ID      string            `json:"id"`
		Model   []string          `json:"model"`
		Zone    string            `json:"zone"`
		Label   map[string]string `json:"label"`
		Dialect string            `json:"dialect"`
	}
	var list struct {
		Workers []listed `json:"workers"`
	}
	var ids []string
	for i := range hostileWorkers {
		trick := func(n int) string { return tricks[(i+n)%len(tricks)] }
		id := fmt.Sprintf("%s%d", trick(0), i)
		ids = append(ids, id)
		list.Workers = append(list.Workers, listed{
			URL: fmt.Sprintf("http://127.0.0.1:%d", 1+i), ID: id, Model: []string{trick(i / len(tricks))}, Zone: cut(trick(2), 64),
			Label: map[string]string{cut(trick(3), 64): trick(4), "long": strings.Repeat("L", 256)}, Dialect: "none",
		})
	}
	text, err := json.Marshal(list) // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "workers.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	_, api := serve(t, "serve", "--workers-file="+file)
	lookAtNames(t, open(t, api, desk), ids)
}

// TestHostileNamesBeyondDiscovery fills a plane with names that discovery would
// have refused, and reports under them.
func TestHostileNamesBeyondDiscovery(t *testing.T) {
	need(t, chromium.start())
	plane := startPlane(t, time.Second)
	var workers []*store.Worker
	var ids []string
	for i := range hostileWorkers {
		trick := func(n int) string { return beyond[(i+n)%len(beyond)] }
		w := named(fmt.Sprintf("%s%d", trick(0), i))
		w.Models, w.Zone = []string{trick(i / len(beyond))}, trick(2)
		w.Labels = map[string]string{trick(3): trick(4)}
		w.URL = "javascript:" + marker
		workers, ids = append(workers, w), append(ids, w.ID)
	}
	plane.add(workers...)
	plane.feed(time.Second, 2)
	// The plane refuses to explain workers of such names.
	lookAtNames(t, open(t, plane.addr, desk), ids, "400 (Bad Request)")
}

// cut returns at most n bytes of whole runes.
func cut(s string, n int) string {
	for i := range s {
		if i > n {
			return strings.ToValidUTF8(s[:n], "")
		}
	}
	return s
}

// lookAtNames has the page show every name in its table, and every kind of name
// in the view of its worker, and checks what came of it.
func lookAtNames(t *testing.T, p *page, ids []string, expected ...string) {
	t.Helper()
	p.eval(inspector, nil)
	p.untilState("live")
	p.until(fmt.Sprintf(`inspector.count("") === %d`, len(ids)))
	var shown map[string]string
	p.eval(`inspector.names()`, &shown)
	requireShown(t, "the table", shown, ids)
	var wide []string
	p.eval(`inspector.tooWide()`, &wide)
	if len(wide) > 0 {
		t.Errorf("too large by long names: %q", wide)
	}
	p.shot(artefacts(t) + "/" + t.Name() + ".png")
	clear(shown)
	// The names after these repeat them.
	ids = ids[:max(len(tricks), len(beyond))]
	p.eval(`inspector.visit(`+quote(ids)+`)`, &shown)
	requireShown(t, "the worker view", shown, ids)
	p.shot(artefacts(t) + "/" + t.Name() + "-worker.png")
	var ran any
	p.eval(`window.ran ?? null`, &ran)
	if ran != nil {
		t.Error("a name was run")
	}
	p.requireQuiet(expected...)
	requireAlarm(t, p)
}

// requireShown checks the text that stands for each name: harmless names stand
// as they are, no text has a character that does not show.
func requireShown(t *testing.T, where string, shown map[string]string, ids []string) {
	t.Helper()
	for _, id := range ids {
		text, ok := shown[id]
		switch {
		case !ok || text == "":
			t.Errorf("%s does not show %.80q", where, id)
		case strings.ContainsFunc(text, invisible):
			t.Errorf("%s shows %.80q as %.120q", where, id, text)
		case len(id) < 60 && !strings.ContainsFunc(id, invisible) && !strings.Contains(text, id):
			t.Errorf("%s shows %q as %.120q", where, id, text)
		}
	}
}

// invisible says that a character does not show, or turns its neighbours.
func invisible(c rune) bool {
	return unicode.In(c, unicode.Cc, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp, unicode.Variation_Selector) ||
		strings.ContainsRune("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0", c)
}

// requireAlarm makes the page do what the names must not, so that a test that
// would not notice fails.
func requireAlarm(t *testing.T, p *page) {
	t.Helper()
	p.eval(`{ const s = document.createElement("img"); s.src = "http://127.0.0.1:1/x.png"; document.body.append(s); }
		try { document.body.insertAdjacentHTML("beforeend", "<b>x</b>"); } catch {}`, nil)
	p.until(`window.violations.length >= 2`)
}
