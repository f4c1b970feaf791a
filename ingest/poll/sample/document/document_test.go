package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
	"github.com/loadplane/loadplane/store"
)

var testRows = []cells.Row{
	{To: cells.Running, Names: []string{"run", "old_run"}},
	{To: cells.Bootstrap, Names: []string{"deep.boot"}},
}

// TestReasons provokes every reason of this package.
func TestReasons(t *testing.T) {
	for _, c := range []struct {
		name   string
		read   Reader
		page   string
		reason store.Reason // of the refusal
		odd    store.Reason // of a value
	}{
		{"cut", Loads(testRows), `{"loads": [`, ReasonBadJSON, ""},
		{"no loads", Loads(testRows), `{}`, ReasonUnsupportedSchema, ""},
		{"no array", Loads(testRows), `{"loads": {}}`, ReasonUnsupportedSchema, ""},
		{"no objects", Loads(testRows), `{"loads": [[]]}`, ReasonUnsupportedSchema, ""},
		{"another array", GetLoad(testRows, testRows), `[1]`, ReasonUnsupportedSchema, ""},
		{"another object", GetLoad(testRows, testRows), `{"run": 1}`, ReasonUnsupportedSchema, ""},
		{"another list", Iterations(testRows), `[[]]`, ReasonUnsupportedSchema, ""},
		{"not a number", Iterations(testRows), `[{"run": "1"}]`, "", ReasonNotANumber},
		{"not a number below", Iterations(testRows), `[{"deep": {"boot": []}}]`, "", ReasonNotANumber},
		{"no difference", GetLoad(testRows, testRows), `[{"num_reqs": 1, "num_waiting_reqs": {}}]`, "", ReasonNotANumber},
		{"rank twice", Loads(testRows), `{"loads": [{"dp_rank": 1}, {"dp_rank": 1}]}`, ingest.ReasonDuplicateRank, ""},
		{"no rank number", Loads(testRows), `{"loads": [{"dp_rank": 1}, {}]}`, ingest.ReasonBadRank, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var page cells.Page
			refusal := c.read([]byte(c.page), &page)
			if refusal != nil {
				if refusal.Reason != c.reason {
					t.Errorf("refused as %s, want %s", refusal.Reason, c.reason)
				}
				return
			}
			if c.reason != "" || len(page.Odd) != 1 || page.Odd[c.odd] != 1 {
				t.Errorf("counted %v, want one %s%s", page.Odd, c.reason, c.odd)
			}
		})
	}
}

// TestPreference reads the first of several names, wherever it stands.
func TestPreference(t *testing.T) {
	for page, want := range map[string]cells.Cell{
		`[{"old_run": 1, "run": 2}]`:    {State: cells.Known, Value: 2, Name: "run"},
		`[{"run": 2, "old_run": 1}]`:    {State: cells.Known, Value: 2, Name: "run"},
		`[{"old_run": 1, "run": null}]`: {State: cells.Known, Value: 1, Name: "old_run"},
		`[{"deep": {"run": 1}}]`:        {},
		`[{"deep": 3, "boot": 4}]`:      {},
	} {
		var p cells.Page
		if refusal := Iterations(testRows)([]byte(page), &p); refusal != nil || p.Ranks[0].In[cells.Running] != want {
			t.Errorf("%s is read as %+v, want %+v", page, p.Ranks, want)
		}
	}
}

// TestRepeatedKeys: of equal keys the last counts, as in encoding/json, for
// whatever the key stands.
func TestRepeatedKeys(t *testing.T) {
	for page, want := range map[string]string{
		`[{"dp_rank": 0, "run": 1, "run": 2}]`:                                            "0 run=2",
		`[{"dp_rank": 0, "dp_rank": 5, "run": 1}]`:                                        "5 run=1",
		`[{"dp_rank": 0, "run": 1, "run": null}]`:                                         "0",
		`[{"dp_rank": 0, "run": 1, "old_run": 3, "run": null}]`:                           "0 old_run=3",
		`[{"dp_rank": 0, "run": "x", "run": 2}]`:                                          "0 run=2",
		`[{"dp_rank": 0, "run": 2, "run": "x"}]`:                                          "0 odd",
		`[{"dp_rank": 0, "run": 1, "num_reqs": 9, "num_reqs": 5, "num_waiting_reqs": 2}]`: "0 num_reqs - num_waiting_reqs=3",
		`[{"dp_rank": 0, "deep": {"boot": 1}, "deep": {"boot": 2}}]`:                      "0 deep.boot=2",
		`[{"dp_rank": 0, "deep": {"boot": 1, "boot": 3}}]`:                                "0 deep.boot=3",
		`[{"dp_rank": 0, "deep": {"boot": 1}, "deep": {}}]`:                               "0",
		`[{"dp_rank": 0, "deep": {"boot": 1}, "deep": null}]`:                             "0",
	} {
		var p cells.Page
		if refusal := GetLoad(testRows, testRows)([]byte(page), &p); refusal != nil {
			t.Errorf("%s: %s", page, refusal.Message)
			continue
		}
		got := strconv.Itoa(int(p.Ranks[0].Number))
		for _, c := range p.Ranks[0].In {
			if c.State == cells.Known {
				got += fmt.Sprintf(" %s=%g", c.Name, c.Value)
			}
		}
		if len(p.Odd) > 0 {
			got += " odd"
		}
		if got != want {
			t.Errorf("%s is read as %s, want %s", page, got, want)
		}
	}
}

// TestValues reads JSON without decoding it, and must agree with the library.
func TestValues(t *testing.T) {
	v := value(` { "a" : -1.5e2 , "b":[1,[2,"]"],{"c":"}\""} ] ,"d" :null,"e":"x\"y", "f":true,"a":7, "g": "w" , "h" : {} }`).left()
	for key, want := range map[string]string{
		"a": "7", "b": `[1,[2,"]"],{"c":"}\""} ]`, "d": "null", "e": `"x\"y"`, "f": "true", "g": `"w"`, "h": "{}", "none": "",
	} {
		if got := string(v.get(key)); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	var elements []string
	for e := range v.get("b").elements() {
		elements = append(elements, string(e))
	}
	if got := strings.Join(elements, "|"); got != `1|[2,"]"]|{"c":"}\""}` {
		t.Errorf("elements %s", got)
	}
	if v.get("g").text() != "w" || v.get("e").text() != "" || v.get("a").text() != "" {
		t.Error("texts are read wrongly")
	}
	for text, want := range map[string]cells.State{"7": cells.Known, "-0.5": cells.Known, "null": cells.Absent, "": cells.Absent, "true": cells.Unusable, `"1"`: cells.Unusable, "1e999": cells.Unusable, "{}": cells.Unusable} {
		if _, got := value(text).number(); got != want {
			t.Errorf("%q is of state %d, want %d", text, got, want)
		}
	}
}

// FuzzValue compares the members and elements with those of the library.
func FuzzValue(f *testing.F) {
	for _, page := range []string{`{"a": 1, "b": [1, "x\\"]"], "c": {"d": null}}`, `[]`, `[1,[2],{"a":"]"}]`, ` [ ] `, `{"":""}`, "1", `"x"`, `{"a":1,"a":2}`} {
		f.Add([]byte(page))
	}
	f.Fuzz(func(t *testing.T, page []byte) {
		if !json.Valid(page) {
			return
		}
		v := value(page).left()
		var object map[string]json.RawMessage
		var array []json.RawMessage
		switch v.kind() {
		case '{':
			if err := json.Unmarshal(page, &object); err != nil {
				t.Skip(err)
			}
			for key := range v.members() {
				// A key that is written with escapes may be another one once more.
				got, want := string(v.get(string(key))), string(object[string(key)])
				if want != got && !bytes.Contains(page, []byte{'\\'}) && utf8.Valid(page) {
					t.Fatalf("member %q is %q, want %q", key, got, want)
				}
			}
		case '[':
			if err := json.Unmarshal(page, &array); err != nil {
				t.Skip(err)
			}
			i := 0
			for element := range v.elements() {
				if i >= len(array) || string(element) != string(array[i]) {
					t.Fatalf("element %d is %q of %q", i, element, array)
				}
				i++
			}
			if i != len(array) {
				t.Fatalf("%d elements, want %d", i, len(array))
			}
		}
	})
}
