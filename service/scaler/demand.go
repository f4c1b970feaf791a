package scaler

import (
	"fmt"
	"math"
	"slices"

	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// refusal is why a request has no answer. It is immutable.
type refusal struct {
	reason store.Reason
	text   string
}

func refuse(reason store.Reason, format string, args ...any) *refusal {
	return &refusal{reason, fmt.Sprintf(format, args...)}
}

// refusalCodes are the codes of the wire.
var refusalCodes = map[store.Reason]codes.Code{
	ReasonUnknownKey:     codes.InvalidArgument,
	ReasonMissingKey:     codes.InvalidArgument,
	ReasonBadValue:       codes.InvalidArgument,
	ReasonOtherMetric:    codes.InvalidArgument,
	ReasonNoPool:         codes.NotFound,
	ReasonViewWarming:    codes.Unavailable,
	ReasonLowCoverage:    codes.Unavailable,
	ReasonValueUnknown:   codes.Unavailable,
	ReasonTooManyScalers: codes.ResourceExhausted,
}

// status returns what the wire says.
func (r *refusal) status() error { return status.Error(refusalCodes[r.reason], r.text) }

// aggregate returns what is known of a trigger's pool, out of a view.
func (t trigger) aggregate(view *snapshot.View) (*snapshot.Pool, *refusal) {
	if view.Warming {
		return nil, refuse(ReasonViewWarming, "the plane has started and did not hear every worker yet")
	}
	i := slices.IndexFunc(view.Pools, func(p *snapshot.Pool) bool { return p.Key == t.pool })
	if i < 0 {
		return nil, refuse(ReasonNoPool, "no worker serves model %q in role %s", t.pool.Model, t.pool.Role)
	}
	p := view.Pools[i]
	if c, ok := p.Coverage(); !ok || c < t.minCoverage || p.Aggregate == nil {
		return nil, refuse(ReasonLowCoverage, "%d of %d workers of model %q in role %s are fresh", p.Fresh, p.Expected, t.pool.Model, t.pool.Role)
	}
	return p, nil
}

// value returns the value of a trigger's metric over the fresh workers.
func (t trigger) value(view *snapshot.View) (float64, *refusal) {
	p, refused := t.aggregate(view)
	if refused != nil {
		return 0, refused
	}
	v, ok := valueOf(p.Aggregate, t.measure)
	if !ok {
		return 0, refuse(ReasonValueUnknown, "a fresh worker of model %q in role %s does not tell its %s", t.pool.Model, t.pool.Role, t.metric)
	}
	return v, nil
}

// active says whether the pool has demand. It is false only where that is
// known of every worker that can be heard.
func (t trigger) active(view *snapshot.View) (bool, *refusal) {
	p, refused := t.aggregate(view)
	if refused != nil {
		return t.unsure(refused)
	}
	requests, ok := valueOf(p.Aggregate, store.SumTotalRequests)
	if !ok {
		return t.unsure(refuse(ReasonValueUnknown, "a fresh worker of model %q in role %s does not tell its requests", t.pool.Model, t.pool.Role))
	}
	return requests > t.activation || p.Fresh < p.Expected, nil
}

// unsure is the answer where demand is not known.
func (t trigger) unsure(why *refusal) (bool, *refusal) {
	if t.wakes {
		return true, nil
	}
	return false, why
}

// valueOf returns a number of a pool and whether it is known. A queue by a
// throughput of 0 is shown as 0 elsewhere, as upstream does; here it is not
// known.
func valueOf(a *store.Aggregate, s store.Sum) (float64, bool) {
	if s == store.SumQueuePressure && stuck(a) {
		return 0, false
	}
	if store.Sums[s].Float {
		v, ok := a.Float(s)
		return v, ok && !math.IsNaN(v) && !math.IsInf(v, 0)
	}
	n, ok := a.Count(s)
	return float64(n), ok
}

// stuck says that tokens wait and none is generated.
func stuck(a *store.Aggregate) bool {
	waiting, _ := a.Count(store.SumWaitingUncachedTokens)
	generated, ok := a.Float(store.SumGenThroughput)
	return waiting > 0 && ok && generated == 0
}

// whole rounds up, so that a little demand is not none.
func whole(v float64) int64 { return int64(math.Ceil(min(v, 1<<62))) }
