package remote

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func pickFlags(t *testing.T, args ...string) (f PickFlags) {
	t.Helper()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.Register(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestPickQuery(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"", "n=1"},
		{"--model Qwen/Qwen3 --role=prefill --policy=least-load --per=worker -n 3", "model=Qwen%2FQwen3&n=3&per=worker&policy=least-load&role=prefill"},
		{"--number=64 --prompt-tokens=900 --no-credit", "credit=0&n=64&prompt_tokens=900"},
		{"--model a&n=9#x", "model=a%26n%3D9%23x&n=1"},
		{"-n 0 --prompt-tokens=-1", "n=0&prompt_tokens=-1"},
	} {
		if got := pickFlags(t, strings.Fields(tt.args)...).query(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.args, got, tt.want)
		}
	}
}

// asking returns what Pick writes of an answer, and its error.
func asking(t *testing.T, format string, answer http.HandlerFunc) (string, error) {
	t.Helper()
	server := httptest.NewServer(answer)
	defer server.Close()
	c, err := Flags{server: server.URL + "/", timeout: 5 * time.Second}.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var out bytes.Buffer
	err = c.Pick(t.Context(), &out, format, pickFlags(t))
	return out.String(), err
}

// body answers with a status and a text.
func body(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/pick" || r.Method != http.MethodGet {
			http.Error(w, r.URL.Path, http.StatusTeapot)
			return
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text))
	}
}

func TestPickTable(t *testing.T) {
	wide := `{"worker_id":"` + strings.Repeat("ü", 200) + `:30000","dp_rank":4095,"policy":"power-of-k","field":"waiting_uncached_tokens","score":-1.152921504606847e18,"age_ms":18446744073709551615,"version":12}`
	for _, tt := range []struct {
		name, body string
		want       []string // without spaces that align
	}{
		{"one", `{"worker_id":"http://a:1","url":"http://a:1","dp_rank":3,"policy":"power-of-k","field":"total_requests","score":17,"reason":null,"fallback":false,"version":12,"age_ms":250}`,
			[]string{"version 12, policy power-of-k", "WORKER RANK FIELD SCORE AGE", "http://a:1 3 total_requests 17 250ms"}},
		{"by local load, little known", `{"worker_id":"a","dp_rank":null,"policy":"least-load","field":"in_flight","score":null,"reason":"few_fresh","fallback":true,"version":1,"age_ms":null}`,
			[]string{"version 1, policy least-load, local load decides: few_fresh", "WORKER RANK FIELD SCORE AGE", "a - in_flight - -"}},
		{"several, the widest", `{"picks":[` + wide + `,` + wide + `]}`,
			[]string{"version 12, policy power-of-k", "WORKER RANK FIELD SCORE AGE", "…" + strings.Repeat("ü", 23) + ":30000 4095 waiting_uncached_tokens -1.153e+18 99999h"}},
		{"hostile", `{"worker_id":"evil\u001b[31m\n\u202e","policy":"\u001b[31m","field":"\n","version":1,"fallback":true,"reason":"\u202e"}`,
			[]string{"version 1, policy ?[31m, local load decides: ?", "WORKER RANK FIELD SCORE AGE", "evil?[31m?? - ? - -"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := asking(t, "table", body(200, tt.body))
			if err != nil {
				t.Fatal(err)
			}
			requireWidth(t, out)
			lines := strings.Split(out, "\n")
			for i, want := range tt.want {
				if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
					t.Errorf("line %d is %q, want %q", i, got, want)
				}
			}
		})
	}
}

func TestPickJSON(t *testing.T) {
	out, err := asking(t, "json", body(200, `{"worker_id":"a","score":1e300}`+"\n"))
	if want := "{\n  \"worker_id\": \"a\",\n  \"score\": 1e300\n}\n"; err != nil || out != want {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
}

func TestPickFails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		format string
		answer http.HandlerFunc
		want   string
		usage  bool
	}{
		{"nothing to pick", "table", body(503, `{"code":"unavailable","reason":"no_candidates","message":"no worker"}`), "no_candidates: no worker", false},
		{"bad flag", "table", body(400, `{"code":"invalid_argument","reason":"bad_parameter","message":"n must be"}`), "bad_parameter: n must be", true},
		{"hostile message", "table", body(503, `{"reason":"x\u001b","message":"\u202e"}`), "x?: ?", false},
		{"no credential", "table", body(401, "unauthenticated"), "give the token with --token-file", false},
		{"no plane", "table", body(404, "404 page not found"), "is not the API of a plane", false},
		{"a failure", "table", body(500, "<html>"), "status 500", false},
		{"a redirect", "table", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, "status 302", false},
		{"no JSON for the table", "table", body(200, "<html>"), "the answer is no pick", false},
		{"no JSON", "json", body(200, "<html>"), "the answer is no JSON", false},
		{"no worker", "table", body(200, `{"picks":[]}`), "it names no worker", false},
		{"too large", "table", body(200, strings.Repeat(" ", maxPicked+1)), "above 1048576 bytes", false},
		{"broken off", "table", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			_, _ = w.Write([]byte("{"))
		}, "unexpected EOF", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := asking(t, tt.format, tt.answer)
			var usage *UsageError
			if err == nil || !strings.Contains(err.Error(), tt.want) || errors.As(err, &usage) != tt.usage || out != "" {
				t.Errorf("error %v, want %s\n%s", err, tt.want, out)
			}
		})
	}
}

func TestPickTakesNoLongerThanAllowed(t *testing.T) {
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(gone)
	}))
	defer server.Close()
	c, err := Flags{server: server.URL, timeout: 50 * time.Millisecond}.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	err = c.Pick(context.Background(), new(bytes.Buffer), "table", PickFlags{number: 1})
	if err == nil || !strings.Contains(err.Error(), "did not answer within 50ms") {
		t.Errorf("error %v", err)
	}
	<-gone
}
