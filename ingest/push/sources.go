package push

import "sync"

// maxSources bounds the instances that are remembered.
const maxSources = 16384

// sources remembers which engine instances have sent a prefill throughput, so
// that it stays known when one of them comes back idle. It is safe for
// concurrent use.
type sources struct {
	mu   sync.Mutex
	sent map[string]struct{}
}

func (s *sources) has(source string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.sent[source]
	return ok
}

// add forgets all others where there are too many, which costs them no more
// than an unknown value until they send one again.
func (s *sources) add(source string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent == nil || len(s.sent) >= maxSources {
		s.sent = make(map[string]struct{})
	}
	s.sent[source] = struct{}{}
}
