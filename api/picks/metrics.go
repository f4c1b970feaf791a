package picks

import (
	"github.com/loadplane/loadplane/client/pick"
	"github.com/prometheus/client_golang/prometheus"
)

// byPolicy is the result of a pick that the policy made by its own rule.
const byPolicy = "policy"

// metrics are what the package counts. They are safe for concurrent use.
type metrics struct {
	results map[string]prometheus.Counter
	tables  prometheus.Counter
}

func newMetrics(o Options) (*metrics, error) {
	results := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "loadplane_picks_results_total",
		Help: "Picks, by result: policy, or the reason why local load decided; and refused requests, by reason.",
	}, []string{"result"})
	m := &metrics{
		results: make(map[string]prometheus.Counter),
		tables: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "loadplane_picks_tables_total",
			Help: "Tables of candidates that were made; picks of one view and pool share one.",
		}),
	}
	for _, result := range []string{
		byPolicy, string(pick.ReasonFewFresh), string(pick.ReasonNoCommonField), string(pick.ReasonNoCandidates),
		string(pick.ReasonNoneReachable), string(pick.ReasonNoneFresh), string(pick.ReasonAllTried),
		string(o.UnknownParameter), string(o.BadParameter),
	} {
		// It fails only for another number of labels or invalid UTF-8.
		m.results[result] = results.With(prometheus.Labels{"result": result})
	}
	if o.Registerer == nil {
		return m, nil
	}
	if err := o.Registerer.Register(results); err != nil {
		return m, err
	}
	return m, o.Registerer.Register(m.tables)
}

// count counts a result, one of those that the metrics were made with.
func (m *metrics) count(result string) { m.results[result].Inc() }

func resultOf(c pick.Choice) string {
	if c.Fallback {
		return string(c.Reason)
	}
	return byPolicy
}
