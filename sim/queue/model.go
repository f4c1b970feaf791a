package queue

import (
	"math"
	"math/rand/v2"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
)

// What a simulated rank can hold.
const (
	// CapacityTokens is the KV cache of a rank in tokens.
	CapacityTokens = 131_072
	// MaxRunning is the most requests that a rank runs at once.
	MaxRunning = 48
)

// MaxStep is the longest time that a model moves at once.
const MaxStep = 10 * time.Second

const (
	rolePrefill = pb.WorkerType_WORKER_TYPE_PREFILL
	roleDecode  = pb.WorkerType_WORKER_TYPE_DECODE
)

// How a simulated rank works.
const (
	maxWaiting        = 256     // further arrivals are turned away
	decodeRate        = 40.0    // tokens a second and running request
	prefillRate       = 15_000. // uncached tokens a second
	transferRate      = 60_000. // tokens a second into a decode rank
	holdTokens        = 12      // decodeRate x 0.3 s: a prefilled request leaves after its transfer
	modelSlice        = 50 * time.Millisecond
	hotFactor         = 2.2
	burstFactor       = 2.5
	slowPeriodSeconds = 90.0
)

// request is one request in a rank. Tokens are whole, progress is not.
type request struct {
	prompt   int64
	cached   int64   // of prompt
	uncached float64 // tokens still to prefill or to receive
	output   int64
	done     float64 // tokens generated
	ticket   *Ticket // nil where nobody waits for it
}

func (q *request) held() int64 { return q.prompt + min(q.output, int64(q.done)) }

// rank is the queueing model of one data-parallel rank. running is at most
// MaxRunning, and reserved, the tokens that the running requests can come to
// hold, at most CapacityTokens.
type rank struct {
	rng      *rand.Rand
	role     pb.WorkerType
	phase    float64
	waiting  []request
	running  []request
	reserved int64
	burst    window

	genRate, prefillRate, hitRate float64

	counters  Counters
	generated float64
}

// Config is what a Model needs. It is a plain value.
type Config struct {
	// Role is the part of a request's life that the engine serves.
	Role pb.WorkerType
	// Ranks is the number of data-parallel ranks, at least 1.
	Ranks int
	// Seed and Stream make the load repeatable.
	Seed, Stream uint64
	// Quiet leaves out the requests that the model makes up.
	Quiet bool
}

// Model is the load of one engine. It keeps no clock and is not safe for
// concurrent use; equal seeds and equal steps give equal loads.
type Model struct {
	rng     *rand.Rand
	ranks   []*rank
	quiet   bool
	elapsed float64 // seconds
	hot     window
	hotRank int
	next    int // rank of AnyRank
}

// window is something that begins now and then and lasts a while.
type window struct {
	until, next float64
}

// step says whether the window is open at t, and whether it just opened.
func (w *window) step(t float64, rng *rand.Rand, gap, length float64) (open, opened bool) {
	if w.next == 0 {
		w.next = gap * (0.5 + rng.Float64())
	}
	if t >= w.next {
		w.until = t + length*(0.5+rng.Float64())
		w.next = w.until + gap*(0.5+rng.Float64())
		opened = true
	}
	return t < w.until, opened
}

// New returns a model of ranks that are idle.
func New(c Config) *Model {
	m := &Model{rng: rand.New(rand.NewPCG(c.Seed, c.Stream)), quiet: c.Quiet}
	for range c.Ranks {
		m.ranks = append(m.ranks, &rank{
			rng:         rand.New(rand.NewPCG(m.rng.Uint64(), m.rng.Uint64())),
			role:        c.Role,
			phase:       m.rng.Float64() * 2 * math.Pi,
			prefillRate: prefillRate,
		})
	}
	return m
}

// Step moves the model by dt, MaxStep at most.
func (m *Model) Step(dt time.Duration) {
	for dt = min(dt, MaxStep); dt > 0; dt -= modelSlice {
		m.slice(min(dt, modelSlice).Seconds())
	}
}

func (m *Model) slice(dt float64) {
	m.elapsed += dt
	open, opened := m.hot.step(m.elapsed, m.rng, 40, 10)
	if opened {
		m.hotRank = m.rng.IntN(len(m.ranks))
	}
	for i, r := range m.ranks {
		factor := 1 + 0.35*math.Sin(2*math.Pi*m.elapsed/slowPeriodSeconds+r.phase)
		if open && i == m.hotRank {
			factor *= hotFactor
		}
		if burst, _ := r.burst.step(m.elapsed, r.rng, 30, 4); burst {
			factor *= burstFactor
		}
		if !m.quiet {
			r.arrive(factor * dt * r.arrivalRate())
		}
		r.prefill(dt)
		r.decode(dt)
	}
}

// arrivalRate is the mean number of requests a second.
func (r *rank) arrivalRate() float64 {
	switch r.role {
	case rolePrefill:
		return 9
	case roleDecode:
		return 5
	default:
		return 4.5
	}
}

func (r *rank) arrive(mean float64) {
	for range poisson(r.rng, mean) {
		if len(r.waiting) >= maxWaiting {
			return
		}
		r.waiting = append(r.waiting, r.newRequest())
	}
}

func (r *rank) newRequest() request {
	prompt := min(16_384, 64+int64(r.rng.ExpFloat64()*1_400))
	output := min(2_048, 16+int64(r.rng.ExpFloat64()*230))
	if r.role == rolePrefill {
		output = holdTokens
	}
	hit := 0.8 * r.rng.Float64()
	uncached := math.Ceil(float64(prompt) * (1 - hit))
	if r.role == roleDecode {
		uncached = float64(prompt)
	}
	return request{prompt: prompt, cached: prompt - int64(uncached), uncached: uncached, output: output}
}

// prefill works on the waiting requests in order and starts those that are
// done, as long as there are slots and tokens for them.
func (r *rank) prefill(dt float64) {
	rate := prefillRate
	if r.role == roleDecode {
		rate = transferRate
	}
	budget := rate * dt
	spent := 0.0
	for len(r.waiting) > 0 && spent < budget {
		head := &r.waiting[0]
		need := head.prompt + head.output
		if len(r.running) >= MaxRunning || r.reserved+need > CapacityTokens {
			break
		}
		part := min(head.uncached, budget-spent)
		head.uncached -= part
		spent += part
		if head.uncached > 0 {
			break
		}
		r.start(*head)
		r.waiting = append(r.waiting[:0], r.waiting[1:]...)
	}
	if spent > 0 {
		r.counters.PrefillBusy += seconds(spent / rate)
		r.prefillRate = smooth(r.prefillRate, rate*(0.7+0.2*r.rng.Float64()))
	}
}

func (r *rank) start(q request) {
	r.running = append(r.running, q)
	r.reserved += q.prompt + q.output
	r.counters.PromptTokens += q.prompt
	r.counters.CachedTokens += q.cached
	if q.ticket == nil { // Nothing of a caller's prompt is cached.
		r.hitRate = smooth(r.hitRate, 0.8*r.rng.Float64())
	}
}

// decode moves the running requests on and ends those with all their output.
func (r *rank) decode(dt float64) {
	if len(r.running) == 0 {
		return
	}
	kept := r.running[:0]
	produced := float64(len(r.running)) * decodeRate
	for _, q := range r.running {
		before := q.done
		q.done += decodeRate * dt
		r.generated += min(q.done, float64(q.output)) - before
		q.ticket.note(&q)
		if q.done >= float64(q.output) {
			r.reserved -= q.prompt + q.output
			r.counters.Finished++
			continue
		}
		kept = append(kept, q)
	}
	r.running = kept
	r.counters.DecodeBusy += seconds(dt)
	r.genRate = smooth(r.genRate, produced)
}

func smooth(old, now float64) float64 { return 0.8*old + 0.2*now }

func poisson(rng *rand.Rand, mean float64) int {
	limit, n := math.Exp(-mean), 0
	for p := rng.Float64(); p > limit; p *= rng.Float64() {
		n++
	}
	return n
}

// Load returns the values of all ranks as sampled at unixMs.
func (m *Model) Load(unixMs int64) []*pb.RankLoad {
	loads := make([]*pb.RankLoad, len(m.ranks))
	for i, r := range m.ranks {
		loads[i] = r.load()
		loads[i].DpRank = int32(i)
		loads[i].SnapshotTimeUnixMs = unixMs
	}
	return loads
}

func (r *rank) load() *pb.RankLoad {
	var used, queued int64
	var uncached float64
	for i := range r.running {
		used += r.usedBy(&r.running[i])
	}
	for i := range r.waiting {
		queued += r.waiting[i].prompt
		uncached += math.Ceil(r.waiting[i].uncached)
	}
	usage := round(float64(used)/CapacityTokens, 1e4)
	load := &pb.RankLoad{
		NumRunningReqs:           int64(len(r.running)),
		NumWaitingReqs:           int64(len(r.waiting)),
		NumWaitingUncachedTokens: int64(uncached),
		NumUsedTokens:            used,
		NumTotalTokens:           used + queued,
		MaxTotalNumTokens:        CapacityTokens,
		MaxRunningRequests:       MaxRunning,
		TokenUsage:               usage,
		GenThroughput:            round(r.genRate, 1e2),
		CacheHitRate:             round(r.hitRate, 1e4),
		Utilization:              max(usage, round(float64(len(r.running))/MaxRunning, 1e4)),
		PrefillThroughput:        round(r.prefillRate, 1e2),
	}
	r.fit(load)
	return load
}

// usedBy is what a request holds; a prefill rank generates nothing.
func (r *rank) usedBy(q *request) int64 {
	if r.role == rolePrefill {
		return q.prompt
	}
	return q.held()
}

// fit drops what an engine of the role does not have.
func (r *rank) fit(load *pb.RankLoad) {
	switch r.role {
	case rolePrefill:
		load.GenThroughput = 0
	case roleDecode:
		load.NumWaitingUncachedTokens = 0
		load.PrefillThroughput = 0
		load.CacheHitRate = 0
	}
}

func round(v, scale float64) float64 { return math.Round(v*scale) / scale }
