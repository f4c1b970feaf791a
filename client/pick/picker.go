package pick

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/loadplane/loadplane/client/pick/credit"
)

// Bounds and defaults of Options.
const (
	// DefaultK is how many candidates PowerOfK draws.
	DefaultK = 2
	// MaxK bounds K.
	MaxK = 16
	// DefaultMinFresh is the least share of fresh workers.
	DefaultMinFresh = 0.5
	// DefaultServiceTime is a guess at how long a request runs.
	DefaultServiceTime = 10 * time.Second
)

// Score is a router's own judgement of a candidate; the least score wins. It
// must not change the candidate, must give the same score when called again,
// and may be called from several goroutines at once. False or NaN says that it
// cannot tell; then open requests decide for all.
type Score func(c *PolicyCandidate, l credit.Local, r Request) (float64, bool)

// Options set up a Picker. The zero value is ready to use.
type Options struct {
	// Policy is how candidates are compared.
	Policy Policy
	// K is how many candidates are drawn at random to be compared, at most
	// MaxK; 0 is DefaultK for PowerOfK, and all for Custom. Other policies
	// compare all, and refuse it.
	K int
	// Score is the score of Custom, and of no other policy.
	Score Score
	// PerRank picks among DP ranks in place of workers.
	PerRank bool
	// FailClosed picks fresh candidates only. Otherwise, where fewer than
	// MinFresh of the pool's workers are fresh, all that are not unreachable
	// or draining are ranked by the requests that this process has there.
	FailClosed bool
	// MinFresh is a share above 0, at most 1; 0 is DefaultMinFresh.
	MinFresh float64
	// ServiceTime is how long a request runs, for ExpectedWait; 0 is
	// DefaultServiceTime.
	ServiceTime time.Duration
	// Rand returns 64 random bits. It must be safe for several goroutines; nil
	// is the random source of the process.
	Rand func() uint64
	// Now reads the local clock; nil is time.Now.
	Now func() time.Time
}

func (o *Options) validate() error {
	switch {
	case o.Policy >= numPolicies:
		return fmt.Errorf("%w: Policy %d", ErrOption, o.Policy)
	case o.K < 0 || o.K > MaxK:
		return fmt.Errorf("%w: K %d, at most %d", ErrOption, o.K, MaxK)
	case o.K > 0 && o.Policy != PowerOfK && o.Policy != Custom:
		return fmt.Errorf("%w: K %d with %s, which compares all", ErrOption, o.K, o.Policy)
	case (o.Score != nil) != (o.Policy == Custom):
		return fmt.Errorf("%w: Score goes with Custom, the policy is %s", ErrOption, o.Policy)
	case !(o.MinFresh >= 0 && o.MinFresh <= 1):
		return fmt.Errorf("%w: MinFresh %v, 0 to 1", ErrOption, o.MinFresh)
	case o.ServiceTime < 0:
		return fmt.Errorf("%w: ServiceTime %v", ErrOption, o.ServiceTime)
	}
	return nil
}

func (o *Options) fill() {
	if o.K == 0 && o.Policy == PowerOfK {
		o.K = DefaultK
	}
	if o.MinFresh == 0 {
		o.MinFresh = DefaultMinFresh
	}
	if o.ServiceTime == 0 {
		o.ServiceTime = DefaultServiceTime
	}
	if o.Rand == nil {
		o.Rand = rand.Uint64
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Request is what is known of a request. It is a plain value.
type Request struct {
	// PromptTokens is the length of the prompt; 0 is not known.
	PromptTokens int64
	// Avoid names what was tried already. A target without a rank is the
	// worker with all its ranks.
	Avoid []credit.Target
}

// Choice is where a request should go. It is a plain value.
type Choice struct {
	// Target is the worker, and the DP rank or NoRank.
	credit.Target
	// URL is the base URL of the worker's engine.
	URL string
	// Policy is that of the picker, Field the number that decided, and Score
	// its value with the credit. The least score won, with FieldFree the
	// largest.
	Policy Policy
	Field  Field
	Score  float64
	// Fallback says that local load decided in place of reported load, Reason
	// why; it is empty otherwise.
	Fallback bool
	Reason   Reason
}

// Picker chooses by one policy. It is immutable: its methods may be called
// from any goroutine.
type Picker struct{ options Options }

// NewPicker returns a Picker. An error wraps ErrOption and names the option.
func NewPicker(o Options) (*Picker, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	o.fill()
	return &Picker{o}, nil
}

// Pick chooses a candidate of the table for a request. It counts nothing: the
// caller passes the Target to credit.Ledger.Dispatch. An error is one of the errors of
// this package, of type *Error. It allocates nothing, but for the columns
// that the first scan of a table makes.
func (p *Picker) Pick(t *Table, r Request) (Choice, error) {
	now := p.options.Now()
	t.ledger.Expire(now)
	q := query{picker: p, section: t.part(p.options.PerRank), role: t.role, request: r}
	if q.section.all == 0 {
		return Choice{}, ErrNoCandidates
	}
	q.spans = q.section.live(now)
	share := float64(q.section.freshWorkers(q.spans)) / float64(q.section.all)
	if p.options.FailClosed || share >= p.options.MinFresh {
		if q.spans == 0 {
			return Choice{}, ErrNoneFresh
		}
		return q.fresh()
	}
	if q.spans = q.section.open(now); q.spans == 0 {
		return Choice{}, ErrNoneReachable
	}
	return q.byLocal(ReasonFewFresh)
}

// Pair is the choice for a request that is prefilled by one worker and decoded
// by another. It is a plain value.
type Pair struct {
	Prefill, Decode Choice
}

// PickPair chooses from both pools of a request whose prefill and decode are
// apart. Both tables must be of one view. An error wraps one of the errors of
// this package and names the pool.
func (p *Picker) PickPair(prefill, decode *Table, r Request) (Pair, error) {
	a, err := p.Pick(prefill, r)
	if err != nil {
		return Pair{}, fmt.Errorf("prefill: %w", err)
	}
	b, err := p.Pick(decode, r)
	if err != nil {
		return Pair{}, fmt.Errorf("decode: %w", err)
	}
	return Pair{a, b}, nil
}
