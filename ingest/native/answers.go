package native

import (
	"sync"
	"time"

	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/registry"
)

const (
	// refusalEach is the shortest time between two refusals that a reporter is
	// told.
	refusalEach = time.Second
	// writeTimeout is how long one answer may take.
	writeTimeout = 5 * time.Second
)

// answers are what a reporter is to be told: the newest grant and the newest
// refusal. Who leaves one never waits. It is safe for concurrent use; run is for
// one goroutine.
type answers struct {
	send func(*loadplanev1.ReportResponse) error
	// left signals that there is one, stop that run is to end, and stuck that an
	// answer took too long.
	left, stuck chan struct{}
	stop        chan struct{}

	mu      sync.Mutex
	grant   *loadplanev1.Grant
	refusal *loadplanev1.ReportRefusal
}

func newAnswers(send func(*loadplanev1.ReportResponse) error) *answers {
	return &answers{
		send: send,
		left: make(chan struct{}, 1), stuck: make(chan struct{}, 1),
		stop: make(chan struct{}),
	}
}

// allow leaves a grant.
func (a *answers) allow(g registry.Grant) {
	a.mu.Lock()
	a.grant = grantOf(g)
	a.mu.Unlock()
	poke(a.left)
}

// refuse leaves a refusal.
func (a *answers) refuse(sequence uint64, r *registry.Refusal) {
	a.mu.Lock()
	a.refusal = &loadplanev1.ReportRefusal{Sequence: sequence, Reason: string(r.Reason), Message: r.Message}
	a.mu.Unlock()
	poke(a.left)
}

// take returns the grant that was left, else the refusal if it may be told now.
func (a *answers) take(refusals bool) *loadplanev1.ReportResponse {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := new(loadplanev1.ReportResponse)
	switch {
	case a.grant != nil:
		m.Payload = &loadplanev1.ReportResponse_Grant{Grant: a.grant}
		a.grant = nil
	case a.refusal != nil && refusals:
		m.Payload = &loadplanev1.ReportResponse_Refusal{Refusal: a.refusal}
		a.refusal = nil
	default:
		return nil
	}
	return m
}

// run sends what is left, until stop closes or the stream fails. It may still be
// within an answer when the handler returns, which ends that.
func (a *answers) run() {
	var told time.Time
	for {
		wait := refusalEach - time.Since(told)
		m := a.take(wait <= 0)
		if m == nil {
			if !a.await(wait) {
				return
			}
			continue
		}
		if m.GetRefusal() != nil {
			told = time.Now()
		}
		if a.write(m) != nil {
			return
		}
	}
}

// await waits for an answer, and for the next time at which a refusal may be
// told where that is to come; false says that it is over.
func (a *answers) await(quiet time.Duration) bool {
	var spoken <-chan time.Time
	if quiet > 0 {
		timer := time.NewTimer(quiet)
		defer timer.Stop()
		spoken = timer.C
	}
	select {
	case <-a.left:
	case <-spoken:
	case <-a.stop:
		return false
	}
	return true
}

// write sends an answer and signals where that takes too long.
func (a *answers) write(m *loadplanev1.ReportResponse) error {
	defer time.AfterFunc(writeTimeout, func() { poke(a.stuck) }).Stop()
	return a.send(m)
}

// poke leaves a signal in a channel of one place.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
