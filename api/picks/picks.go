package picks

import (
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/client/pick/credit"
	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"github.com/prometheus/client_golang/prometheus"
)

// AssumedTokens are the prompt tokens that a pick counts with where the
// request does not tell them.
const AssumedTokens = 1000

// Options configure a Picks.
type Options struct {
	// Snapshots is what is picked from. Clock and stale time are those of its
	// store. Required.
	Snapshots *snapshot.Builder
	// UnknownParameter is the reason of a refused query with a key that does
	// not exist, BadParameter that of one with a bad value. Required.
	UnknownParameter, BadParameter store.Reason
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
}

func (o *Options) validate() error {
	switch {
	case o.Snapshots == nil:
		return errors.New("picks: Snapshots is not set")
	case o.UnknownParameter == "" || o.BadParameter == "":
		return errors.New("picks: UnknownParameter or BadParameter is empty")
	}
	return nil
}

// Picks answers GET /v1/pick. It is safe for concurrent use and starts nothing.
type Picks struct {
	opts  Options
	store *store.Store
	clock *store.Clock
	stale time.Duration
	// began is the zero Instant of the clock.
	began   time.Time
	ledger  *credit.Ledger
	pickers map[way]*pick.Picker
	metrics *metrics

	last atomic.Pointer[shot]
	mu   sync.Mutex // one shot or table is made at a time
}

// way is how candidates are compared.
type way struct {
	policy  pick.Policy
	perRank bool
}

// New checks the options and registers the metrics.
func New(o Options) (*Picks, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	of := o.Snapshots.Store().Options()
	p := &Picks{
		opts: o, store: o.Snapshots.Store(), clock: of.Clock, stale: of.StaleAfter,
		began:   time.Now().Add(-time.Duration(of.Clock.Now())),
		ledger:  credit.NewLedger(credit.Options{AssumedTokens: AssumedTokens}),
		pickers: make(map[way]*pick.Picker),
	}
	for policy := range pick.Custom {
		for _, perRank := range []bool{false, true} {
			picker, err := pick.NewPicker(pick.Options{Policy: policy, PerRank: perRank})
			if err != nil {
				return nil, err
			}
			p.pickers[way{policy, perRank}] = picker
		}
	}
	var err error
	p.metrics, err = newMetrics(o)
	return p, err
}

// time returns an instant as the ledger and the tables know it.
func (p *Picks) time(i store.Instant) time.Time { return p.began.Add(time.Duration(i)) }

// ServeHTTP answers one request: 200 with a pick, or with "picks" where more
// than one is asked for; 400 for a query that cannot be understood; 503 with
// the reason where nothing can be picked, and no_candidates is also that of a
// model that no worker has. The view that it picks from may be up to an eighth
// of the stale time old: how long depends on what its tables cost.
func (p *Picks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	q, err := parse(r.URL.RawQuery)
	if err != nil {
		p.refuse(w, err)
		return
	}
	q.credit = q.credit && r.Method == http.MethodGet
	answers, err := p.pick(q)
	if err != nil {
		p.refuse(w, err)
		return
	}
	if q.number > 1 {
		write(w, http.StatusOK, several{answers})
		return
	}
	write(w, http.StatusOK, answers[0])
}

// pick makes one answer or more. They are fewer than asked for only where all
// candidates were lost meanwhile.
func (p *Picks) pick(q query) ([]answer, error) {
	s, table := p.table(q)
	if table == nil {
		return nil, pick.ErrNoCandidates // no worker has the model
	}
	request := pick.Request{PromptTokens: q.tokens}
	var answers []answer
	for range q.number {
		c, err := p.one(q, table, &request)
		if err != nil && len(answers) > 0 {
			break
		}
		if err != nil {
			return nil, err
		}
		p.metrics.count(resultOf(c))
		if q.credit {
			p.ledger.DispatchUntil(c.Target, q.tokens, time.Now().Add(p.stale))
		}
		answers = append(answers, p.answer(s, c))
	}
	return answers, nil
}

// one picks what the request did not get yet, or else anything. Most often the
// first choice is new; to avoid the others from the start costs more.
func (p *Picks) one(q query, table *pick.Table, r *pick.Request) (pick.Choice, error) {
	picker := p.pickers[q.way]
	c, err := picker.Pick(table, pick.Request{PromptTokens: r.PromptTokens})
	if err == nil && slices.Contains(r.Avoid, c.Target) {
		c, err = picker.Pick(table, *r)
	}
	if errors.Is(err, pick.ErrAllTried) {
		r.Avoid = r.Avoid[:0]
		c, err = picker.Pick(table, *r)
	}
	r.Avoid = append(r.Avoid, c.Target)
	return c, err
}
