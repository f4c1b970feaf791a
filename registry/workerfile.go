package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fsnotify/fsnotify"
	"go.yaml.in/yaml/v3"
)

// maxFileBytes bounds the workers file.
const maxFileBytes = 16 << 20

// fileWorker has the keys of the --worker flag.
type fileWorker struct {
	URL       string
	ID        string
	Role      string
	Model     words
	Zone      string
	Dialect   string
	Peers     words
	Label     map[string]string
	Draining  bool
	TokenFile string
	CAFile    string
	Interval  string
	// MaxRunning and ReporterPort are text here, so that the flag's rules read
	// them.
	MaxRunning   string
	ReporterPort string
}

// words is a list, or a single word.
type words []string

// UnmarshalYAML reads a scalar or a sequence.
func (w *words) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*w = make(words, 1)
		return n.Decode(&(*w)[0])
	}
	return n.Decode((*[]string)(w))
}

// parseWorkers reads a workers file: a YAML document with the list workers,
// whose items have the keys of ParseWorkerFlag, the URL as url, labels as the
// mapping label, and model and peers as one word or a list. Unknown keys, an
// empty file and two items of one id are errors; an empty list is none.
func parseWorkers(data []byte) ([]WorkerSpec, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("workers file is empty")
	case err != nil:
		return nil, fmt.Errorf("workers file: %w", err)
	}
	items, err := listOf(&doc)
	if err != nil {
		return nil, err
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("workers file has more than one document")
	}
	specs := make([]WorkerSpec, 0, len(items))
	for i := range items {
		s, err := readItem(&items[i])
		if err != nil {
			return nil, fmt.Errorf("workers file: item %d: %w", i+1, err)
		}
		specs = append(specs, s)
	}
	return specs, checkUnique(specs)
}

// listOf returns the items of the list workers.
func listOf(doc *yaml.Node) ([]yaml.Node, error) {
	keys, err := keysOf(doc.Content[0], []string{"workers"})
	if err != nil {
		return nil, fmt.Errorf("workers file: %w", err)
	}
	list, there := keys["workers"]
	if !there || list.ShortTag() == "!!null" {
		return nil, errors.New("workers file has no list workers; write workers: [] for none")
	}
	if list.Kind == yaml.AliasNode {
		list = list.Alias
	}
	if list.Kind != yaml.SequenceNode {
		return nil, errors.New("workers file: workers is not a list")
	}
	items := make([]yaml.Node, 0, len(list.Content))
	for _, item := range list.Content {
		items = append(items, *item)
	}
	return items, nil
}

// readItem reads a worker. The errors say what is wrong in the words of the
// file.
func readItem(n *yaml.Node) (WorkerSpec, error) {
	var f fileWorker
	fields := f.fields()
	keys, err := keysOf(n, slices.Sorted(maps.Keys(fields)))
	if err != nil {
		return WorkerSpec{}, err
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if err := keys[key].Decode(fields[key].into); err != nil {
			return WorkerSpec{}, fmt.Errorf("%s: not %s", key, fields[key].kind)
		}
	}
	return f.spec()
}

// fileField is where the value of a key goes, and what it has to be.
type fileField struct {
	into any
	kind string
}

// fields are the keys of a worker.
func (f *fileWorker) fields() map[string]fileField {
	const text, texts, duration = "a text", "a text or a list of texts", "a duration such as 500ms"
	return map[string]fileField{
		"url": {&f.URL, text}, "id": {&f.ID, text}, "role": {&f.Role, text}, "model": {&f.Model, texts},
		"zone": {&f.Zone, text}, "dialect": {&f.Dialect, text}, "peers": {&f.Peers, texts},
		"label": {&f.Label, "a mapping of texts"}, "draining": {&f.Draining, "true or false"},
		"token_file": {&f.TokenFile, text}, "ca_file": {&f.CAFile, text}, "interval": {&f.Interval, duration},
		"max_running": {&f.MaxRunning, "a whole number"}, "reporter_port": {&f.ReporterPort, "a port"},
	}
}

// keysOf returns the values of a mapping by their keys, those of mappings that
// are merged into it where it has none of its own.
func keysOf(n *yaml.Node, known []string) (map[string]*yaml.Node, error) {
	m := merging{known: known, values: map[string]*yaml.Node{}, seen: map[*yaml.Node]bool{}}
	if err := m.take(n); err != nil {
		return nil, err
	}
	return m.values, nil
}

// merging collects the values of a mapping.
type merging struct {
	known  []string
	values map[string]*yaml.Node
	// seen are the mappings that were taken: one that holds itself ends.
	seen map[*yaml.Node]bool
}

// take adds what a mapping has and was not there before, then what is merged
// into it.
func (m *merging) take(n *yaml.Node) error {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("not a mapping with the keys %s", strings.Join(m.known, ", "))
	}
	if m.seen[n] {
		return nil
	}
	m.seen[n] = true
	own := map[string]bool{}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.ShortTag() == "!!merge" {
			merged = append(merged, value)
			continue
		}
		switch {
		case own[key.Value]:
			return fmt.Errorf("key %s is there twice", key.Value)
		case key.Kind != yaml.ScalarNode || !slices.Contains(m.known, key.Value):
			return unknownKey(key.Value, m.known)
		}
		own[key.Value] = true
		if m.values[key.Value] == nil {
			m.values[key.Value] = value
		}
	}
	return m.merge(merged)
}

// merge takes mappings, or lists of them.
func (m *merging) merge(nodes []*yaml.Node) error {
	for _, n := range nodes {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		list := []*yaml.Node{n}
		if n.Kind == yaml.SequenceNode {
			list = n.Content
		}
		for _, one := range list {
			if err := m.take(one); err != nil {
				return err
			}
		}
	}
	return nil
}

// unknownKey names the known key that is most like the unknown one, and all.
func unknownKey(key string, known []string) error {
	key = cut(key)
	hint, least := "", min(3, len(key))
	for _, k := range known {
		if d := distance(strings.ToLower(key), k); d < least {
			hint, least = "; did you mean "+k+"?", d
		}
	}
	if checkText(key, len(key)) != nil {
		key = strconv.Quote(key)
	}
	return fmt.Errorf("unknown key %s%s (known: %s)", key, hint, strings.Join(known, ", "))
}

// distance returns how many letters have to be put in, taken out or replaced to
// make one word of another.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := before
			if a[i] != b[j] {
				replaced++
			}
			before = row[j+1]
			row[j+1] = min(replaced, before+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// spec checks an item by the rules of the flag.
func (f *fileWorker) spec() (WorkerSpec, error) {
	s, err := NewSpec(f.URL)
	if err != nil {
		return s, err
	}
	for _, kv := range [][2]string{
		{"id", f.ID}, {"role", f.Role}, {"zone", f.Zone}, {"dialect", f.Dialect},
		{"token_file", f.TokenFile}, {"ca_file", f.CAFile}, {"interval", f.Interval},
		{"max_running", f.MaxRunning}, {"reporter_port", f.ReporterPort},
	} {
		if kv[1] == "" {
			continue
		}
		if err := s.Set(kv[0], kv[1]); err != nil {
			return s, fmt.Errorf("%s: %w", kv[0], err)
		}
	}
	s.Draining = f.Draining
	err = f.lists(&s)
	return s, err
}

func (f *fileWorker) lists(s *WorkerSpec) error {
	if err := s.addModels(f.Model); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if err := s.addPeers(f.Peers); err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	for name, value := range f.Label {
		if err := s.setLabel(name, value); err != nil {
			return fmt.Errorf("label: %w", err)
		}
	}
	return nil
}

// checkUnique refuses two workers of one id in one source.
func checkUnique(specs []WorkerSpec) error {
	seen := make(map[string]bool, len(specs))
	for _, s := range specs {
		if seen[s.ID] {
			return fmt.Errorf("worker %s is listed twice", s.ID)
		}
		seen[s.ID] = true
	}
	return nil
}

// fileWatch says when the workers file may have changed. It watches folders,
// so that renames and swapped symlinks are seen. It is for one goroutine.
type fileWatch struct {
	path, target string
	watcher      *fsnotify.Watcher
}

// newFileWatch returns a watch that is ended by close. All methods of a nil
// watch, which is returned with the error where the system has none, do
// nothing.
func newFileWatch(path string) (*fileWatch, error) {
	full, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	f := &fileWatch{path: full, watcher: watcher}
	err = f.aim()
	return f, err
}

// aim watches the folder of the path and that of the file it leads to.
func (f *fileWatch) aim() error {
	if f == nil {
		return nil
	}
	folder, old := filepath.Dir(f.path), filepath.Dir(f.target)
	err := f.watcher.Add(folder)
	target, targetErr := filepath.EvalSymlinks(f.path)
	if targetErr != nil {
		return errors.Join(err, targetErr)
	}
	dir := filepath.Dir(target)
	if f.target != "" && old != dir && old != folder {
		_ = f.watcher.Remove(old) // it may be gone already
	}
	f.target = target
	return errors.Join(err, f.watcher.Add(dir))
}

// events returns nil channels where there is no watcher.
func (f *fileWatch) events() (<-chan fsnotify.Event, <-chan error) {
	if f == nil {
		return nil, nil
	}
	return f.watcher.Events, f.watcher.Errors
}

func (f *fileWatch) relevant(e fsnotify.Event) bool {
	return e.Op != fsnotify.Chmod &&
		(e.Name == f.path || e.Name == f.target || filepath.Base(e.Name) == "..data")
}

func (f *fileWatch) close() {
	if f != nil {
		_ = f.watcher.Close()
	}
}
