package promtext

import (
	"bytes"
	"hash/maphash"
	"iter"
	"strconv"
)

// MaxLabels is the most labels of one sample; one with more is a broken line.
const MaxLabels = 64

// maxTypes bounds the TYPE lines that are remembered to find repeated ones.
const maxTypes = 1024

// Wanted is a set of metric names, each with its index in the list that it was
// made of. It is immutable and safe for concurrent use.
type Wanted struct{ index map[string]int }

// NewWanted returns the set of the names. Of equal ones the last counts.
func NewWanted(names []string) *Wanted {
	w := &Wanted{index: make(map[string]int, len(names))}
	for i, n := range names {
		w.index[n] = i
	}
	return w
}

// Label is one label of a sample. Its bytes are valid until the next Next.
type Label struct{ Name, Value []byte }

// Sample is one wanted sample. Its labels are valid until the next Next.
type Sample struct {
	// Name is the index of the name in the wanted list.
	Name int
	// Labels are in the order of the line, each name once.
	Labels []Label
	// Value may be NaN or infinite.
	Value float64
}

// Counts are what a Scanner has met so far. It is a plain value.
type Counts struct {
	// Samples counts lines that are samples of any name.
	Samples int
	// Broken counts lines that are neither comments nor samples, and samples of
	// wanted names that cannot be read. Other samples are not looked into.
	Broken int
	// RepeatedTypes counts TYPE lines of a name that had one before.
	RepeatedTypes int
}

// Scanner reads the wanted samples of one page after the other. It keeps its
// buffers; a page is read without allocation once they have grown. The time is
// linear in the size of the page. It is for one goroutine.
type Scanner struct {
	// Sample is what the last Next found.
	Sample Sample
	// Counts are those of this page.
	Counts Counts

	wanted *Wanted
	rest   []byte
	skip   []byte // the name last skipped; neighbours often share it
	buf    []byte // label values without their escapes
	types  map[uint64]struct{}
	seed   maphash.Seed
}

// NewScanner returns a scanner of wanted names; Reset gives it a page.
func NewScanner(w *Wanted) *Scanner {
	return &Scanner{wanted: w, types: map[uint64]struct{}{}, seed: maphash.MakeSeed()}
}

// Reset begins a page, which must not change until it is read.
func (s *Scanner) Reset(page []byte) {
	s.rest, s.skip, s.Counts = page, nil, Counts{}
	clear(s.types)
}

// Next goes to the next wanted sample, if there is one.
func (s *Scanner) Next() bool {
	for len(s.rest) > 0 {
		var line []byte
		line, s.rest = cutLine(s.rest)
		if n := len(s.skip); n > 0 && len(line) > n && endsName(line[n]) && bytes.Equal(line[:n], s.skip) {
			s.Counts.Samples++
			continue
		}
		if s.line(trimBlank(line)) {
			return true
		}
	}
	return false
}

// line reads a line and says whether it is a wanted sample.
func (s *Scanner) line(line []byte) bool {
	if len(line) == 0 {
		return false
	}
	if line[0] == '#' {
		s.comment(line[1:])
		return false
	}
	n := nameLen(line)
	if n == 0 || n == len(line) || !endsName(line[n]) {
		s.Counts.Broken++
		return false
	}
	i, ok := s.wanted.index[string(line[:n])]
	if !ok {
		s.skip = line[:n]
		s.Counts.Samples++
		return false
	}
	s.Sample.Name = i
	if !s.sample(line[n:]) {
		s.Counts.Broken++
		return false
	}
	s.Counts.Samples++
	return true
}

// comment looks for a TYPE line that was there before.
func (s *Scanner) comment(line []byte) {
	name, ok := typed(line, "TYPE")
	if !ok {
		return
	}
	h := maphash.Bytes(s.seed, name)
	if _, again := s.types[h]; again {
		s.Counts.RepeatedTypes++
	} else if len(s.types) < maxTypes {
		s.types[h] = struct{}{}
	}
}

// sample reads what follows the name.
func (s *Scanner) sample(rest []byte) bool {
	s.Sample.Labels, s.buf = s.Sample.Labels[:0], s.buf[:0]
	rest = trimBlank(rest)
	if len(rest) > 0 && rest[0] == '{' {
		var ok bool
		if rest, ok = s.labels(rest[1:]); !ok {
			return false
		}
	}
	token, rest := cutBlank(trimBlank(rest))
	var ok bool
	s.Sample.Value, ok = number(token)
	return ok && timestamp(rest)
}

// labels reads labels up to the brace and returns what follows it.
func (s *Scanner) labels(rest []byte) ([]byte, bool) {
	for {
		rest = trimBlank(rest)
		if len(rest) > 0 && rest[0] == '}' {
			return rest[1:], true
		}
		n := labelLen(rest)
		name, tail := rest[:n], trimBlank(rest[n:])
		if n == 0 || len(s.Sample.Labels) == MaxLabels || s.has(name) || len(tail) == 0 || tail[0] != '=' {
			return nil, false
		}
		value, tail, ok := s.quoted(trimBlank(tail[1:]))
		if !ok {
			return nil, false
		}
		s.Sample.Labels = append(s.Sample.Labels, Label{name, value})
		tail = trimBlank(tail)
		switch {
		case len(tail) > 0 && tail[0] == ',':
			rest = tail[1:]
		case len(tail) > 0 && tail[0] == '}':
			return tail[1:], true
		default:
			return nil, false
		}
	}
}

func (s *Scanner) has(name []byte) bool {
	for i := range s.Sample.Labels {
		if bytes.Equal(s.Sample.Labels[i].Name, name) {
			return true
		}
	}
	return false
}

// quoted reads a label value in quotes and returns what follows it. A value
// without escapes is a part of the page.
func (s *Scanner) quoted(rest []byte) (value, tail []byte, ok bool) {
	if len(rest) == 0 || rest[0] != '"' {
		return nil, nil, false
	}
	rest = rest[1:]
	for i := 0; i < len(rest); i++ {
		switch rest[i] {
		case '"':
			return rest[:i], rest[i+1:], true
		case '\\':
			return s.unescape(rest, i)
		}
	}
	return nil, nil, false
}

// unescape goes on from the first backslash of a value.
func (s *Scanner) unescape(rest []byte, i int) (value, tail []byte, ok bool) {
	from := len(s.buf)
	s.buf = append(s.buf, rest[:i]...)
	for ; i < len(rest); i++ {
		c := rest[i]
		if c == '"' {
			return s.buf[from:], rest[i+1:], true
		}
		if c == '\\' {
			if i++; i == len(rest) {
				return nil, nil, false
			}
			switch c = rest[i]; c {
			case 'n':
				c = '\n'
			case '\\', '"':
			default:
				return nil, nil, false
			}
		}
		s.buf = append(s.buf, c)
	}
	return nil, nil, false
}

// Families returns the metric names of a page in its order, those of samples
// and those of HELP and TYPE lines, with repetitions.
func Families(page []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(page) > 0 {
			var line []byte
			line, page = cutLine(page)
			if name := familyOf(trimBlank(line)); len(name) > 0 && !yield(name) {
				return
			}
		}
	}
}

func familyOf(line []byte) []byte {
	if len(line) > 0 && line[0] == '#' {
		for _, keyword := range [...]string{"TYPE", "HELP"} {
			if name, ok := typed(line[1:], keyword); ok {
				return name
			}
		}
		return nil
	}
	n := nameLen(line)
	if n == len(line) || !endsName(line[n]) {
		return nil
	}
	return line[:n]
}

// typed returns the name of a comment with a keyword.
func typed(line []byte, keyword string) ([]byte, bool) {
	word, rest := cutBlank(trimBlank(line))
	if string(word) != keyword {
		return nil, false
	}
	name, _ := cutBlank(trimBlank(rest))
	return name, len(name) > 0
}

// number reads a value. Hexadecimal digits and underscores are Go's, not the
// format's.
func number(token []byte) (float64, bool) {
	if len(token) == 0 || bytes.ContainsAny(token, "_xXpP") {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(token), 64)
	return v, err == nil
}

// timestamp reads what follows the value: nothing, a timestamp or an exemplar.
func timestamp(rest []byte) bool {
	rest = trimBlank(rest)
	if len(rest) == 0 || rest[0] == '#' {
		return true
	}
	token, rest := cutBlank(rest)
	if _, ok := number(token); !ok {
		return false
	}
	rest = trimBlank(rest)
	return len(rest) == 0 || rest[0] == '#'
}

// cutLine returns the first line, without its end, and the rest.
func cutLine(page []byte) (line, rest []byte) {
	end := bytes.IndexByte(page, '\n')
	if end < 0 {
		line = page
	} else {
		line, rest = page[:end], page[end+1:]
	}
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, rest
}

// cutBlank cuts at the first blank or tab.
func cutBlank(b []byte) (token, rest []byte) {
	for i, c := range b {
		if c == ' ' || c == '\t' {
			return b[:i], b[i:]
		}
	}
	return b, nil
}

func trimBlank(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}

func endsName(c byte) bool { return c == '{' || c == ' ' || c == '\t' }

// nameLen returns the length of the metric name that b begins with.
func nameLen(b []byte) int {
	for i, c := range b {
		if !letter(c) && c != ':' && (i == 0 || c < '0' || c > '9') {
			return i
		}
	}
	return len(b)
}

// labelLen returns the length of the label name that b begins with.
func labelLen(b []byte) int {
	for i, c := range b {
		if !letter(c) && (i == 0 || c < '0' || c > '9') {
			return i
		}
	}
	return len(b)
}

func letter(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_'
}
