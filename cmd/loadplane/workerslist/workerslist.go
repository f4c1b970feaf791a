// Package workerslist writes the list of simulated engines, in the form that
// serve reads.
package workerslist

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/loadplane/loadplane/sim"
	"go.yaml.in/yaml/v3"
)

// Announce writes the workers of a fleet to w, or to the file at path, where
// that is not empty, and then to w what to do with it. No reader of the file
// sees a part of it.
func Announce(w io.Writer, fleet *sim.Fleet, path string) error {
	list, err := workersYAML(fleet)
	if err != nil {
		return err
	}
	if path == "" {
		_, err := w.Write(list)
		return err
	}
	if err := replaceFile(path, list); err != nil {
		return fmt.Errorf("--write-workers: %w", err)
	}
	for _, engine := range fleet.URLs() {
		fmt.Fprintln(w, engine)
	}
	fmt.Fprintf(w, "\nserve them with: bin/loadplane serve --workers-file %s\n", path)
	return nil
}

// listedWorker is an item of a workers file.
type listedWorker struct {
	URL   string `yaml:"url"`
	Role  string `yaml:"role,omitempty"`
	Model string `yaml:"model,omitempty"`
	Zone  string `yaml:"zone,omitempty"`
}

// workersYAML lists the workers of a fleet, and in comments the engines that
// are not to be listed.
func workersYAML(fleet *sim.Fleet) ([]byte, error) {
	list := struct {
		Workers []listedWorker `yaml:"workers"`
	}{}
	for _, w := range fleet.Workers() {
		list.Workers = append(list.Workers, listedWorker{w.URL, w.NamedRole(), w.Model, w.Zone})
	}
	var b strings.Builder
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err := enc.Encode(list)
	for _, e := range fleet.Engines() {
		if w := e.Info(); w.Kind == sim.KindNative {
			fmt.Fprintf(&b, "# %s registers itself\n", w.URL)
		}
	}
	return []byte(b.String()), err
}

// replaceFile writes a file so that no reader sees a part of it.
func replaceFile(path string, content []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".loadplane-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // It is gone after the rename.
	if err := writeAll(tmp, content); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

func writeAll(f *os.File, content []byte) error {
	_, err := f.Write(content)
	if chmod := f.Chmod(0o644); err == nil {
		err = chmod
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
