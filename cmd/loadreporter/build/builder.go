package build

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/loadplane/loadplane/cmd/loadreporter/source"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	loadmonitorv1 "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/store"
)

// Identity is what reports say of the engine. What is empty is taken from the
// engine's facts. It is a plain value.
type Identity struct {
	Role   store.Role
	Models []string
	Zone   string
}

// with fills what is empty from the facts of a sample.
func (id Identity) with(s *source.Snapshot) Identity {
	id.Role = cmp.Or(id.Role, s.Facts.Role)
	if len(id.Models) == 0 {
		id.Models = s.Facts.Models
	}
	return id
}

// Options configure a Builder. It is a plain value.
type Options struct {
	// Sample returns the latest sample. Required.
	Sample func() source.Snapshot
	// Origin is the engine as routers know it, scheme://host:port. Required.
	Origin string
	// Identity is what is configured of the engine.
	Identity Identity
	// StaleAfter is the age at which a sample stops being healthy. Required.
	StaleAfter time.Duration
	// UnknownAsZero lets push reports go out in which an unknown number is 0.
	UnknownAsZero bool
}

// Builder builds all reports of a process. They have one sequence, and a later
// one never has an older sample. A sequence is not below the wall clock, Unix
// microseconds, so that the process that goes on with the same life of the
// engine goes on above. It is safe for concurrent use.
type Builder struct {
	opts Options
	// unnamed is the source before the first sample named one.
	unnamed string

	mu              sync.Mutex
	sequence, built uint64
}

// New checks the options. It starts nothing.
func New(opts Options) (*Builder, error) {
	switch {
	case opts.Sample == nil:
		return nil, errors.New("build: Sample is missing")
	case opts.Origin == "":
		return nil, errors.New("build: Origin is missing")
	case opts.StaleAfter <= 0:
		return nil, fmt.Errorf("build: StaleAfter %s is not positive", opts.StaleAfter)
	}
	return &Builder{opts: opts, unnamed: "reporter-" + rand.Text()}, nil
}

// Native builds a report of the native dialect; nil before the first sample
// ended, good or bad.
func (b *Builder) Native(now time.Time) *loadplanev1.EngineReport {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.opts.Sample()
	if s.Taken.IsZero() && failure(&s) == "" {
		return nil
	}
	return b.native(&s, now)
}

// Push builds a report of the push dialect.
func (b *Builder) Push(now time.Time) *loadmonitorv1.LoadReport {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.opts.Sample()
	return b.push(&s, now)
}

// Identity returns what reports say of the engine now.
func (b *Builder) Identity() Identity {
	s := b.opts.Sample()
	return b.opts.Identity.with(&s)
}

// Built returns the number of reports so far.
func (b *Builder) Built() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.built
}

// next uses up a sequence number. The caller holds b.mu.
func (b *Builder) next(now time.Time) uint64 {
	b.built++
	b.sequence = max(b.sequence+1, uint64(max(now.UnixMicro(), 0)))
	return b.sequence
}

// sourceOf names the life of the engine process.
func (b *Builder) sourceOf(s *source.Snapshot) string { return cmp.Or(s.Source, b.unnamed) }
