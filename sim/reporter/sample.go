package reporter

import (
	"errors"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/queue"
)

// pagePeriod is how old a pull is at most that Sample returns.
const pagePeriod = 20 * time.Millisecond

// Errors of Sample.
var (
	// ErrNoSample: nothing was sampled yet.
	ErrNoSample = errors.New(noSample)
	// ErrSampling: the last pull failed.
	ErrSampling = errors.New(sampleFailure)
)

// Counters are what one rank did since its process started.
type Counters = queue.Counters

// Sample is the load of a process at one moment, as HTTP pages show it. It
// must not be changed.
type Sample struct {
	// Ranks are sorted by rank; each names the time of its sample.
	Ranks []*pb.RankLoad
	// Counters belong to Ranks by their index.
	Counters []Counters
	// Started is when the process started.
	Started time.Time
	// At is now.
	At time.Time
}

// Sample returns the load now. With ErrSampling it is the last good one, with
// ErrNoSample it has no ranks.
func (p *Process) Sample() (Sample, error) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaitLocked(now)
	p.sampleLocked(now, min(pagePeriod, p.periodLocked()))
	s := Sample{Ranks: p.ranks, Counters: p.model.Counters(), Started: p.started, At: now}
	switch {
	case len(p.ranks) == 0:
		return s, ErrNoSample
	case p.failed:
		return s, ErrSampling
	}
	return s, nil
}

// Total sums all ranks, for pages that know none: ratios are means.
func (s Sample) Total() (*pb.RankLoad, Counters) {
	var load pb.RankLoad
	var c Counters
	for i, r := range s.Ranks {
		load.NumRunningReqs += r.NumRunningReqs
		load.NumWaitingReqs += r.NumWaitingReqs
		load.NumUsedTokens += r.NumUsedTokens
		load.MaxTotalNumTokens += r.MaxTotalNumTokens
		load.MaxRunningRequests += r.MaxRunningRequests
		load.TokenUsage += r.TokenUsage / float64(len(s.Ranks))
		load.GenThroughput += r.GenThroughput
		load.PrefillThroughput += r.PrefillThroughput
		load.CacheHitRate += r.CacheHitRate / float64(len(s.Ranks))
		c = c.Plus(s.Counters[i])
	}
	return &load, c
}
