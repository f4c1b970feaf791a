package picks

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/loadplane/loadplane/client/pick"
)

func TestParse(t *testing.T) {
	byDefault := query{way: way{pick.PowerOfK, true}, number: 1, credit: true}
	with := func(change func(*query)) query {
		q := byDefault
		change(&q)
		return q
	}
	for _, c := range []struct {
		raw  string
		want query
	}{
		{"", byDefault},
		{"policy=power-of-k&per=rank&n=1&credit=1", byDefault},
		{"model=Qwen%2FQwen3", with(func(q *query) { q.model = "Qwen/Qwen3" })},
		{"role=plain", with(func(q *query) { q.role = pick.RolePlain })},
		{"role=prefill", with(func(q *query) { q.role = pick.RolePrefill })},
		{"role=decode", with(func(q *query) { q.role = pick.RoleDecode })},
		{"policy=least-load", with(func(q *query) { q.policy = pick.LeastLoad })},
		{"policy=expected-wait", with(func(q *query) { q.policy = pick.ExpectedWait })},
		{"policy=free-tokens", with(func(q *query) { q.policy = pick.FreeTokens })},
		{"per=worker", with(func(q *query) { q.perRank = false })},
		{"n=64", with(func(q *query) { q.number = 64 })},
		{"credit=0", with(func(q *query) { q.credit = false })},
		{"prompt_tokens=1073741824", with(func(q *query) { q.tokens = 1 << 30 })},
	} {
		if got, err := parse(c.raw); err != nil || got != c.want {
			t.Errorf("%q: %+v, %v, want %+v", c.raw, got, err, c.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	long := strings.Repeat("é", 200)
	for raw, want := range map[string]string{
		"models=x":                   `the query key "models" does not exist`,
		"MODEL=x":                    `the query key "MODEL" does not exist`,
		url.QueryEscape(long) + "=1": `the query key "` + strings.Repeat("é", 32) + `" does not exist`,
		"model":                      "model has 0 bytes, 1 to 256 are allowed",
		"model=" + long:              "model has 400 bytes, 1 to 256 are allowed",
		"model=a&model=b":            "model can be there once only",
		"role=":                      `role "" does not exist`,
		"role=regular":               `role "regular" does not exist`,
		"policy=random":              `policy "random" does not exist`,
		"policy=" + long:             `policy "` + strings.Repeat("é", 32) + `" does not exist`,
		"per=node":                   `per "node" does not exist`,
		"n=0":                        `n must be 1 to 64, and is "0"`,
		"n=-1":                       `n must be 1 to 64, and is "-1"`,
		"n=2.5":                      `n must be 1 to 64, and is "2.5"`,
		"n=99999999999999999999":     `n must be 1 to 64, and is "99999999999999999999"`,
		"credit=true":                `credit "true" does not exist`,
		"credit=0&credit=0":          "credit can be there once only",
		"prompt_tokens=0":            `prompt_tokens must be 1 to 1073741824, and is "0"`,
		"prompt_tokens=1073741825":   `prompt_tokens must be 1 to 1073741824, and is "1073741825"`,
		"model=%":                    "the query cannot be parsed",
		"a;b":                        "the query cannot be parsed",
	} {
		if _, err := parse(raw); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", raw, err, want)
		}
	}
}

// FuzzPick asks a plane in which everything can be picked. Whatever is asked,
// the answer is of a known status and of the promised size, and what is not
// asked properly has no effect.
func FuzzPick(f *testing.F) {
	for _, raw := range []string{
		"", "model=qwen3&role=plain&policy=least-load&n=3&credit=0&per=worker&prompt_tokens=12", "n=64&n=1", "model=%zz", "credit=2",
		"policy=custom", "%00=%ff", "role=prefill;", "n=0064", "prompt_tokens=+5",
	} {
		f.Add(raw)
	}
	p := start(f, staleAfter)
	p.add(worker("a:1"), worker("b:1"))
	f.Fuzz(func(t *testing.T, raw string) {
		rec := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/v1/pick", nil)
		r.URL.RawQuery = raw
		p.ServeHTTP(rec, r)
		body := rec.Body.Bytes()
		if !json.Valid(body) || !utf8.Valid(body) || len(body) > 64<<10 {
			t.Fatalf("%q: %s", raw, body)
		}
		q, err := parse(raw)
		if (err != nil) != (rec.Code == http.StatusBadRequest) || err != nil && len(err.Error()) > 512 {
			t.Fatalf("%q: status %d, error %v", raw, rec.Code, err)
		}
		if err != nil {
			return
		}
		if q.number < 1 || q.number > maxPicks || q.tokens < 0 || q.tokens > maxTokens || len(q.model) > maxModel || p.pickers[q.way] == nil {
			t.Fatalf("%q: %+v", raw, q)
		}
		var got struct{ Picks []answer }
		if err := json.Unmarshal(body, &got); err != nil || rec.Code == http.StatusOK && q.number > 1 && len(got.Picks) != q.number {
			t.Fatalf("%q: %v in %s", raw, err, body)
		}
	})
}
