package explain

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/loadplane/loadplane/store"
)

// maxNear bounds the ids that are told of a worker that is not found.
const maxNear = 3

// NotFoundError says that no worker, or not a single one, is meant by a name.
// It is immutable.
type NotFoundError struct {
	name string
	// several says that all of ids are meant; else they are like the name.
	several bool
	ids     []string
	workers int
}

// Error says what was looked for, and which ids there are instead.
func (e *NotFoundError) Error() string {
	switch {
	case e.several:
		return fmt.Sprintf("several workers have the address %q: %s; name one by its id", e.name, list(e.ids))
	case e.workers == 0:
		return fmt.Sprintf("no worker %q: discovery lists none at all", e.name)
	case len(e.ids) > 0:
		return fmt.Sprintf("no worker %q; there are: %s", e.name, list(e.ids))
	}
	return fmt.Sprintf("no worker %q among %d", e.name, e.workers)
}

func list(ids []string) string {
	quoted := make([]string, len(ids))
	for i, id := range ids {
		quoted[i] = fmt.Sprintf("%q", id)
	}
	return strings.Join(quoted, ", ")
}

// Find returns the index of the worker that a name means: its id, or its base
// URL or origin where they are those of a single worker. entries are sorted by
// id. The error is a *NotFoundError.
func Find(entries []*store.Entry, name string) (int, error) {
	if i, found := slices.BinarySearchFunc(entries, name, func(e *store.Entry, id string) int {
		return cmp.Compare(e.Worker.ID, id)
	}); found {
		return i, nil
	}
	origin, at := originOf(name), []int(nil)
	for i, e := range entries {
		if strings.EqualFold(e.Worker.Origin, origin) {
			at = append(at, i)
		}
	}
	if len(at) == 1 {
		return at[0], nil
	}
	e := &NotFoundError{name: Text(name), several: len(at) > 1, workers: len(entries)}
	for _, i := range at[:min(len(at), maxNear)] {
		e.ids = append(e.ids, Text(entries[i].Worker.ID))
	}
	if len(at) == 0 {
		e.ids = near(entries, name)
	}
	return 0, e
}

// originOf returns the host and port that a URL or an origin names.
func originOf(name string) string {
	u, err := url.Parse(name)
	if err != nil || u.Host == "" {
		return strings.TrimSuffix(name, "/")
	}
	switch {
	case u.Port() != "":
		return u.Host
	case u.Scheme == "https":
		return net.JoinHostPort(u.Hostname(), "443")
	}
	return net.JoinHostPort(u.Hostname(), "80")
}

// near returns the ids that are most like a name: those that share most of
// their beginning and end with it, which a slip in one place leaves.
func near(entries []*store.Entry, name string) []string {
	type scored struct {
		id    string
		score int
	}
	var best []scored
	for _, e := range entries {
		id := e.Worker.ID
		n := likeness(id, name)
		if 3*n < 2*min(len(id), len(name)) || len(name) < 3 {
			continue
		}
		best = append(best, scored{Text(id), n - max(len(id), len(name))})
	}
	slices.SortStableFunc(best, func(a, b scored) int { return cmp.Compare(b.score, a.score) })
	var ids []string
	for _, s := range best[:min(len(best), maxNear)] {
		ids = append(ids, s.id)
	}
	return ids
}

// likeness is the length of what two texts share: one within the other, or else
// their beginning and their end.
func likeness(a, b string) int {
	short := min(len(a), len(b))
	if strings.Contains(a, b) || strings.Contains(b, a) {
		return short
	}
	front := 0
	for front < short && a[front] == b[front] {
		front++
	}
	back := 0
	for back < short-front && a[len(a)-1-back] == b[len(b)-1-back] {
		back++
	}
	return front + back
}
