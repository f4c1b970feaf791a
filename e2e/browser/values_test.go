package browser

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// wantedPairs is how many versions must have been compared.
const wantedPairs = 5

// sample is what the page showed at a version.
type sample struct {
	Version int64
	Lineage string
	// Ranks are the values of the heatmap's cells: worker, rank, field.
	Ranks map[string]map[string]map[string]json.Number
	// Totals are the values of workers over their ranks: worker, field.
	Totals map[string]map[string]json.Number
	// Cells are the texts of the table, Exact the values that stand behind
	// them: worker, field.
	Cells, Exact map[string]map[string]string
	// Heat are the cells of the heatmap as they were drawn, by token usage.
	Heat []struct {
		Worker, Kind, Value string
		Rank                *int
	}
}

// answer is what the API says of a version.
type answer struct {
	Version int64
	Lineage string
	Workers []struct {
		ID        string                    `json:"worker_id"`
		Freshness string                    `json:"freshness"`
		Role      string                    `json:"mode"`
		Dialect   string                    `json:"dialect"`
		Aggregate map[string]any            `json:"aggregate"`
		Ranks     []map[string]*json.Number `json:"ranks"`
	}
}

// TestPageShowsWhatTheAPISays compares the page of a fleet of all dialects with
// the JSON of the API at the same versions: every value of every cell of the
// heatmap, and every text of the table.
func TestPageShowsWhatTheAPISays(t *testing.T) {
	need(t, chromium.start())
	_, api := serve(t, "demo", "--mixed", "--report-interval=500ms")
	p := open(t, api, screen{1600, 1200, "light"})
	p.eval(inspector, nil)
	p.until(`inspector.count("fresh") >= 11`)
	p.eval(`inspector.record()`, nil)
	var compared, numbers, texts, cells int
	for end := time.Now().Add(limit); compared < wantedPairs; {
		if time.Now().After(end) {
			t.Fatalf("only %d versions of the page were those of an answer of the API", compared)
		}
		a := fetch(t, api)
		var s *sample
		p.eval(fmt.Sprintf(`inspector.sample(%q)`, fmt.Sprint(a.Version)), &s)
		if s == nil || s.Lineage != a.Lineage {
			continue
		}
		compared++
		numbers += compareNumbers(t, a, s)
		texts += compareTexts(t, a, s)
		cells += compareHeat(t, a, s)
	}
	t.Logf("%d versions, %d values, %d texts and %d cells compared", compared, numbers, texts, cells)
	if numbers < 1000 || texts < 100 || cells < 100 {
		t.Errorf("only %d values, %d texts and %d cells were compared", numbers, texts, cells)
	}
	p.requireQuiet()
}

func fetch(t *testing.T, api string) (a answer) {
	t.Helper()
	resp, err := http.Get("http://" + api + "/v1/load_monitor/snapshot")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil {
		d := json.NewDecoder(strings.NewReader(string(text)))
		d.UseNumber()
		err = d.Decode(&a)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// compareNumbers compares exact values and returns how many.
func compareNumbers(t *testing.T, a answer, s *sample) (n int) {
	t.Helper()
	for _, w := range a.Workers {
		if len(w.Ranks) != len(s.Ranks[w.ID]) {
			t.Errorf("version %d: %s has %d ranks on the page, %d in the API", a.Version, w.ID, len(s.Ranks[w.ID]), len(w.Ranks))
		}
		for _, r := range w.Ranks {
			rank := s.Ranks[w.ID][r["dp_rank"].String()]
			for field, want := range r {
				if field == "snapshot_time_unix_ms" { // no content: it moves without a version
					continue
				}
				n++
				if !same(want, rank, field) {
					t.Errorf("version %d: %s rank %s: %s is %v on the page, %v in the API", a.Version, w.ID, r["dp_rank"], field, rank[field], want)
				}
			}
		}
		for field, v := range w.Aggregate {
			want, isNumber := v.(json.Number)
			if !isNumber && v != nil || field == "hottest_rank_reason" {
				continue
			}
			n++
			known := &want
			if v == nil {
				known = nil
			}
			of := s.Totals[w.ID]
			if exact, shown := s.Exact[w.ID][field]; shown {
				of = map[string]json.Number{field: json.Number(exact)}
			}
			if !same(known, of, field) {
				t.Errorf("version %d: %s: %s is %q on the page, %v in the API", a.Version, w.ID, field, of[field], v)
			}
		}
	}
	return n
}

// same says that a value of the page is the one of the API; nil is unknown.
func same(want *json.Number, of map[string]json.Number, field string) bool {
	got := of[field]
	if want == nil || got == "" {
		return want == nil && got == ""
	}
	w, err := strconv.ParseFloat(want.String(), 64)
	g, failed := strconv.ParseFloat(got.String(), 64)
	return err == nil && failed == nil && w == g
}

// compareHeat compares the cells of the heatmap, as they were drawn, and returns
// how many.
func compareHeat(t *testing.T, a answer, s *sample) (n int) {
	t.Helper()
	usage := map[string]*json.Number{}
	for _, w := range a.Workers {
		for _, r := range w.Ranks {
			usage[w.ID+" "+r["dp_rank"].String()] = r["token_usage"]
		}
	}
	for _, c := range s.Heat {
		if c.Rank == nil {
			continue
		}
		n++
		want, listed := usage[fmt.Sprint(c.Worker, " ", *c.Rank)]
		if !listed || !same(want, map[string]json.Number{"v": json.Number(c.Value)}, "v") {
			t.Errorf("version %d: the cell of %s rank %d has %q, the API %v", a.Version, c.Worker, *c.Rank, c.Value, want)
		}
		if hatched := c.Kind == "unknown"; c.Kind != "stale" && hatched != (want == nil) {
			t.Errorf("version %d: the cell of %s rank %d is drawn as %s, the API has %v", a.Version, c.Worker, *c.Rank, c.Kind, want)
		}
	}
	return n
}

// compareTexts compares what the cells of the table say with the values, as far
// as they are rounded, and returns how many.
func compareTexts(t *testing.T, a answer, s *sample) (n int) {
	t.Helper()
	for _, w := range a.Workers {
		cells := s.Cells[w.ID]
		if cells == nil {
			t.Errorf("version %d: %s is not in the table", a.Version, w.ID)
		}
		for field, text := range cells {
			v, known := w.Aggregate[field]
			if !known || field == "hottest_rank_reason" {
				continue
			}
			n++
			if !says(text, v) {
				t.Errorf("version %d: %s: the cell %s says %q, the API %v", a.Version, w.ID, field, text, v)
			}
		}
		for field, want := range map[string]string{"role": w.Role, "dialect": w.Dialect} {
			if text, shown := cells[field]; shown && !strings.Contains(text, want) {
				t.Errorf("version %d: %s: the cell %s says %q, the API %q", a.Version, w.ID, field, text, want)
			} else if shown {
				n++
			}
		}
	}
	return n
}

// says reports whether a text is the rounded form of a value: digits with a
// percent sign or a unit, or no digit for what is unknown.
func says(text string, v any) bool {
	number, known := v.(json.Number)
	if !known {
		return v == nil && !strings.ContainsAny(text, "0123456789")
	}
	want, err := number.Float64()
	if err != nil {
		return false
	}
	digits := strings.NewReplacer("\u202f", "", ",", "", " ", "", "×", "", "−", "-").Replace(text)
	unit, tolerance := 1.0, 0.0051
	for suffix, size := range map[string]float64{"%": 0.01, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "ms": 1e-3, "s": 1} {
		if strings.HasSuffix(digits, suffix) && (suffix != "s" || !strings.HasSuffix(digits, "ms")) {
			unit, digits = size, strings.TrimSuffix(digits, suffix)
		}
	}
	switch {
	case unit == 0.01:
		tolerance = 0.51
	case strings.HasSuffix(text, " s"):
		tolerance = 0.051
	}
	got, err := strconv.ParseFloat(digits, 64)
	// Units show three digits at least.
	return err == nil && math.Abs(got-want/unit) <= max(tolerance, math.Abs(got)/190)
}

// TestSays checks the reading of rounded texts.
func TestSays(t *testing.T) {
	for _, c := range []struct {
		text string
		v    any
		want bool
	}{
		{"42%", json.Number("0.4188"), true},
		{"43%", json.Number("0.4188"), false},
		{"–", nil, true},
		{"0", nil, false},
		{"–", json.Number("0"), false},
		{"0", json.Number("0"), true},
		{"1\u202f234", json.Number("1234"), true},
		{"1\u202f234", json.Number("1245"), false},
		{"192k", json.Number("191706"), true},
		{"190k", json.Number("191706"), false},
		{"1.15×", json.Number("1.148"), true},
		{"1.25×", json.Number("1.148"), false},
		{"950 ms", json.Number("0.95"), true},
		{"1.2 s", json.Number("1.16"), true},
	} {
		if got := says(c.text, c.v); got != c.want {
			t.Errorf("%q for %v: %v", c.text, c.v, got)
		}
	}
}
