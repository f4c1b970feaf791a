package page

import (
	"bytes"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

func newPage(t testing.TB) *Page {
	t.Helper()
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ask(t testing.TB, p *Page, method, target string, header http.Header) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, nil)
	r.Header = header.Clone()
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w.Result()
}

func TestFiles(t *testing.T) {
	p := newPage(t)
	for path, kind := range map[string]string{
		"/":                "text/html; charset=utf-8",
		"/assets/app.js":   "text/javascript; charset=utf-8",
		"/assets/theme.js": "text/javascript; charset=utf-8",
		"/assets/app.css":  "text/css; charset=utf-8",
		"/assets/icon.svg": "image/svg+xml",
	} {
		a := ask(t, p, http.MethodGet, path, nil)
		want := p.files[path]
		var body bytes.Buffer
		if _, err := body.ReadFrom(a.Body); err != nil {
			t.Fatal(err)
		}
		if a.StatusCode != http.StatusOK || a.Header.Get("Content-Type") != kind || body.Len() == 0 || !bytes.Equal(body.Bytes(), want.body) {
			t.Errorf("%s: %d %v, %d bytes", path, a.StatusCode, a.Header, body.Len())
		}
	}
	if n := len(p.files); n != 5 {
		t.Errorf("%d files, want 5", n)
	}
}

func TestHeaders(t *testing.T) {
	p := newPage(t)
	for path := range p.files {
		h := ask(t, p, http.MethodGet, path, nil).Header
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
			"Cache-Control":           "no-cache",
			"Referrer-Policy":         "no-referrer",
			"X-Content-Type-Options":  "nosniff",

			"Cross-Origin-Opener-Policy":   "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := h.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
	}
	if v := ask(t, p, http.MethodGet, "/", nil).Header.Get("Vary"); v != "Accept" {
		t.Errorf("the page varies by %q", v)
	}
}

func TestETag(t *testing.T) {
	p := newPage(t)
	seen := map[string]string{}
	for path, f := range p.files {
		a := ask(t, p, http.MethodGet, path, nil)
		tag := a.Header.Get("ETag")
		if !strings.HasPrefix(tag, `"`) || seen[tag] != "" {
			t.Errorf("%s: tag %s, as %s", path, tag, seen[tag])
		}
		seen[tag] = path
		if a := ask(t, p, http.MethodGet, path, http.Header{"If-None-Match": {tag}}); a.StatusCode != http.StatusNotModified {
			t.Errorf("%s with its tag: %d", path, a.StatusCode)
		}
		if a := ask(t, p, http.MethodGet, path, http.Header{"If-None-Match": {`"other"`}}); a.StatusCode != http.StatusOK {
			t.Errorf("%s with another tag: %d", path, a.StatusCode)
		}
		head := ask(t, p, http.MethodHead, path, nil)
		if head.StatusCode != http.StatusOK || head.ContentLength != int64(len(f.body)) || head.Header.Get("ETag") != tag {
			t.Errorf("HEAD %s: %d, %d bytes", path, head.StatusCode, head.ContentLength)
		}
	}
	changed, err := read(fstest.MapFS{"static/index.html": {Data: []byte("other")}})
	if err != nil {
		t.Fatal(err)
	}
	if changed.files["/"].etag == p.files["/"].etag {
		t.Error("two files have one tag")
	}
}

func TestHas(t *testing.T) {
	p := newPage(t)
	for _, c := range []struct {
		method, path string
		accept       []string
		want         bool
	}{
		{"GET", "/", []string{browser}, true},
		{"HEAD", "/", []string{browser}, true},
		{"GET", "/", []string{"application/json", "Text/HTML"}, true},
		{"GET", "/", []string{"*/*"}, false},
		{"GET", "/", nil, false},
		{"GET", "/", []string{"text/html;q=0"}, false},
		{"GET", "/", []string{"text/html;q=0.000"}, false},
		{"GET", "/", []string{"text/html;q=0.1"}, true},
		{"GET", "/", []string{"text/htmlx"}, false},
		{"POST", "/", []string{browser}, false},
		{"GET", "/assets/app.js", nil, true},
		{"POST", "/assets/app.js", nil, false},
		{"GET", "/assets/", []string{browser}, false},
		{"GET", "/assets/../v1/pick", []string{browser}, false},
		{"GET", "/assets//app.js", []string{browser}, false},
		{"GET", "/assets/index.html", []string{browser}, false},
		{"GET", "/v1/load_monitor/snapshot", []string{browser}, false},
		{"GET", "/loadplane.v1.SnapshotService/GetSnapshot", []string{browser}, false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, nil)
		r.Header["Accept"] = c.accept
		if got := p.Has(r); got != c.want {
			t.Errorf("%s %s, Accept %q: %v", c.method, c.path, c.accept, got)
		}
	}
}

func TestNoFile(t *testing.T) {
	p := newPage(t)
	for _, path := range []string{"/assets/", "/assets/none.js", "/assets/index.html", "/other"} {
		if a := ask(t, p, http.MethodGet, path, nil); a.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", path, a.StatusCode)
		}
	}
}

// The policy would stop these in a browser; they must not be there at all.
func TestFilesUseNothingOfOthers(t *testing.T) {
	names, err := fs.Glob(built, "static/*")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d files: %v", len(names), err)
	}
	// The name of a namespace is not an address that is asked for.
	namespace := regexp.MustCompile(`http://www\.w3\.org/[0-9]+/svg`)
	address := regexp.MustCompile(`(?i)(https?|wss?)://[a-z0-9]`)
	for _, name := range names {
		body, err := fs.ReadFile(built, name)
		if err != nil {
			t.Fatal(err)
		}
		rest := namespace.ReplaceAll(body, nil)
		if at := address.FindIndex(rest); at != nil {
			t.Errorf("%s has an address of others: %s", name, rest[at[0]:min(at[0]+60, len(rest))])
		}
		if path.Ext(name) == ".html" {
			checkMarkup(t, string(body))
		}
	}
}

func checkMarkup(t *testing.T, html string) {
	t.Helper()
	for what, pattern := range map[string]string{
		"an inline script":       `<script[^>]*>\s*[^<\s]`,
		"an inline style":        `<style|\sstyle=`,
		"an inline handler":      `\son[a-z]+=`,
		"an address of others":   `(src|href)="(//|[a-z]+:)`,
		"a form that goes away":  `<form[^>]*\saction=`,
		"a template with values": `\{\{`,
	} {
		if at := regexp.MustCompile(pattern).FindString(html); at != "" {
			t.Errorf("the page has %s: %s", what, at)
		}
	}
}

func TestReadRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		files fstest.MapFS
		want  string
	}{
		"no page":         {fstest.MapFS{"static/app.js": {Data: []byte("x")}}, "have no index.html"},
		"an unknown kind": {fstest.MapFS{"static/index.html": {}, "static/app.exe": {}}, "app.exe is of an unknown kind"},
		"a folder":        {fstest.MapFS{"static/index.html": {}, "static/a.js/b": {}}, "page:"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := read(c.files); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func FuzzAccept(f *testing.F) {
	f.Add(browser)
	f.Add("text/html;q=0,*/*")
	f.Add(`a/b;c="d,e",text/html`)
	f.Fuzz(func(t *testing.T, accept string) {
		if takesHTML([]string{accept}) && !strings.Contains(strings.ToLower(accept), "text/html") {
			t.Errorf("%q is taken for HTML", accept)
		}
	})
}
