package scaler

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
)

// The keys of a trigger's metadata that are ours.
const (
	keyModel       = "model"
	keyRole        = "role"
	keyMetric      = "metric"
	keyTarget      = "target"
	keyActivation  = "activation"
	keyMinCoverage = "minCoverage"
	keyUnknown     = "unknown"
)

const (
	// maxNumber bounds a target and an activation, as it does what engines
	// report.
	maxNumber = 1e12
	// minTarget is the least that KEDA hands on: it counts in thousandths.
	minTarget = 0.001
	// maxModelBytes bounds the name of a model, as in reports.
	maxModelBytes = 256
	// defaultMinCoverage is the share of fresh workers below which the view of
	// a pool is not acted on, as it is for picking.
	defaultMinCoverage = 0.5
)

// The values of the key unknown.
const (
	unknownError  = "error"
	unknownActive = "active"
)

// kedaKeys are those of KEDA's own external triggers, which it sends along.
var kedaKeys = []string{"scalerAddress", "enableTLS", "unsafeSsl"}

// measures are the numbers of a pool that a replica more makes smaller, by the
// words of the key metric.
var measures = map[string]store.Sum{
	"waiting_requests":        store.SumWaitingReqs,
	"running_requests":        store.SumRunningReqs,
	"total_requests":          store.SumTotalRequests,
	"waiting_uncached_tokens": store.SumWaitingUncachedTokens,
	"total_tokens":            store.SumTotalTokens,
	"token_usage":             store.SumWeightedTokenUsage,
	"max_rank_token_usage":    store.SumMaxRankTokenUsage,
	"request_utilization":     store.SumRequestUtilization,
	"queue_pressure":          store.SumQueuePressure,
	"prefill_wait_seconds":    store.SumPrefillWaitSeconds,
}

var roles = map[string]store.Role{
	store.RoleRegular.String(): store.RoleRegular,
	store.RolePrefill.String(): store.RolePrefill,
	store.RoleDecode.String():  store.RoleDecode,
}

// trigger is what an autoscaler wants to know. It is a plain value.
type trigger struct {
	pool snapshot.PoolKey
	// metric is the word of measure.
	metric  string
	measure store.Sum
	// target is the value that a replica is to have.
	target float64
	// activation is how many requests are no demand yet.
	activation float64
	// minCoverage is the share of fresh workers that is needed, above 0 to 1.
	minCoverage float64
	// wakes says that unknown demand counts as demand.
	wakes bool
}

// name is that of the metric in an HPA.
func (t trigger) name() string { return "loadplane-" + strings.ReplaceAll(t.metric, "_", "-") }

// parse reads the metadata of a trigger. It is strict: a key or a value that
// says nothing would scale by something that nobody meant.
func parse(metadata map[string]string) (trigger, *refusal) {
	t := trigger{pool: snapshot.PoolKey{Role: store.RoleRegular}, minCoverage: defaultMinCoverage}
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		if slices.Contains(kedaKeys, key) {
			continue
		}
		read, ok := readers[key]
		if !ok {
			return trigger{}, refuse(ReasonUnknownKey, "scaler metadata: unknown key %.64q; there are %s", key, words(readers))
		}
		if err := read(&t, metadata[key]); err != nil {
			return trigger{}, refuse(ReasonBadValue, "scaler metadata: %s: %v", key, err)
		}
	}
	for _, key := range []string{keyMetric, keyTarget} {
		if _, ok := metadata[key]; !ok {
			return trigger{}, refuse(ReasonMissingKey, "scaler metadata: %s is missing", key)
		}
	}
	return t, nil
}

// readers read the value of a key.
var readers = map[string]func(*trigger, string) error{
	keyModel: func(t *trigger, v string) error {
		if len(v) > maxModelBytes {
			return fmt.Errorf("%d bytes are more than %d", len(v), maxModelBytes)
		}
		t.pool.Model = v
		return nil
	},
	keyRole:   func(t *trigger, v string) (err error) { t.pool.Role, err = oneOf(v, roles); return err },
	keyMetric: func(t *trigger, v string) (err error) { t.metric = v; t.measure, err = oneOf(v, measures); return err },
	keyTarget: func(t *trigger, v string) (err error) { t.target, err = number(v, minTarget, maxNumber); return err },
	keyActivation: func(t *trigger, v string) (err error) {
		t.activation, err = number(v, 0, maxNumber)
		return err
	},
	keyMinCoverage: func(t *trigger, v string) (err error) { t.minCoverage, err = number(v, 0.01, 1); return err },
	keyUnknown: func(t *trigger, v string) (err error) {
		t.wakes, err = oneOf(v, map[string]bool{unknownError: false, unknownActive: true})
		return err
	},
}

func oneOf[T any](v string, allowed map[string]T) (T, error) {
	found, ok := allowed[v]
	if !ok {
		return found, fmt.Errorf("%.64q is not one of %s", v, words(allowed))
	}
	return found, nil
}

func words[T any](m map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// number reads a decimal number within a range. Go's hexadecimal numbers and
// digits with underscores are none.
func number(v string, low, high float64) (float64, error) {
	n, err := strconv.ParseFloat(v, 64)
	if err != nil || strings.ContainsAny(v, "xX_") || math.IsNaN(n) || n < low || n > high {
		return 0, fmt.Errorf("%.64q is not a number from %v to %v", v, low, high)
	}
	return n, nil
}
