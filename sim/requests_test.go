package sim

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// complete sends a request to an engine; code is 0 where the answer was cut.
func (b *bench) complete(engine int, body string) (code int) {
	defer func() {
		if recover() != nil { // as the server does
			code = 0
		}
	}()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(b.t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(body))
	b.fleet.engines[engine].handler(nil).ServeHTTP(w, r)
	return w.Code
}

func TestEnginesServeRequests(t *testing.T) {
	kinds := slices.DeleteFunc(Kinds(), func(k Kind) bool { return !k.listed() })
	inBubble(t, Options{Engines: len(kinds), Kinds: kinds, NoTraffic: true}, func(b *bench) {
		for i, k := range kinds {
			code := b.complete(i, `{"model":"sim-model"}`)
			if served := code == http.StatusOK; served != (k != KindTriton) {
				t.Errorf("%s answered %d", k, code)
			}
		}
	})
}

// requests returns running and waiting requests of the first engine.
func (b *bench) requests() (n int) {
	var page struct {
		Loads []struct {
			Running int `json:"num_running_reqs"`
			Waiting int `json:"num_waiting_reqs"`
		}
	}
	b.json(0, "/v1/loads", &page)
	for _, l := range page.Loads {
		n += l.Running + l.Waiting
	}
	return n
}

func TestNoTraffic(t *testing.T) {
	for _, none := range []bool{true, false} {
		inBubble(t, Options{Ranks: 2, NoTraffic: none}, func(b *bench) {
			b.pass(time.Minute)
			if n := b.requests(); (n == 0) != none {
				t.Errorf("no traffic %t: %d requests", none, n)
			}
		})
	}
}

func TestRestartCutsRequests(t *testing.T) {
	inBubble(t, Options{Ranks: 2, NoTraffic: true}, func(b *bench) {
		ended := make(chan int, 1)
		go func() { ended <- b.complete(0, `{"max_tokens":4000}`) }()
		b.pass(time.Second)
		if n := b.requests(); n != 1 {
			t.Fatalf("%d requests, want one", n)
		}
		b.engine().Restart()
		if code := <-ended; code != 0 {
			t.Errorf("answered %d", code)
		}
		if n := b.requests(); n != 0 || b.complete(0, `{}`) != http.StatusOK {
			t.Errorf("%d requests in the next life, or it does not serve", n)
		}
	})
}
