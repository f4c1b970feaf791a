package pace

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// maxCuts is how often a client may be cut within cutWindow.
	maxCuts   = 3
	cutWindow = time.Minute
	// maxOffenders bounds the clients that are remembered.
	maxOffenders = 1024
	// A client that is refused is told to wait from minPause to maxPause.
	minPause = 10 * time.Second
	maxPause = 30 * time.Second
)

// Offenders remembers which clients were cut for being too slow. The zero
// Offenders is ready. It is safe for concurrent use.
type Offenders struct {
	mu   sync.Mutex
	cuts map[string]*[maxCuts + 1]time.Time // newest first
}

// Cut notes that a client was cut.
func (o *Offenders) Cut(client string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.cuts[client]
	if c == nil {
		o.makeRoom()
		c = new([maxCuts + 1]time.Time)
		o.cuts[client] = c
	}
	copy(c[1:], c[:])
	c[0] = now
}

// makeRoom forgets the client that was cut the longest ago where there are
// too many.
func (o *Offenders) makeRoom() {
	if o.cuts == nil {
		o.cuts = make(map[string]*[maxCuts + 1]time.Time)
	}
	if len(o.cuts) < maxOffenders {
		return
	}
	var oldest string
	for client, c := range o.cuts {
		if oldest == "" || c[0].Before(o.cuts[oldest][0]) {
			oldest = client
		}
	}
	delete(o.cuts, oldest)
}

// Refused says whether a client was cut more than three times in the last
// minute, and how long it shall wait then: 10 to 30 s, spread.
func (o *Offenders) Refused(client string, now time.Time) (pause time.Duration, refused bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.cuts[client]
	if c == nil || c[maxCuts].IsZero() || now.Sub(c[maxCuts]) > cutWindow {
		return 0, false
	}
	return minPause + rand.N(maxPause-minPause), true
}
