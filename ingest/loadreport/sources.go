package loadreport

import "sync"

// maxSources bounds the instances that are remembered.
const maxSources = 16384

// Sources remembers which engine instances have sent a prefill throughput, so
// that it stays known when one of them comes back idle. The zero Sources is
// ready; it is safe for concurrent use.
type Sources struct {
	mu   sync.Mutex
	sent map[string]struct{}
}

// Has says whether an instance is remembered.
func (s *Sources) Has(source string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.sent[source]
	return ok
}

// Add remembers an instance. It forgets all others where there are too many,
// which costs them no more than an unknown value until they send one again.
func (s *Sources) Add(source string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent == nil || len(s.sent) >= maxSources {
		s.sent = make(map[string]struct{})
	}
	s.sent[source] = struct{}{}
}
