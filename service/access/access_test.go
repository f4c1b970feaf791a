package access

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/service/internal/testcert"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestSecretShowsNothing(t *testing.T) {
	s := NewSecret(testcert.Token)
	encoded, err := json.Marshal(map[string]any{"a": s, "b": &s})
	if err != nil {
		t.Fatal(err)
	}
	var log logBuffer
	testLogger(&log).Info("m", "s", s, slog.Group("g", "s", &s))
	shown := fmt.Sprintf("%v %+v %#v %s %q %x %d", s, s, s, s, s, s, s) + fmt.Sprint(struct{ S Secret }{s}) + s.String() + string(encoded) + log.String()
	for _, leak := range []string{testcert.Token, fmt.Sprintf("%x", testcert.Token), "canary"} {
		if strings.Contains(shown, leak) {
			t.Errorf("%q is shown in %s", leak, shown)
		}
	}
	if !strings.Contains(shown, "REDACTED") {
		t.Errorf("got %s", shown)
	}
}

func TestSecretEqual(t *testing.T) {
	s := NewSecret("abc")
	for text, want := range map[string]bool{"abc": true, "abd": false, "ab": false, "": false, "abcd": false} {
		if s.Equal(text) != want {
			t.Errorf("Equal(%q) is %v", text, !want)
		}
	}
	if (Secret{}).Equal("") {
		t.Error("the zero secret equals the empty text")
	}
}

func TestParseToken(t *testing.T) {
	for content, good := range map[string]bool{
		"abc": true, "abc\n": true, "abc\r\n": true, "abc\n\n": true,
		"": false, "\n": false, "a b": false, " abc": false, "abc \n": false, "a\nb": false, "ä": false, "a\x00": false,
	} {
		s, err := parseToken([]byte(content))
		if (err == nil) != good {
			t.Errorf("%q: error %v", content, err)
		}
		if good && !s.Equal("abc") {
			t.Errorf("%q: not abc", content)
		}
		if err != nil && content != "" && strings.Contains(err.Error(), strings.TrimSpace(content)) && strings.TrimSpace(content) != "" {
			t.Errorf("%q: the error repeats it: %v", content, err)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add([]byte("abc\r\n"))
	f.Add([]byte("\xff"))
	f.Fuzz(func(t *testing.T, content []byte) {
		s, err := parseToken(content)
		if err == nil && !s.Equal(strings.TrimRight(string(content), "\r\n")) {
			t.Fatalf("%q is not its own token", content)
		}
	})
}

func TestReloading(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	testcert.Replace(t, path, []byte("one\n"))
	var log logBuffer
	a, err := New(Options{TokenFile: path, Logger: testLogger(&log)})
	if err != nil {
		t.Fatal(err)
	}
	r, m := a.token, a.metrics
	expect := func(token string, ok, failed float64) {
		t.Helper()
		for range 3 { // Asking again changes nothing.
			if !r.get().Equal(token) {
				t.Errorf("the token is not %q", token)
			}
		}
		if got := testutil.ToFloat64(m.reloads.WithLabelValues("api_token_file", "ok")); got != ok {
			t.Errorf("reloads ok: %v, want %v", got, ok)
		}
		if got := testutil.ToFloat64(m.reloads.WithLabelValues("api_token_file", "error")); got != failed {
			t.Errorf("reloads error: %v, want %v", got, failed)
		}
	}
	expect("one", 0, 0)
	testcert.Replace(t, path, []byte("two"))
	expect("two", 1, 0)
	testcert.Replace(t, path, nil)
	expect("two", 1, 1)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("two", 1, 2)
	testcert.Replace(t, path, []byte("three"))
	expect("three", 2, 2)
	if n := strings.Count(log.String(), "credential not reloaded"); n != 2 {
		t.Errorf("%d lines about failures, want 2:\n%s", n, log.String())
	}
}

func TestNewRefuses(t *testing.T) {
	ca := testcert.NewAuthority(t, "ca")
	tests := []struct {
		name   string
		change func(t *testing.T, f testcert.Files)
		want   string
	}{
		{"key open to others", func(t *testing.T, f testcert.Files) { chmod(t, f.Key, 0o604) }, "lets others open the key"},
		{"key writable by others", func(t *testing.T, f testcert.Files) { chmod(t, f.Key, 0o602) }, "lets others open the key"},
		{"no key", func(t *testing.T, f testcert.Files) { remove(t, f.Key) }, "no such file"},
		{"garbage for a certificate", func(t *testing.T, f testcert.Files) { testcert.Replace(t, f.Cert, []byte("x")) }, "tls_cert"},
		{"key of another certificate", func(t *testing.T, f testcert.Files) {
			_, key := ca.Issue("other", time.Now().Add(time.Hour))
			testcert.Replace(t, f.Key, key)
		}, "does not match"},
		{"expired certificate", func(t *testing.T, f testcert.Files) {
			cert, key := ca.Issue("old", time.Now().Add(-time.Minute))
			testcert.Replace(t, f.Cert, cert)
			testcert.Replace(t, f.Key, key)
		}, "expired"},
		{"empty token", func(t *testing.T, f testcert.Files) { testcert.Replace(t, f.Token, []byte("\n")) }, "api_token_file"},
		{"token in a folder's place", func(t *testing.T, f testcert.Files) { remove(t, f.Token); mkdir(t, f.Token) }, "not a regular file"},
		{"large token file", func(t *testing.T, f testcert.Files) { testcert.Replace(t, f.Token, make([]byte, maxCredentialFile+1)) }, "not a regular file"},
		{"CA file without a certificate", func(t *testing.T, f testcert.Files) { testcert.Replace(t, f.CA, []byte("x")) }, "client_ca"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := testcert.NewFiles(t, ca, ca)
			var log logBuffer
			opts := Options{Cert: f.Cert, Key: f.Key, TokenFile: f.Token, ClientCA: f.CA, Logger: testLogger(&log)}
			if _, err := New(opts); err != nil {
				t.Fatalf("before the change: %v", err)
			}
			test.change(t, f)
			_, err := New(opts)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error %v, want %q", err, test.want)
			}
			if strings.Contains(err.Error()+log.String(), testcert.Token) {
				t.Error("the token is shown")
			}
		})
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestGuardReasons(t *testing.T) {
	f := testcert.NewFiles(t, testcert.NewAuthority(t, "ca"), testcert.NewAuthority(t, "ca"))
	a, err := New(Options{TokenFile: f.Token, Logger: testLogger(io.Discard)})
	if err != nil {
		t.Fatal(err)
	}
	g := a.Guard("api", false)
	handler := g.HTTP(g.SameOrigin(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })))
	tests := []struct {
		name   string
		header map[string][]string
		status int
		reason store.Reason
	}{
		{"the token", map[string][]string{"Authorization": {"Bearer " + testcert.Token}}, 204, ""},
		{"nothing", nil, 401, ReasonNoCredential},
		{"another token", map[string][]string{"Authorization": {"Bearer x"}}, 401, ReasonWrongCredential},
		{"the token twice", map[string][]string{"Authorization": {"Bearer " + testcert.Token, "Bearer " + testcert.Token}}, 401, ReasonWrongCredential},
		{"the token alone", map[string][]string{"Authorization": {testcert.Token}}, 401, ReasonWrongCredential},
		{"a page of another origin", map[string][]string{"Authorization": {"Bearer " + testcert.Token}, "Sec-Fetch-Site": {"cross-site"}}, 403, ReasonCrossOrigin},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			count := func() float64 {
				return testutil.ToFloat64(a.metrics.refused.WithLabelValues("api", string(test.reason)))
			}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/x", nil)
			maps.Copy(r.Header, test.header)
			w := httptest.NewRecorder()
			before := count()
			handler.ServeHTTP(w, r)
			if w.Code != test.status {
				t.Errorf("status %d, want %d", w.Code, test.status)
			}
			if counted := count() - before; counted != 1 && test.reason != "" {
				t.Errorf("%s was counted %v times", test.reason, counted)
			}
		})
	}
}

func TestGuardWithoutCredentialsIsOpen(t *testing.T) {
	f := testcert.NewFiles(t, testcert.NewAuthority(t, "ca"), testcert.NewAuthority(t, "ca"))
	none, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	certificates, err := New(Options{ClientCA: f.CA, Cert: f.Cert, Key: f.Key})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		g    *Guard
		want store.Reason
	}{
		{"nothing configured", none.Guard("api", false), ""},
		{"certificates on a plaintext listener", certificates.Guard("api", false), ""},
		{"certificates on a TLS listener", certificates.Guard("api", true), ReasonNoCredential},
	} {
		if got := c.g.check(nil, nil); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
