// Package page serves the page for people: static files that are built from
// web/ and hold no data. What they show they ask the API for, as every client.
package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"
)

// built is what `npm run build` in web/ writes.
//
//go:embed static
var built embed.FS

const (
	// index is the file of the page itself, assets the path of the others.
	index  = "index.html"
	assets = "/assets/"
	// policy lets the page load its own files and ask its own origin, and
	// nothing else. Text can never become a script.
	policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)

// file is one built file. It is immutable.
type file struct {
	kind string
	etag string
	body []byte
}

// Page serves the files. It is immutable and safe for concurrent use.
type Page struct {
	// files are by URL path.
	files map[string]file
}

// New reads the built files. It fails where they lack the page itself or one
// of them is of an unknown kind.
func New() (*Page, error) { return read(built) }

func read(from fs.FS) (*Page, error) {
	p := &Page{files: map[string]file{}}
	names, err := fs.Glob(from, "static/*")
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	for _, name := range names {
		f, err := newFile(from, name)
		if err != nil {
			return nil, fmt.Errorf("page: %w", err)
		}
		p.files[urlOf(path.Base(name))] = f
	}
	if _, ok := p.files["/"]; !ok {
		return nil, fmt.Errorf("page: the files have no %s", index)
	}
	return p, nil
}

func urlOf(name string) string {
	if name == index {
		return "/"
	}
	return assets + name
}

func newFile(from fs.FS, name string) (file, error) {
	body, err := fs.ReadFile(from, name)
	if err != nil {
		return file{}, err
	}
	kind := kindOf(path.Ext(name))
	if kind == "" {
		return file{}, fmt.Errorf("%s is of an unknown kind", name)
	}
	sum := sha256.Sum256(body)
	return file{kind: kind, etag: `"` + hex.EncodeToString(sum[:16]) + `"`, body: body}, nil
}

// kindOf does not ask the machine, whose tables differ.
func kindOf(ext string) string {
	switch ext {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return ""
}

// Has says whether a request is answered with a file. The path / is one only
// for clients that take HTML, as browsers do.
func (p *Page) Has(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	_, ok := p.files[r.URL.Path]
	return ok && (r.URL.Path != "/" || takesHTML(r.Header.Values("Accept")))
}

// takesHTML says whether an Accept header names HTML. A range such as */* does
// not: command line tools send it.
func takesHTML(accept []string) bool {
	for _, one := range strings.Split(strings.Join(accept, ","), ",") {
		kind, params, err := mime.ParseMediaType(one)
		if err == nil && kind == "text/html" && !refused(params["q"]) {
			return true
		}
	}
	return false
}

// refused says that a quality is 0.
func refused(q string) bool {
	return q != "" && strings.Trim(q, "0.") == "" && strings.HasPrefix(q, "0")
}

// ServeHTTP answers with the file of the path, or that it is not there. It
// sets all headers that matter for safety itself.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := p.files[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("ETag", f.etag)
	// Asked for again every time, and sent only where it is another one.
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Security-Policy", policy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.URL.Path == "/" {
		h.Set("Vary", "Accept")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body))
}
