package client

import (
	"crypto/tls"
	"go/parser"
	"go/token"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestOptions(t *testing.T) {
	with := func(change func(o *Options)) Options {
		o := hosts("a:7400", "b")
		o.Addresses = append(o.Addresses, "https://[::1]:7400/base/")
		change(&o)
		return o
	}
	for _, c := range []struct {
		name string
		o    Options
		// want begins the error; empty for none.
		want string
	}{
		{"good", with(func(*Options) {}), ""},
		{"own TLS", with(func(o *Options) { o.TLS = new(tls.Config) }), ""},
		{"own client", with(func(o *Options) { o.HTTPClient = new(http.Client) }), ""},
		{"own client and TLS", with(func(o *Options) { o.HTTPClient, o.TLS = new(http.Client), new(tls.Config) }), "option TLS: "},
		{"no address", Options{}, "option Addresses: "},
		{"an address twice", hosts("a", "a"), "option Addresses: "},
		{"longest name", with(func(o *Options) { o.ClientID = strings.Repeat("x", 128) }), ""},
		{"a name too long", with(func(o *Options) { o.ClientID = strings.Repeat("x", 129) }), "option ClientID: "},
		{"longest intervals", with(func(o *Options) {
			o.MinInterval, o.HeartbeatInterval = math.MaxUint32*time.Millisecond, math.MaxUint32*time.Millisecond
		}), ""},
		{"MinInterval below 0", with(func(o *Options) { o.MinInterval = -time.Second }), "option MinInterval: "},
		{"MinInterval too long", with(func(o *Options) { o.MinInterval = (math.MaxUint32 + 1) * time.Millisecond }), "option MinInterval: "},
		{"HeartbeatInterval too fine", with(func(o *Options) { o.HeartbeatInterval = time.Second + time.Microsecond }), "option HeartbeatInterval: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, err := NewWatcher(c.o)
			if c.want == "" && (err != nil || w == nil) || c.want != "" && (err == nil || w != nil || !strings.HasPrefix(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestBadAddresses(t *testing.T) {
	for _, a := range []string{
		"", "a:7400", "http://", "http:///path", "http://:7400", "http://a/#", "ftp://a", "//a", "http://user:secret@a", "http://a?secret=1", "http://a?", "http://a#secret",
		"http://a:port:secret", "http://a\n", "unix:///run/secret",
	} {
		_, err := NewWatcher(Options{Addresses: []string{a}})
		if err == nil || !strings.HasPrefix(err.Error(), "option Addresses: ") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", a, err)
		}
	}
}

// The package depends on the wire definitions and the Connect runtime only.
func TestImports(t *testing.T) {
	allowed := []string{
		"connectrpc.com/connect",
		"github.com/loadplane/loadplane/client/internal/clock",
		"github.com/loadplane/loadplane/client/internal/link",
		"github.com/loadplane/loadplane/client/internal/retry",
		"github.com/loadplane/loadplane/proto/loadplane/v1",
		"github.com/loadplane/loadplane/proto/loadplane/v1/loadplanev1connect",
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	seen := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range f.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			seen[path] = true
			root, _, _ := strings.Cut(path, "/")
			if strings.Contains(root, ".") && !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", name, path)
			}
		}
	}
	for _, path := range allowed {
		if !seen[path] {
			t.Errorf("nothing imports %s", path)
		}
	}
}
