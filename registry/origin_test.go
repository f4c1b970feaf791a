package registry

import (
	"net/url"
	"strings"
	"testing"
)

func TestNormalizeOrigin(t *testing.T) {
	for raw, want := range map[string]string{
		"http://127.0.0.1:30111":          "127.0.0.1:30111",
		"HTTP://Engine.EXAMPLE:8000/v1?x": "engine.example:8000",
		"https://engine":                  "engine:443",
		"http://engine/":                  "engine:80",
		"http://engine:":                  "engine:80",
		"engine:8000":                     "engine:8000",
		"engine":                          "engine:80",
		"http://user:pw@engine:1":         "engine:1",
		"http://[::1]:30000":              "[::1]:30000",
		"http://[2001:DB8:0:0::1]":        "[2001:db8::1]:80",
		"[::1]:30000":                     "[::1]:30000",
		"http://localhost:08000":          "localhost:8000",
	} {
		if got, err := NormalizeOrigin(raw); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", raw, got, err, want)
		}
	}
}

func TestNormalizeOriginRefuses(t *testing.T) {
	for name, raw := range map[string]string{
		"empty": "", "no host": "http://:80", "zone": "http://[fe80::1%25eth0]:80", "port 0": "http://a:0",
		"port too high": "http://a:65536", "port no number": "http://a:x", "scheme": "ftp://a:1",
		"bare IPv6": "::1", "brackets on IPv4": "http://[127.0.0.1]:80", "brackets on a name": "http://[a]:80",
		"percent": "http://a%41:80", "space": "http://a b:80", "not ASCII": "http://é:80", "only a scheme": "http://",
		"long": "http://" + strings.Repeat("a", 300),
	} {
		if got, err := NormalizeOrigin(raw); err == nil {
			t.Errorf("%s: %q gave %q", name, raw, got)
		}
	}
}

func FuzzNormalizeOrigin(f *testing.F) {
	for _, s := range []string{"http://a:1", "[::1]:2", "https://A", "http://u@h:3/p?q#f", "::", "a:0", "http://[::1%25z]:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		origin, err := NormalizeOrigin(raw)
		if err != nil {
			return
		}
		if again, err := NormalizeOrigin(origin); err != nil || again != origin {
			t.Fatalf("%q: %q became %q, %v", raw, origin, again, err)
		}
		full := raw
		if !strings.Contains(full, "://") {
			full = "http://" + full
		}
		a, err := url.Parse(full)
		if err != nil {
			t.Fatalf("net/url refuses %q: %v", full, err)
		}
		b, err := url.Parse("http://" + origin)
		if err != nil {
			t.Fatalf("net/url refuses the origin %q: %v", origin, err)
		}
		if b.Path != "" || b.User != nil || b.RawQuery != "" || strings.Count(origin, "[") > 1 {
			t.Fatalf("%q has more than an origin", origin)
		}
		if !strings.Contains(a.Hostname(), ":") && b.Hostname() != strings.ToLower(a.Hostname()) {
			t.Fatalf("%q: host %q, net/url says %q", raw, b.Hostname(), a.Hostname())
		}
	})
}
