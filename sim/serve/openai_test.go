package serve

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/sim/reporter"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine returns a process of two ranks, and the face of it.
func engine(t *testing.T) (*reporter.Process, http.Handler) {
	t.Helper()
	p := reporter.New(reporter.Config{
		Model: "m", Ranks: 2, NoTraffic: true, Faults: &reporter.Faults{},
		Dial: func(context.Context, string) (net.Conn, error) { return nil, errors.New("no network") },
	})
	t.Cleanup(p.Close)
	return p, OpenAI("m", func() *reporter.Process { return p })
}

func post(t *testing.T, h http.Handler, path, rank, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://engine:1"+path, strings.NewReader(body))
	if rank != "" {
		r.Header.Set(RankHeader, rank)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestWholeAnswers(t *testing.T) {
	cases := []struct{ name, path, body, want string }{
		{"chat", "/v1/chat/completions", `{"model":"m","max_tokens":3,"messages":[{"role":"user","content":"12345678"}]}`,
			`"message":{"role":"assistant","content":"word word word "},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}`},
		{"parts", "/v1/chat/completions", `{"max_completion_tokens":1,"max_tokens":9,"messages":[{"content":[{"type":"text","text":"1234"}]}]}`,
			`"usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}}`},
		{"completion", "/v1/completions", `{"max_tokens":2,"prompt":"1234567890"}`,
			`"choices":[{"index":0,"text":"word word ","finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`},
		{"defaults", "/v1/completions", `{}`, `"usage":{"prompt_tokens":1,"completion_tokens":16,"total_tokens":17}}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, h := engine(t)
				began := time.Now()
				w := post(t, h, c.path, "1", c.body)
				if w.Code != http.StatusOK || !strings.HasSuffix(strings.TrimSpace(w.Body.String()), c.want) || !json.Valid(w.Body.Bytes()) {
					t.Errorf("%d: %s\nwant %s", w.Code, w.Body, c.want)
				}
				if w.Header().Get(RankHeader) != "1" || w.Header().Get(EngineHeader) != "engine:1" || time.Since(began) == 0 {
					t.Errorf("after %v, %v", time.Since(began), w.Header())
				}
			})
		})
	}
}

func TestStreams(t *testing.T) {
	cases := []struct {
		name, path, body string
		want             []string
	}{
		{"chat", "/v1/chat/completions", `{"model":"m","stream":true,"max_tokens":2,"stream_options":{"include_usage":true}}`, []string{
			`"object":"chat.completion.chunk"`, `{"index":0,"delta":{"role":"assistant","content":"word "},"finish_reason":null}`,
			`{"index":0,"delta":{"role":"assistant","content":"word "},"finish_reason":null}`,
			`{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"length"}`,
			`"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}`, "data: [DONE]\n\n",
		}},
		{"completion", "/v1/completions", `{"stream":true,"max_tokens":1}`, []string{
			`"object":"text_completion"`, `{"index":0,"text":"word ","finish_reason":null}`, `{"index":0,"text":"","finish_reason":"length"}`, "data: [DONE]\n\n",
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, h := engine(t)
				w := post(t, h, c.path, "", c.body)
				if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/event-stream" || !w.Flushed || w.Header().Get(RankHeader) != "0" {
					t.Errorf("%d %v, flushed: %t", w.Code, w.Header(), w.Flushed)
				}
				rest := w.Body.String()
				for _, want := range c.want {
					_, after, found := strings.Cut(rest, want)
					if !found {
						t.Fatalf("no %s in the rest of\n%s", want, w.Body)
					}
					rest = after
				}
				if rest != "" {
					t.Errorf("after the end: %s", rest)
				}
			})
		})
	}
}

func TestRefusals(t *testing.T) {
	cases := []struct {
		name, rank, body string
		code             int
		want             string
	}{
		{"no JSON", "", "hello", http.StatusBadRequest, "not the JSON"},
		{"too large", "", `"` + strings.Repeat("x", maxBody) + `"`, http.StatusBadRequest, "not readable"},
		{"another model", "", `{"model":"other"}`, http.StatusNotFound, `\"other\" does not exist`},
		{"no tokens", "", `{"max_tokens":0}`, http.StatusBadRequest, "max_tokens"},
		{"no rank", "x", `{}`, http.StatusBadRequest, "not a rank"},
		{"a negative rank", "-1", `{}`, http.StatusBadRequest, "not a rank"},
		{"a rank above", "2", `{}`, http.StatusBadRequest, "no such rank"},
		{"too long", "", `{"max_tokens":9223372036854775807}`, http.StatusBadRequest, "longer than a rank holds"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, h := engine(t)
			w := post(t, h, "/v1/chat/completions", c.rank, c.body)
			if w.Code != c.code || !strings.Contains(w.Body.String(), c.want) || !json.Valid(w.Body.Bytes()) {
				t.Errorf("%d: %s, want %d: %s", w.Code, w.Body, c.code, c.want)
			}
		})
	}
}

func TestFullQueuesRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := engine(t)
		ctx, leave := context.WithCancel(t.Context())
		for range 400 {
			go func() {
				defer func() { _ = recover() }() // as the server does
				r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", strings.NewReader(`{"max_tokens":1000}`))
				r.Header.Set(RankHeader, "0")
				h.ServeHTTP(httptest.NewRecorder(), r)
			}()
		}
		synctest.Wait()
		if w := post(t, h, "/v1/completions", "0", `{}`); w.Code != http.StatusServiceUnavailable {
			t.Errorf("%d: %s", w.Code, w.Body)
		}
		leave()
		synctest.Wait()
		if s, err := p.Sample(); err != nil || s.Ranks[0].NumRunningReqs+s.Ranks[0].NumWaitingReqs != 0 {
			t.Errorf("%v, %v after the callers left", s.Ranks, err)
		}
	})
}

// The end of a life cuts the connection, before the answer or within it.
func TestTheEndOfALifeCutsAnswers(t *testing.T) {
	for _, body := range []string{`{"max_tokens":4000}`, `{"max_tokens":4000,"stream":true}`} {
		p, h := engine(t)
		server := httptest.NewServer(h)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			resp, err := server.Client().Do(req)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			ended <- err
		}()
		for s, _ := p.Sample(); len(s.Ranks) == 0 || s.Ranks[0].NumRunningReqs == 0; s, _ = p.Sample() {
			<-time.After(time.Millisecond)
		}
		p.Close()
		if err := <-ended; err == nil {
			t.Errorf("%s was answered whole", body)
		}
		server.Close()
	}
}

// FuzzRequest holds that a request that is taken is one that the model can do.
func FuzzRequest(f *testing.F) {
	for _, body := range []string{`{}`, `{"max_tokens":1,"stream":true}`, `{"messages":[{"content":"x"}],"max_completion_tokens":-1}`, `{"prompt":[1,2]}`, `[`} {
		f.Add(body, "0")
	}
	f.Fuzz(func(t *testing.T, body, rank string) {
		r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body))
		r.Header.Set(RankHeader, rank)
		b, work, err := read(httptest.NewRecorder(), r)
		if err != nil {
			return
		}
		if work.OutputTokens < 1 || work.PromptTokens < 1 || work.Rank < -1 || len(b.Prompt) > len(body) {
			t.Errorf("%q, rank %q: %+v", body, rank, work)
		}
	})
}
