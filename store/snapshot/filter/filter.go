// Package filter selects workers by their attributes. Equal selections give
// equal filters, with equal hashes.
package filter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"github.com/loadplane/loadplane/store"
)

// Bounds of a filter. The lengths of texts are those that discovery allows,
// bytes.
const (
	maxValues = 64
	maxLabels = 16

	maxModelText = 256
	maxIDText    = 256
	maxValueText = 256
	maxNameText  = 64
)

// Selection is what a filter is made of: AND between its fields, OR inside
// one. An empty field selects all. It is a plain value.
type Selection struct {
	// Models are names of served models, 1 to 256 bytes each.
	Models []string
	// Zones are 1 to 64 bytes each.
	Zones []string
	Roles []store.Role
	// WorkerIDs are 1 to 256 bytes each.
	WorkerIDs []string
	// Labels maps names, 1 to 64 bytes, to values of up to 256 bytes: AND
	// between the names, and one of the values is enough.
	Labels map[string][]string
}

// Filter selects workers by their attributes. It is immutable and safe for
// concurrent use; equal selections give equal filters. A nil Filter is the
// empty one, which selects all.
type Filter struct {
	models, zones, ids []string
	roles              []store.Role
	labels             []label
	hash               uint64
}

// label is one name with its values, sorted.
type label struct {
	name   string
	values []string
}

// New checks and normalises a selection. It returns nil for the empty
// one. It fails for more than 64 values in a field, more than 16 labels, a
// label without values, a text that is empty, too long or not printable UTF-8,
// and a role that does not exist.
func New(s Selection) (*Filter, error) {
	f := &Filter{roles: normal(s.Roles)}
	err := errors.Join(
		f.setTexts(s),
		checkCount("roles", len(s.Roles)),
		checkRoles(s.Roles),
		f.setLabels(s.Labels),
	)
	if err != nil {
		return nil, err
	}
	if len(f.models)+len(f.zones)+len(f.roles)+len(f.ids)+len(f.labels) == 0 {
		return nil, nil //nolint:nilnil // nil is the empty filter
	}
	// 0 stands for the empty filter.
	f.hash = max(xxhash.Sum64(f.appendNormal(nil)), 1)
	return f, nil
}

func (f *Filter) setTexts(s Selection) error {
	var errs []error
	for _, field := range []struct {
		name string
		from []string
		to   *[]string
		most int
	}{
		{"models", s.Models, &f.models, maxModelText},
		{"zones", s.Zones, &f.zones, maxNameText},
		{"worker ids", s.WorkerIDs, &f.ids, maxIDText},
	} {
		errs = append(errs, checkCount(field.name, len(field.from)))
		for _, text := range field.from {
			errs = append(errs, checkText(field.name, text, 1, field.most))
		}
		*field.to = normal(field.from)
	}
	return errors.Join(errs...)
}

func (f *Filter) setLabels(all map[string][]string) error {
	if len(all) > maxLabels {
		return fmt.Errorf("labels: %d names, the limit is %d", len(all), maxLabels)
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(all)) {
		values := all[name]
		errs = append(errs, checkText("label name", name, 1, maxNameText), checkCount("label values", len(values)))
		for _, v := range values {
			errs = append(errs, checkText("label value", v, 0, maxValueText))
		}
		if len(values) == 0 {
			errs = append(errs, errors.New("labels: a name without values"))
		}
		f.labels = append(f.labels, label{name, normal(values)})
	}
	return errors.Join(errs...)
}

func checkRoles(roles []store.Role) error {
	for _, r := range roles {
		if r < store.RoleRegular || r > store.RoleDecode {
			return fmt.Errorf("roles: role %d does not exist", r)
		}
	}
	return nil
}

func checkCount(field string, n int) error {
	if n > maxValues {
		return fmt.Errorf("%s: %d values, the limit is %d", field, n, maxValues)
	}
	return nil
}

func checkText(field, text string, least, most int) error {
	switch {
	case len(text) < least:
		return fmt.Errorf("%s: a value is empty", field)
	case len(text) > most:
		return fmt.Errorf("%s: a value has %d bytes, the limit is %d", field, len(text), most)
	case !utf8.ValidString(text):
		return fmt.Errorf("%s: a value is not UTF-8", field)
	}
	for _, r := range text {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%s: a value is not printable", field)
		}
	}
	return nil
}

// normal returns a sorted copy without duplicates.
func normal[T ~string | ~uint8](values []T) []T {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return slices.Compact(sorted)
}

// appendNormal appends the normal form, which no two filters share: every list
// is led by its length, and every text by its own.
func (f *Filter) appendNormal(b []byte) []byte {
	for _, texts := range [][]string{f.models, f.zones, f.ids} {
		b = appendTexts(b, texts)
	}
	b = binary.AppendUvarint(b, uint64(len(f.roles)))
	for _, r := range f.roles {
		b = append(b, byte(r))
	}
	b = binary.AppendUvarint(b, uint64(len(f.labels)))
	for _, l := range f.labels {
		b = appendTexts(appendText(b, l.name), l.values)
	}
	return b
}

func appendTexts(b []byte, texts []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(texts)))
	for _, t := range texts {
		b = appendText(b, t)
	}
	return b
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// Hash returns xxhash64 of the normal form; 0 for the empty filter only.
func (f *Filter) Hash() uint64 {
	if f == nil {
		return 0
	}
	return f.hash
}

// Equal says that two filters select alike by their normal form.
func (f *Filter) Equal(other *Filter) bool {
	if f == nil || other == nil {
		return f == other
	}
	return f.hash == other.hash && bytes.Equal(f.appendNormal(nil), other.appendNormal(nil))
}

// Match says whether the filter selects a worker.
func (f *Filter) Match(w *store.Worker) bool {
	if f == nil {
		return true
	}
	return allows(f.roles, w.Role) && allows(f.zones, w.Zone) && allows(f.ids, w.ID) &&
		f.matchModels(w.Models) && f.matchLabels(w.Labels)
}

// allows says that a sorted list is empty or has v.
func allows[T ~string | ~uint8](sorted []T, v T) bool {
	if len(sorted) == 0 {
		return true
	}
	_, ok := slices.BinarySearch(sorted, v)
	return ok
}

func (f *Filter) matchModels(models []string) bool {
	return len(f.models) == 0 || slices.ContainsFunc(models, func(m string) bool { return allows(f.models, m) })
}

func (f *Filter) matchLabels(labels map[string]string) bool {
	for _, l := range f.labels {
		if v, ok := labels[l.name]; !ok || !allows(l.values, v) {
			return false
		}
	}
	return true
}
