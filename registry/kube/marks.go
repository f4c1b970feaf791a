package kube

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/loadplane/loadplane/registry"
)

// prefix is that of the labels and annotations that are read.
const prefix = "loadplane.dev/"

// labelPrefix begins the keys of a worker's labels.
const labelPrefix = "label."

// portKey is the key of the port, which is read apart from the others.
const portKey = "port"

// otherKey stands in metrics for keys that are not known.
const otherKey = "other"

// keys are those of labels and annotations, with those of a worker's spec.
var keys = map[string]string{
	"role": "role", "model": "model", "zone": "zone", "dialect": "dialect",
	"reporter-port": "reporter_port", "interval": "interval",
}

// problem is a value that cannot be used, or why there is no worker. It is a
// plain value.
type problem struct {
	// key is a word of a fixed list, for metrics.
	key, text string
}

// marks returns what labels and annotations say under the prefix, by the rest
// of the key.
func marks(labels, annotations map[string]string) map[string]string {
	found := make(map[string]string)
	for _, from := range []map[string]string{labels, annotations} {
		for key, value := range from {
			if name, ok := strings.CutPrefix(key, prefix); ok {
				found[name] = value
			}
		}
	}
	return found
}

// mark sets what the marks say. A value that cannot be used changes nothing.
func mark(s *registry.WorkerSpec, marks map[string]string) (problems []problem) {
	for _, name := range slices.Sorted(maps.Keys(marks)) {
		if name == portKey {
			continue
		}
		key, word := keyOf(name)
		next := *s
		err := errors.New("unknown key")
		if key != "" {
			err = next.Set(key, marks[name])
		}
		if err != nil {
			problems = append(problems, problem{word, prefix + name + ": " + err.Error()})
			continue
		}
		*s = next
	}
	return problems
}

// keyOf returns the key of the spec, empty for none, and the word for metrics.
func keyOf(name string) (key, word string) {
	if strings.HasPrefix(name, labelPrefix) {
		return name, "label"
	}
	if key = keys[name]; key == "" {
		return "", otherKey
	}
	return key, name
}

// port is how a port is chosen: by number, by name, or the only one there is.
type port struct {
	number int
	name   string
}

// parsePort reads a number or a name of up to 63 letters, digits and hyphens.
func parsePort(text string) (port, error) {
	if n, err := strconv.Atoi(text); err == nil {
		if n < 1 || n > 65535 {
			return port{}, errors.New(strconv.Quote(text) + " is not a port from 1 to 65535")
		}
		return port{number: n}, nil
	}
	odd := func(c rune) bool {
		return c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
	}
	if text == "" || len(text) > 63 || strings.ContainsFunc(text, odd) {
		return port{}, errors.New(strconv.Quote(text[:min(len(text), 64)]) + " is neither the number nor the name of a port")
	}
	return port{name: text}, nil
}

// portOf returns the port that the marks name, else the one of the settings.
func portOf(marks map[string]string, setting port) (port, []problem) {
	text, ok := marks[portKey]
	if !ok {
		return setting, nil
	}
	p, err := parsePort(text)
	if err != nil {
		return setting, []problem{{portKey, prefix + portKey + ": " + err.Error()}}
	}
	return p, nil
}

// named is a port that a container or a slice declares.
type named struct {
	name   string
	number int
}

// choose returns the number of the port among those declared.
func (p port) choose(declared []named) (int, error) {
	if p.number != 0 {
		return p.number, nil
	}
	if p.name != "" {
		for _, d := range declared {
			if d.name == p.name {
				return d.number, nil
			}
		}
		return 0, errors.New("no port is named " + strconv.Quote(p.name))
	}
	if len(declared) != 1 {
		return 0, errors.New(strconv.Itoa(len(declared)) + " ports are declared and none is chosen")
	}
	return declared[0].number, nil
}
