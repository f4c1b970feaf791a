package ingest

import (
	"sync"
	"time"
)

// Bounds of a Shelf.
const (
	keepFor   = 3 * time.Minute
	sweepEach = 10 * time.Second
)

// Shelf keeps what a dialer knows of an engine between two calls of Serve, by
// the engine's name, for three minutes: an engine that refuses is left alone for
// a minute, and one that is slow may need several trials. The zero Shelf is
// ready; it is safe for concurrent use.
type Shelf[T any] struct {
	mu    sync.Mutex
	kept  map[string]shelved[T]
	swept time.Time
}

type shelved[T any] struct {
	memory *T
	since  time.Time
}

// Take returns what was kept under a name, once; nil for nothing.
func (s *Shelf[T]) Take(name string) *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kept[name]
	delete(s.kept, name)
	if time.Since(k.since) > keepFor {
		return nil
	}
	return k.memory
}

// Put keeps a memory under a name.
func (s *Shelf[T]) Put(name string, memory *T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.kept == nil {
		s.kept = make(map[string]shelved[T])
	}
	if now.Sub(s.swept) > sweepEach {
		s.swept = now
		for old, k := range s.kept {
			if now.Sub(k.since) > keepFor {
				delete(s.kept, old)
			}
		}
	}
	s.kept[name] = shelved[T]{memory, now}
}
