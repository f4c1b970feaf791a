package document

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
	"github.com/loadplane/loadplane/registry"
)

// keys are the rows of a page of JSON. They are immutable.
type keys struct {
	// fields are all names; of one input the preferred comes first.
	fields []field
	// top are the indexes of fields by key, sub by the key of an object and the
	// key in it.
	top map[string]int
	sub map[string]map[string]int
}

// field is one name of a row.
type field struct {
	to   cells.Input
	name string
}

// index takes the rows apart.
func index(rows []cells.Row) keys {
	k := keys{top: map[string]int{}, sub: map[string]map[string]int{}}
	for _, r := range rows {
		for _, name := range r.Names {
			k.add(name)
			k.fields = append(k.fields, field{r.To, name})
		}
	}
	return k
}

// add makes a name that of the next field.
func (k *keys) add(name string) {
	outer, inner, ok := strings.Cut(name, ".")
	if !ok {
		k.top[name] = len(k.fields)
		return
	}
	if k.sub[outer] == nil {
		k.sub[outer] = map[string]int{}
	}
	k.sub[outer][inner] = len(k.fields)
}

// values returns what an object has of the fields, by their indexes; of equal
// keys the last counts.
func (k keys) values(object value) []value {
	values := make([]value, len(k.fields))
	for key, v := range object.members() {
		if i, ok := k.top[string(key)]; ok {
			values[i] = v
		}
		for inner, i := range k.sub[string(key)] {
			values[i] = v.get(inner)
		}
	}
	return values
}

// Reader reads a page of JSON. The page has no ranks where it lists none. It is
// safe for concurrent use with different pages.
type Reader func(page []byte, to *cells.Page) *registry.Refusal

// reading is a page that is read.
type reading struct{ *cells.Page }

// fill sets the cells of a rank from an object.
func (s reading) fill(rank int32, object value, k keys) *cells.Rank {
	r := s.Add(rank)
	for i, v := range k.values(object) {
		f := &k.fields[i]
		if r.In[f.to].State != cells.Absent {
			continue // a preferred name is there
		}
		switch n, found := v.number(); found {
		case cells.Known:
			s.Set(r, f.to, f.name, n)
		case cells.Unusable:
			s.Refuse(r, f.to, f.name, ReasonNotANumber)
		}
	}
	return r
}

// Loads reads SGLang's /v1/loads, with and without aggregate. What it adds up
// over ranks is not used.
func Loads(rows []cells.Row) Reader {
	k := index(rows)
	return func(page []byte, to *cells.Page) *registry.Refusal { return reading{to}.loads(page, k) }
}

func (s reading) loads(page []byte, k keys) *registry.Refusal {
	top, refusal := decode(page, '{')
	if refusal != nil {
		return refusal
	}
	list := top.get("loads")
	if list == nil {
		return ingest.Refuse(ReasonUnsupportedSchema, "the object has no loads")
	}
	if t, err := time.Parse(time.RFC3339Nano, top.get("timestamp").text()); err == nil && t.UnixMilli() >= 0 {
		s.TimeUnixMs = ingest.Known(t.UnixMilli())
	}
	return s.readList(list, func(rank int32, o value) { s.fill(rank, o, k) })
}

// GetLoad reads the three shapes of SGLang's /get_load: two arrays and an
// object with one number.
func GetLoad(array, scalar []cells.Row) Reader {
	many, one := index(array), index(scalar)
	return func(page []byte, to *cells.Page) *registry.Refusal {
		if value(page).left().kind() == '[' {
			return reading{to}.getLoads(page, many)
		}
		return reading{to}.getLoad(page, one)
	}
}

func (s reading) getLoads(page []byte, k keys) *registry.Refusal {
	list, refusal := decode(page, '[')
	if refusal != nil {
		return refusal
	}
	return s.readList(list, func(rank int32, o value) {
		r := s.fill(rank, o, k)
		s.setDifference(r, cells.Running, o, [2]string{"num_reqs", "num_waiting_reqs"})
		s.setDifference(r, cells.Used, o, [2]string{"num_tokens", "num_pending_tokens"})
	})
}

func (s reading) getLoad(page []byte, k keys) *registry.Refusal {
	top, refusal := decode(page, '{')
	if refusal != nil {
		return refusal
	}
	switch load := top.get("load"); {
	case load == nil:
		return ingest.Refuse(ReasonUnsupportedSchema, "the object has no load")
	case load.null():
		return nil
	}
	s.OneRank()
	s.fill(0, top, k)
	return nil
}

// setDifference sets what is left of the first key without the second, where
// both are known.
func (s reading) setDifference(r *cells.Rank, to cells.Input, o value, keys [2]string) {
	all, found := o.get(keys[0]).number()
	part, found2 := o.get(keys[1]).number()
	name := keys[0] + " - " + keys[1]
	switch {
	case found == cells.Absent || found2 == cells.Absent:
	case found == cells.Unusable || found2 == cells.Unusable:
		s.Refuse(r, to, name, ReasonNotANumber)
	case part < 0: // unknown, and counted as what it is
		r.In[to] = cells.Cell{State: cells.Unusable, Name: name}
	default:
		s.Set(r, to, name, all-part)
	}
}

// Iterations reads trtllm-serve's JSON /metrics: the newest iteration of an
// array.
func Iterations(rows []cells.Row) Reader {
	k := index(rows)
	return func(page []byte, to *cells.Page) *registry.Refusal { return reading{to}.iterations(page, k) }
}

func (s reading) iterations(page []byte, k keys) *registry.Refusal {
	list, refusal := decode(page, '[')
	if refusal != nil {
		return refusal
	}
	newest, best := value(nil), -1.0
	for o := range list.elements() {
		if o.null() {
			continue
		}
		if o.kind() != '{' {
			return unsupported()
		}
		n, found := o.get("iter").number()
		if found != cells.Known {
			n = -1
		}
		if n >= best {
			newest, best = o, n
		}
	}
	if newest == nil {
		return nil
	}
	s.OneRank()
	s.fill(0, newest, k)
	return nil
}

// IsIterations says whether a page may be trtllm-serve's JSON /metrics: an array
// of iterations, or an empty one.
func IsIterations(page []byte) bool {
	list, refusal := decode(page, '[')
	if refusal != nil {
		return false
	}
	for o := range list.elements() {
		if o.kind() != '{' || o.get("iter") == nil {
			return false
		}
	}
	return true
}

// readList reads an array with one object for each rank. A null is a rank of
// which nothing is known.
func (s reading) readList(list value, fill func(int32, value)) *registry.Refusal {
	if !list.null() && list.kind() != '[' {
		return unsupported()
	}
	n := 0
	for o := range list.elements() {
		switch {
		case o.kind() == '{':
			n++
		case o.null():
			s.Gaps = true
		default:
			return unsupported()
		}
	}
	if n > ingest.HardMaxRanks {
		return ingest.Refuse(ingest.ReasonTooManyRanks, "the page lists too many ranks")
	}
	for o := range list.elements() {
		if o.null() {
			continue
		}
		rank, ok := s.rankIn(o, n)
		if !ok {
			return ingest.Refuse(ingest.ReasonBadRank,
				fmt.Sprintf("a rank of the page has no number from 0 to %d in dp_rank", ingest.HardMaxRanks-1))
		}
		fill(rank, o)
	}
	return s.sortRanks()
}

// rankIn reads the rank number of an object, a number or a string of digits. A
// single one without it is rank 0.
func (s reading) rankIn(o value, of int) (int32, bool) {
	dpRank := o.get("dp_rank")
	if n, err := strconv.ParseUint(dpRank.text(), 10, 32); err == nil && n < ingest.HardMaxRanks {
		return int32(n), true
	}
	v, found := dpRank.number()
	if found == cells.Absent && of == 1 {
		s.OneRank()
		return 0, true
	}
	whole := found == cells.Known && v >= 0 && v < ingest.HardMaxRanks && v == math.Trunc(v)
	return int32(v), whole
}

// sortRanks puts the ranks in order and refuses equal ones.
func (s reading) sortRanks() *registry.Refusal {
	slices.SortStableFunc(s.Ranks, func(a, b cells.Rank) int { return int(a.Number) - int(b.Number) })
	for i := 1; i < len(s.Ranks); i++ {
		if s.Ranks[i].Number == s.Ranks[i-1].Number {
			return ingest.Refuse(ingest.ReasonDuplicateRank, "the page lists a rank twice")
		}
	}
	return nil
}

// decode checks a page and returns its value, which must be an object or an
// array as its first byte tells.
func decode(page []byte, kind byte) (value, *registry.Refusal) {
	if !json.Valid(page) {
		return nil, ingest.Refuse(ReasonBadJSON, "the page begins as JSON and cannot be decoded")
	}
	v := value(page).left()
	if v.kind() != kind {
		return nil, unsupported()
	}
	return v, nil
}

func unsupported() *registry.Refusal {
	return ingest.Refuse(ReasonUnsupportedSchema, "the JSON has none of the known shapes")
}
