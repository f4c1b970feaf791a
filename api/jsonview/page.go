package jsonview

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/loadplane/loadplane/store/snapshot"
)

// disabled is the snapshot where there is no discovery source.
const disabled = `{"enabled":false,"version":0,"captured_at":null,"workers":[]}`

// lastUpstreamField is the highest number of a rank field that SGLang's router
// shows.
const lastUpstreamField = 14

// layout is the order of numbers in JSON: those that SGLang's router shows,
// in its order, then ours. It is immutable.
type layout struct {
	fields, upstreamFields []store.Field
	sums, upstreamSums     []store.Sum
}

func newLayout() layout {
	var l layout
	for f := range store.NumFields {
		l.fields = append(l.fields, f)
	}
	slices.SortFunc(l.fields, func(a, b store.Field) int {
		return cmp.Compare(store.Fields[a].Number, store.Fields[b].Number)
	})
	for s := range store.NumSums {
		l.sums = append(l.sums, s)
	}
	l.upstreamFields = slices.DeleteFunc(slices.Clone(l.fields), func(f store.Field) bool {
		return store.Fields[f].Number > lastUpstreamField
	})
	l.upstreamSums = slices.DeleteFunc(slices.Clone(l.sums), func(s store.Sum) bool {
		return !store.Sums[s].Upstream
	})
	return l
}

// Encoder writes views as JSON. It is immutable and safe for concurrent use.
type Encoder struct {
	clock    *store.Clock
	stale    time.Duration
	serverID string
	layout   layout
}

// New returns an encoder for the views of a store with these options. The
// server id is shown in snapshots.
func New(opts store.Options, serverID string) *Encoder {
	return &Encoder{clock: opts.Clock, stale: opts.StaleAfter, serverID: serverID, layout: newLayout()}
}

// page is one view at one time. It is for one goroutine.
type page struct {
	view *snapshot.View
	// now and wall are one reading of both clocks.
	now   store.Instant
	wall  time.Time
	stale time.Duration
	// upstream leaves out all that SGLang's router does not show, and what it
	// cannot parse.
	upstream bool
	// brief leaves out the ranks.
	brief  bool
	fields []store.Field
	sums   []store.Sum
}

func (e *Encoder) page(v *snapshot.View, s Shape) *page {
	j := &page{
		view: v, now: e.clock.Now(), wall: time.Now(), stale: e.stale, upstream: s.Upstream, brief: s.Brief,
		fields: e.layout.fields, sums: e.layout.sums,
	}
	if s.Upstream {
		j.fields, j.sums = e.layout.upstreamFields, e.layout.upstreamSums
	}
	return j
}

// Shape says how a snapshot is shown. It is a plain value.
type Shape struct {
	// Upstream shows only the keys that SGLang's router shows: a worker of
	// which a number is unknown has no load, and an unknown prefill throughput
	// is 0.
	Upstream bool
	// Brief leaves out the ranks: they are null, or, in the upstream shape, an
	// empty list.
	Brief bool
}

// Snapshot returns the whole view.
func (e *Encoder) Snapshot(v *snapshot.View, s Shape) []byte {
	if !v.Enabled {
		return []byte(disabled)
	}
	j := e.page(v, s)
	b := strconv.AppendUint([]byte(`{"enabled":true,"version":`), v.Version, 10)
	b = appendTime(append(b, `,"captured_at":`...), j.wall)
	if !s.Upstream {
		b = j.warming(append(j.lineage(append(b, ',')), ','))
		b = appendTime(append(b, `,"published_at":`...), v.Published)
		b = appendString(append(b, `,"server_id":`...), e.serverID)
		b = strconv.AppendInt(append(b, `,"stale_after_ms":`...), e.stale.Milliseconds(), 10)
	}
	b = j.workers(append(b, `,"workers":`...))
	if !s.Upstream {
		b = j.pools(append(b, `,"pools":`...))
	}
	return append(b, '}')
}

// Line is one message of a watch. It is a plain value.
type Line struct {
	// Type is shown as it is.
	Type string
	View *snapshot.View
	// Brief leaves out the ranks: they are null.
	Brief bool
	// Since is the tick after which receipts are shown; 0 for all.
	Since uint64
	// Entered is the version after which a worker that changed may have
	// entered the filter, so that its receipt is shown; 0 for none.
	Entered uint64
	// Whole says that all workers and pools are shown.
	Whole bool
	// Base is the version against which the changes are shown; 0 where they
	// are not.
	Base uint64
	// MinInterval is the shortest time between two changes that are sent; it
	// is shown where it is above 0.
	MinInterval time.Duration
	// Reason says why the watch ends; empty where it goes on.
	Reason string
	// ReconnectWithin is shown beside Reason.
	ReconnectWithin time.Duration
}

// Line returns l with a line feed at its end.
func (e *Encoder) Line(l Line) []byte {
	j := e.page(l.View, Shape{Brief: l.Brief})
	b := appendString([]byte(`{"type":`), l.Type)
	b = j.lineage(append(b, ','))
	b = strconv.AppendUint(append(b, `,"version":`...), l.View.Version, 10)
	b = j.warming(append(b, ','))
	b = appendTime(append(b, `,"server_time":`...), j.wall)
	b = j.liveness(append(b, `,"liveness":`...), l.Since, l.Entered)
	if l.MinInterval > 0 {
		b = strconv.AppendInt(append(b, `,"min_interval_ms":`...), l.MinInterval.Milliseconds(), 10)
	}
	switch {
	case l.Whole:
		b = j.workers(append(b, `,"workers":`...))
		b = j.pools(append(b, `,"pools":`...))
	case l.Base > 0:
		b = j.delta(b, l.Base)
	}
	if l.Reason != "" {
		b = appendString(append(b, `,"reason":`...), l.Reason)
		b = strconv.AppendInt(append(b, `,"reconnect_within_ms":`...), l.ReconnectWithin.Milliseconds(), 10)
	}
	return append(b, '}', '\n')
}

// lineage appends the keys that say which history the version is of.
func (j *page) lineage(b []byte) []byte {
	b = appendString(append(b, `"lineage":`...), j.view.Lineage)
	return strconv.AppendUint(append(b, `,"epoch":`...), j.view.Epoch, 10)
}

func (j *page) warming(b []byte) []byte {
	return strconv.AppendBool(append(b, `"warming":`...), j.view.Warming)
}

// delta appends the keys that tell the change from version base.
func (j *page) delta(b []byte, base uint64) []byte {
	var changed []int
	for i, w := range j.view.Workers {
		if w.Version > base {
			changed = append(changed, i)
		}
	}
	b = strconv.AppendUint(append(b, `,"base_version":`...), base, 10)
	b = appendArray(append(b, `,"workers":`...), len(changed), func(b []byte, n int) []byte {
		return j.worker(b, changed[n])
	})
	b = appendEach(append(b, `,"pools":`...), j.view.ChangedPools(base), j.pool)
	b = appendEach(append(b, `,"removed":`...), j.view.Removed(base), func(b []byte, t *store.Tombstone) []byte {
		return appendString(b, t.Worker.ID)
	})
	return appendEach(append(b, `,"removed_pools":`...), j.view.RemovedPools(base), func(b []byte, k snapshot.PoolKey) []byte {
		return append(appendPoolKey(append(b, '{'), k), '}')
	})
}

// workers appends the array of all workers.
func (j *page) workers(b []byte) []byte {
	return appendArray(b, len(j.view.Workers), j.worker)
}

func (j *page) worker(b []byte, i int) []byte {
	w, r := j.view.Workers[i], j.view.Receipts[i]
	freshness, reason := j.judge(w, r)
	b = appendString(append(b, `{"worker_id":`...), w.Worker.ID)
	b = appendString(append(b, `,"url":`...), w.Worker.URL)
	b = appendString(append(b, `,"mode":`...), w.Worker.Role.String())
	b = appendStrings(append(b, `,"model_ids":`...), w.Worker.Models)
	b = appendString(append(b, `,"freshness":`...), freshness.String())
	b = j.report(b, w, r)
	b = j.load(b, w, r)
	if !j.upstream {
		b = appendKnown(append(b, `,"freshness_reason":`...), string(reason))
		b = j.age(b, r)
		b = j.extras(b, w)
	}
	return append(b, '}')
}

// judge returns the freshness of w now: whatever the content says, a worker
// is not fresh once its report ran out.
func (j *page) judge(w *snapshot.Worker, r *snapshot.Receipt) (store.Freshness, store.Reason) {
	if w.Freshness == store.Fresh && r != nil && j.now >= r.ValidUntil {
		return store.Stale, store.ReasonAge
	}
	return w.Freshness, w.Reason
}

// report appends what is known of the last accepted report.
func (j *page) report(b []byte, w *snapshot.Worker, r *snapshot.Receipt) []byte {
	if r == nil {
		return append(b, `,"source_instance_id":null,"sequence_id":null,"report_time_unix_ms":null,`+
			`"last_error":null,"received_at":null,"expires_at":null`...)
	}
	source := ""
	if w.Load != nil {
		source = w.Load.Source
	}
	b = appendKnown(append(b, `,"source_instance_id":`...), source)
	b = strconv.AppendUint(append(b, `,"sequence_id":`...), r.Sequence, 10)
	b = appendFrom0(append(b, `,"report_time_unix_ms":`...), r.ReportUnixMs)
	b = appendKnown(append(b, `,"last_error":`...), r.LastError)
	received := time.UnixMilli(r.ReceivedUnixMs)
	b = appendTime(append(b, `,"received_at":`...), received)
	return appendTime(append(b, `,"expires_at":`...), received.Add(j.stale))
}

// load appends the aggregate and the ranks.
func (j *page) load(b []byte, w *snapshot.Worker, r *snapshot.Receipt) []byte {
	var samples []store.Sample
	if r != nil {
		samples = r.Samples
	}
	if j.upstream && (w.Partial || !timed(samples, len(w.Ranks))) {
		return append(b, `,"aggregate":null,"ranks":[]`...)
	}
	b = j.aggregate(append(b, `,"aggregate":`...), w.Aggregate)
	if j.brief {
		return j.noRanks(append(b, `,"ranks":`...))
	}
	return appendArray(append(b, `,"ranks":`...), len(w.Ranks), func(b []byte, i int) []byte {
		sampled := int64(-1)
		if i < len(samples) {
			sampled = samples[i].TimeUnixMs
		}
		return j.rank(b, &w.Ranks[i], sampled)
	})
}

// noRanks appends what stands for ranks that were not asked for. SGLang's
// router always shows a list.
func (j *page) noRanks(b []byte) []byte {
	if j.upstream {
		return append(b, "[]"...)
	}
	return append(b, "null"...)
}

// timed says whether the sample time of every rank is known.
func timed(samples []store.Sample, ranks int) bool {
	return len(samples) >= ranks && !slices.ContainsFunc(samples, func(s store.Sample) bool { return s.TimeUnixMs < 0 })
}

func (j *page) rank(b []byte, r *store.Rank, sampled int64) []byte {
	b = strconv.AppendInt(append(b, `{"dp_rank":`...), int64(r.DPRank), 10)
	b = appendFrom0(append(b, `,"snapshot_time_unix_ms":`...), sampled)
	for _, f := range j.fields {
		info := store.Fields[f]
		b = appendKey(b, info.Name)
		if info.Float {
			v, ok := r.Float(f)
			b = j.float(b, v, ok, f == store.PrefillThroughput)
			continue
		}
		b = appendCount(b, r.Count, f)
	}
	return append(b, '}')
}

// aggregate appends an aggregate of a worker or of a pool.
func (j *page) aggregate(b []byte, a *store.Aggregate) []byte {
	if a == nil {
		return append(b, "null"...)
	}
	b = strconv.AppendInt(append(b, `{"rank_count":`...), int64(a.Ranks), 10)
	for _, s := range j.sums {
		info := store.Sums[s]
		b = appendKey(b, info.Name)
		if info.Float {
			v, ok := a.Float(s)
			b = j.float(b, v, ok, s == store.SumPrefillThroughput)
			continue
		}
		b = appendCount(b, a.Count, s)
	}
	if !j.upstream {
		b = appendRank(append(b, `,"hottest_rank":`...), a.HottestRank, a.HottestBy != "")
		b = appendKnown(append(b, `,"hottest_rank_reason":`...), a.HottestBy)
	}
	return append(b, '}')
}

// float appends a float. SGLang's router has no way to say that the prefill
// throughput is unknown, so there it is 0.
func (j *page) float(b []byte, v float64, known, prefill bool) []byte {
	if !known && prefill && j.upstream {
		v, known = 0, true
	}
	return appendFloat(b, v, known)
}

// age appends the keys that count from the receipt.
func (j *page) age(b []byte, r *snapshot.Receipt) []byte {
	if r == nil {
		return append(b, `,"age_ms":null,"valid_for_ms":null`...)
	}
	b = strconv.AppendInt(append(b, `,"age_ms":`...), max(0, j.now.Sub(r.Received).Milliseconds()), 10)
	return strconv.AppendInt(append(b, `,"valid_for_ms":`...), max(0, r.ValidUntil.Sub(j.now).Milliseconds()), 10)
}

func (j *page) extras(b []byte, w *snapshot.Worker) []byte {
	b = appendString(append(b, `,"dialect":`...), w.Worker.Dialect.String())
	b = appendKnown(append(b, `,"zone":`...), w.Worker.Zone)
	b = appendLabels(append(b, `,"labels":`...), w.Worker.Labels)
	b = strconv.AppendBool(append(b, `,"draining":`...), w.Worker.Draining)
	b = strconv.AppendBool(append(b, `,"partial":`...), w.Partial)
	return appendStrings(append(b, `,"flags":`...), w.Flags.Words())
}

// pools appends the array of all pools.
func (j *page) pools(b []byte) []byte {
	return appendEach(b, slices.Values(j.view.Pools), j.pool)
}

func (j *page) pool(b []byte, p *snapshot.Pool) []byte {
	b = appendPoolKey(append(b, '{'), p.Key)
	for _, n := range []struct {
		key string
		v   int
	}{
		{"workers", p.Workers}, {"fresh", p.Fresh}, {"stale", p.Stale},
		{"missing", p.Missing}, {"unreachable", p.Unreachable},
		{"expected", p.Expected}, {"heard", p.Heard},
	} {
		b = strconv.AppendInt(appendKey(b, n.key), int64(n.v), 10)
	}
	coverage, ok := p.Coverage()
	b = appendFloat(append(b, `,"coverage":`...), coverage, ok)
	b = j.aggregate(append(b, `,"aggregate":`...), p.Aggregate)
	b = appendKnown(append(b, `,"hottest_worker_id":`...), p.HottestWorker)
	b = appendRank(append(b, `,"hottest_rank":`...), p.HottestRank, p.HottestWorker != "")
	b = appendFloat(append(b, `,"token_usage_imbalance":`...), p.TokenUsageImbalance, p.TokenUsageImbalance >= 0)
	b = appendFloat(append(b, `,"request_imbalance":`...), p.RequestImbalance, p.RequestImbalance >= 0)
	return append(b, '}')
}

// appendPoolKey appends the keys that name a pool.
func appendPoolKey(b []byte, k snapshot.PoolKey) []byte {
	b = appendKnown(append(b, `"model":`...), k.Model)
	return appendString(append(b, `,"mode":`...), k.Role.String())
}

// liveness appends the array of the receipts that a reader lacks.
func (j *page) liveness(b []byte, since, entered uint64) []byte {
	moved := slices.Collect(j.view.Lacking(since, entered))
	return appendArray(b, len(moved), func(b []byte, n int) []byte {
		w, r := j.view.Workers[moved[n]], j.view.Receipts[moved[n]]
		b = appendString(append(b, `{"worker_id":`...), w.Worker.ID)
		b = strconv.AppendUint(append(b, `,"sequence_id":`...), r.Sequence, 10)
		b = appendFrom0(append(b, `,"report_time_unix_ms":`...), r.ReportUnixMs)
		b = appendFrom0(append(b, `,"oldest_sample_unix_ms":`...), r.OldestSampleUnixMs)
		b = appendKnown(append(b, `,"last_error":`...), r.LastError)
		return append(j.age(b, r), '}')
	})
}
