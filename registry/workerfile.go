package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	"go.yaml.in/yaml/v3"
)

// maxFileBytes bounds the workers file.
const maxFileBytes = 16 << 20

// fileList is the workers file. A nil list is an error, an empty one is not.
type fileList struct {
	Workers *[]fileWorker `yaml:"workers"`
}

// fileWorker has the keys of the --worker flag.
type fileWorker struct {
	URL       string            `yaml:"url"`
	ID        string            `yaml:"id"`
	Role      string            `yaml:"role"`
	Model     words             `yaml:"model"`
	Zone      string            `yaml:"zone"`
	Dialect   string            `yaml:"dialect"`
	Peers     words             `yaml:"peers"`
	Label     map[string]string `yaml:"label"`
	Draining  bool              `yaml:"draining"`
	TokenFile string            `yaml:"token_file"`
	CAFile    string            `yaml:"ca_file"`
	Interval  string            `yaml:"interval"`
	// MaxRunning and ReporterPort are text here, so that the flag's rules read
	// them.
	MaxRunning   string `yaml:"max_running"`
	ReporterPort string `yaml:"reporter_port"`
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
	dec.KnownFields(true)
	var list fileList
	switch err := dec.Decode(&list); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("workers file is empty")
	case err != nil:
		return nil, fmt.Errorf("workers file: %w", err)
	case list.Workers == nil:
		return nil, errors.New("workers file has no list workers; write workers: [] for none")
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("workers file has more than one document")
	}
	specs := make([]WorkerSpec, 0, len(*list.Workers))
	for i := range *list.Workers {
		s, err := (*list.Workers)[i].spec()
		if err != nil {
			return nil, fmt.Errorf("workers file: item %d: %w", i+1, err)
		}
		specs = append(specs, s)
	}
	return specs, checkUnique(specs)
}

// spec checks an item by the rules of the flag.
func (f *fileWorker) spec() (WorkerSpec, error) {
	s, err := newSpec(f.URL)
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
		if err := s.set(kv[0], kv[1]); err != nil {
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
