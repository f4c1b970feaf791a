package access

import (
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// reloading holds what was made of some files and makes it anew when one of
// them changed. The last good value stays when that fails. It is safe for
// concurrent use.
type reloading[T any] struct {
	name   string
	paths  []string
	load   func(contents [][]byte) (T, error)
	access *Access

	mu    sync.Mutex
	seen  []fs.FileInfo
	value T
}

// credentialFiles describes a value that is kept in files.
type credentialFiles[T any] struct {
	// name names the value in logs and metrics.
	name  string
	paths []string
	// load gets the content of the files in the order of paths.
	load func(contents [][]byte) (T, error)
}

// newReloading reads the files for the first time.
func newReloading[T any](c credentialFiles[T], a *Access) (*reloading[T], error) {
	r := &reloading[T]{name: c.name, paths: c.paths, load: c.load, access: a}
	infos, err := r.stat()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	if r.value, err = r.read(); err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	r.seen = infos
	return r, nil
}

// get returns the value that belongs to the files as they are now, or the
// last good one.
func (r *reloading[T]) get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	infos, err := r.stat()
	if err == nil && sameFiles(r.seen, infos) {
		return r.value
	}
	if err != nil && r.seen == nil {
		return r.value // Missing, and said so already.
	}
	r.seen = infos
	var value T
	if err == nil {
		value, err = r.read()
	}
	r.access.metrics.reloaded(r.name, err == nil)
	if err != nil {
		r.access.logger.Error("credential not reloaded; the old one stays", "credential", r.name, "error", err)
		return r.value
	}
	r.value = value
	r.access.logger.Info("credential reloaded", "credential", r.name)
	return r.value
}

func (r *reloading[T]) stat() ([]fs.FileInfo, error) {
	infos := make([]fs.FileInfo, len(r.paths))
	for i, path := range r.paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		infos[i] = info
	}
	return infos, nil
}

func (r *reloading[T]) read() (T, error) {
	var none T
	contents := make([][]byte, len(r.paths))
	for i, path := range r.paths {
		content, err := readLimited(path)
		if err != nil {
			return none, err
		}
		contents[i] = content
	}
	value, err := r.load(contents)
	if err != nil {
		return none, fmt.Errorf("%s: %w", r.paths[0], err)
	}
	return value, nil
}

// maxCredentialFile bounds a credential file, bytes.
const maxCredentialFile = 1 << 20

func readLimited(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxCredentialFile {
		return nil, fmt.Errorf("%s: not a regular file of at most %d bytes", path, maxCredentialFile)
	}
	return os.ReadFile(path)
}

// sameFiles says that nothing changed.
func sameFiles(a, b []fs.FileInfo) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !os.SameFile(a[i], b[i]) || !a[i].ModTime().Equal(b[i].ModTime()) || a[i].Size() != b[i].Size() || a[i].Mode() != b[i].Mode() {
			return false
		}
	}
	return true
}

// checkPrivate refuses a key file that others than its owner and group may
// open.
func checkPrivate(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return fmt.Errorf("%s: mode %04o lets others open the key; set it to 0600 or 0640", path, mode)
	}
	return nil
}
