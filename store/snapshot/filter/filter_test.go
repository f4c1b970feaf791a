package filter_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot/filter"
)

func newFilter(t testing.TB, s filter.Selection) *filter.Filter {
	t.Helper()
	f, err := filter.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func worker(id string, role store.Role, models ...string) *store.Worker {
	return &store.Worker{ID: id, Role: role, Models: models}
}

func TestFilterMatches(t *testing.T) {
	w := worker("a:1", store.RolePrefill, "m1", "m2")
	w.Zone, w.Labels = "eu", map[string]string{"tier": "gold", "none": ""}
	bare := worker("b:1", store.RoleRegular)
	type selection = filter.Selection
	for name, c := range map[string]struct {
		s          selection
		w, theBare bool
	}{
		"nothing":                   {selection{}, true, true},
		"a model":                   {selection{Models: []string{"m2"}}, true, false},
		"one of two models":         {selection{Models: []string{"x", "m1"}}, true, false},
		"another model":             {selection{Models: []string{"m"}}, false, false},
		"zone":                      {selection{Zones: []string{"us", "eu"}}, true, false},
		"another zone":              {selection{Zones: []string{"us"}}, false, false},
		"role":                      {selection{Roles: []store.Role{store.RoleRegular, store.RoleDecode}}, false, true},
		"worker id":                 {selection{WorkerIDs: []string{"b:1", "a:1"}}, true, true},
		"another worker id":         {selection{WorkerIDs: []string{"a"}}, false, false},
		"label":                     {selection{Labels: map[string][]string{"tier": {"tin", "gold"}}}, true, false},
		"empty label":               {selection{Labels: map[string][]string{"none": {""}}}, true, false},
		"label that is not there":   {selection{Labels: map[string][]string{"other": {""}}}, false, false},
		"two labels, one fits":      {selection{Labels: map[string][]string{"tier": {"gold"}, "none": {"x"}}}, false, false},
		"two labels":                {selection{Labels: map[string][]string{"tier": {"gold"}, "none": {"x", ""}}}, true, false},
		"model and zone":            {selection{Models: []string{"m1"}, Zones: []string{"eu"}}, true, false},
		"model and another zone":    {selection{Models: []string{"m1"}, Zones: []string{"us"}}, false, false},
		"worker id and its no role": {selection{WorkerIDs: []string{"a:1"}, Roles: []store.Role{store.RoleDecode}}, false, false},
	} {
		f := newFilter(t, c.s)
		if f.Match(w) != c.w || f.Match(bare) != c.theBare {
			t.Errorf("%s: %t and %t, want %t and %t", name, f.Match(w), f.Match(bare), c.w, c.theBare)
		}
	}
}

func TestFilterIsNormal(t *testing.T) {
	a := newFilter(t, filter.Selection{
		Models: []string{"x", "y", "x"}, Roles: []store.Role{3, 1, 3}, Labels: map[string][]string{"k": {"2", "1"}, "j": {"0"}},
	})
	b := newFilter(t, filter.Selection{
		Models: []string{"y", "x"}, Roles: []store.Role{1, 3}, Labels: map[string][]string{"j": {"0", "0"}, "k": {"1", "2", "2"}},
	})
	if !a.Equal(b) || a.Hash() != b.Hash() || a.Hash() == 0 {
		t.Errorf("hashes %x and %x", a.Hash(), b.Hash())
	}
	if f := newFilter(t, filter.Selection{Models: []string{}, Labels: map[string][]string{}}); f != nil || f.Hash() != 0 || !f.Equal(nil) {
		t.Errorf("the empty filter: %v, hash %x", f, f.Hash())
	}
	if a.Equal(nil) || (*filter.Filter)(nil).Equal(a) {
		t.Error("a filter equals the empty one")
	}
	// No two of these select alike.
	hashes := map[uint64]int{}
	for i, s := range []filter.Selection{
		{Models: []string{"ab"}},
		{Models: []string{"a", "b"}},
		{Zones: []string{"ab"}},
		{WorkerIDs: []string{"ab"}},
		{Models: []string{"a"}, Zones: []string{"b"}},
		{Models: []string{"a"}, WorkerIDs: []string{"b"}},
		{Labels: map[string][]string{"a": {"b"}}},
		{Labels: map[string][]string{"a": {"b", ""}}},
		{Labels: map[string][]string{"a": {""}, "b": {""}}},
		{Roles: []store.Role{1}},
		{Roles: []store.Role{1, 2}},
	} {
		h := newFilter(t, s).Hash()
		if other, twice := hashes[h]; twice {
			t.Errorf("selections %d and %d have one hash", other, i)
		}
		hashes[h] = i
	}
}

func TestFilterDoesNotKeepItsSelection(t *testing.T) {
	models := []string{"b", "a"}
	f := newFilter(t, filter.Selection{Models: models})
	models[0], models[1] = "x", "y"
	if !f.Match(worker("a:1", store.RoleRegular, "b")) {
		t.Error("a filter changed with the list that it was made of")
	}
}

func TestFilterBounds(t *testing.T) {
	many := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprint(i))
		}
		return out
	}
	labels := func(n int) map[string][]string {
		out := map[string][]string{}
		for i := range n {
			out[fmt.Sprint(i)] = []string{"v"}
		}
		return out
	}
	long := func(n int) []string { return []string{strings.Repeat("x", n)} }
	type selection = filter.Selection
	for name, c := range map[string]struct {
		s    selection
		want string
	}{
		"64 models":               {selection{Models: many(64)}, ""},
		"65 models":               {selection{Models: many(65)}, "models: 65 values, the limit is 64"},
		"65 zones":                {selection{Zones: many(65)}, "zones"},
		"65 worker ids":           {selection{WorkerIDs: many(65)}, "worker ids"},
		"65 roles":                {selection{Roles: slices.Repeat([]store.Role{1}, 65)}, "roles"},
		"no role":                 {selection{Roles: []store.Role{0}}, "role 0"},
		"a role that is not":      {selection{Roles: []store.Role{4}}, "role 4"},
		"16 labels":               {selection{Labels: labels(16)}, ""},
		"17 labels":               {selection{Labels: labels(17)}, "17 names, the limit is 16"},
		"65 values of a label":    {selection{Labels: map[string][]string{"a": many(65)}}, "label values"},
		"a label without values":  {selection{Labels: map[string][]string{"a": nil}}, "without values"},
		"model of 256 bytes":      {selection{Models: long(256)}, ""},
		"model of 257 bytes":      {selection{Models: long(257)}, "257 bytes, the limit is 256"},
		"zone of 65 bytes":        {selection{Zones: long(65)}, "limit is 64"},
		"worker id of 257 bytes":  {selection{WorkerIDs: long(257)}, "limit is 256"},
		"label name of 65 bytes":  {selection{Labels: map[string][]string{long(65)[0]: {"a"}}}, "limit is 64"},
		"label value, 257 bytes":  {selection{Labels: map[string][]string{"a": long(257)}}, "limit is 256"},
		"empty model":             {selection{Models: []string{""}}, "empty"},
		"empty label name":        {selection{Labels: map[string][]string{"": {"a"}}}, "label name: a value is empty"},
		"not UTF-8":               {selection{Models: []string{"\xff"}}, "UTF-8"},
		"not printable":           {selection{WorkerIDs: []string{"a\n"}}, "printable"},
		"printable beyond ASCII":  {selection{Zones: []string{"zürich"}}, ""},
		"label value with a null": {selection{Labels: map[string][]string{"a": {"\x00"}}}, "printable"},
	} {
		f, err := filter.New(c.s)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || f != nil) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// FuzzFilter makes a filter of any texts twice, in another order the second
// time, and asks whether it selects a worker that it must select.
func FuzzFilter(f *testing.F) {
	f.Add("m", "z", "id", "k", "v", uint64(1))
	f.Add("a,b", "", "x,x", "k", "", uint64(2))
	f.Fuzz(func(t *testing.T, models, zones, ids, key, values string, seed uint64) {
		split := func(s string) []string {
			if s == "" {
				return nil
			}
			return strings.Split(s, ",")
		}
		s := filter.Selection{Models: split(models), Zones: split(zones), WorkerIDs: split(ids)}
		w := &store.Worker{Models: s.Models}
		if len(s.Zones) > 0 {
			w.Zone = s.Zones[0]
		}
		if len(s.WorkerIDs) > 0 {
			w.ID = s.WorkerIDs[len(s.WorkerIDs)-1]
		}
		if key != "" {
			s.Labels = map[string][]string{key: strings.Split(values, ",")}
			w.Labels = map[string]string{key: strings.Split(values, ",")[0]}
		}
		one, err := filter.New(s)
		if err != nil {
			return
		}
		if !one.Match(w) {
			t.Errorf("%+v does not select %+v", s, w)
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		for _, list := range [][]string{s.Models, s.Zones, s.WorkerIDs, s.Labels[key]} {
			rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
		again, err := filter.New(s)
		if err != nil || !one.Equal(again) || one.Hash() != again.Hash() || (one == nil) != (one.Hash() == 0) {
			t.Errorf("%+v in another order: %v", s, err)
		}
	})
}
