package sample

import (
	"math"
	"strings"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
	"github.com/loadplane/loadplane/store"
)

// nameUtilization stands for a utilization that was computed.
const nameUtilization = "max(token_usage, num_running_reqs / max_running_requests)"

// Fields that stand for what they are computed from in a Match.
var (
	fieldUsed     = store.Fields[store.NumUsedTokens].Name
	fieldCapacity = store.Fields[store.MaxTotalNumTokens].Name
)

// finish turns the cells of a page that is good into the reading.
func (s *Sampler) finish(at store.Instant) {
	p := &s.page
	s.reading.Process, s.reading.TimeUnixMs = p.Start, p.TimeUnixMs
	s.reading.Asleep, s.reading.Models = p.Asleep, p.Models
	s.reading.Restarted = s.history.open(at, p.Start, p.Ranks)
	s.flag()
	for i := range p.Ranks {
		s.reading.Ranks = append(s.reading.Ranks, ingest.RankReport{})
		d := draft{s: s, c: &p.Ranks[i], out: &s.reading.Ranks[i]}
		d.derive()
	}
	s.match()
	s.reading.Unusable = p.Odd
	s.history.keep(at, p.Start)
	if s.text != nil {
		s.text.Keep()
	}
}

func (s *Sampler) flag() {
	if s.page.Partial() {
		s.reading.Flags |= store.FlagRanksUnknown
	}
	if s.page.Frozen {
		s.reading.Flags |= store.FlagFrozenSeries
	}
	if s.history.unstable > 0 {
		s.reading.Flags |= store.FlagUnstableSource
	}
}

// match lists the names by which fields were found.
func (s *Sampler) match() {
	if s.how == s.shown {
		return
	}
	s.shown, s.reading.Matches = s.how, nil
	for f := range s.how {
		if h := &s.how[f]; h.names[0] != "" {
			s.reading.Matches = append(s.reading.Matches, Match{store.Field(f), h.text()})
		}
	}
}

// draft is one rank while its fields are computed.
type draft struct {
	s   *Sampler
	c   *cells.Rank
	out *ingest.RankReport
	// prev is what the page before said, nil where it is of no use; next is what
	// is kept for the page after.
	prev, next *past
}

func (d *draft) derive() {
	d.out.Rank.DPRank = d.c.Number
	d.uncached()
	if d.s.history.same {
		d.prev = d.s.history.of(d.c.Number)
	}
	d.next = d.s.history.add(d.c)
	d.requests()
	d.queues()
	d.tokens()
	d.throughput()
	d.cache()
	d.utilization()
	d.cumulative()
}

// known returns the value of an input.
func (d *draft) known(i cells.Input) (float64, bool) {
	return d.c.In[i].Value, d.c.In[i].State == cells.Known
}

func (d *draft) name(i cells.Input) string { return d.c.In[i].Name }

// setCount sets a count and notes where it is from.
func (d *draft) setCount(f store.Field, v float64, h how) {
	d.out.Rank.SetCount(f, int64(v))
	d.note(f, h)
}

// setFloat sets a float within its limits and notes where it is from.
func (d *draft) setFloat(f store.Field, v float64, h how) {
	limit := ingest.MaxFloat
	if f == store.TokenUsage || f == store.CacheHitRate || f == store.Utilization {
		limit = ingest.MaxRatio
	}
	if v > limit {
		d.s.page.Count(ReasonAboveLimit, 1)
		return
	}
	d.out.Rank.SetFloat(f, v)
	d.note(f, h)
}

func (d *draft) note(f store.Field, h how) {
	if shown := &d.s.how[f]; shown.names[0] == "" {
		*shown = h
	}
}

// names makes a how of one or two names.
func names(op string, a, b string) how { return how{op: op, names: [5]string{a, b}} }

// copyCount sets a count that the engine says itself.
func (d *draft) copyCount(f store.Field, i cells.Input) {
	if v, ok := d.known(i); ok {
		d.setCount(f, v, names(opNone, d.name(i), ""))
	}
}

// hint returns what the caller knows of a rank. It knows nothing of all ranks
// together.
func (d *draft) hint(v int64) (float64, bool) {
	usable := v > 0 && v <= ingest.MaxCount && !d.s.page.RanksUnknown
	return float64(v), usable
}

// uncached computes the prompt tokens that were not cached, where the engine
// does not count them.
func (d *draft) uncached() {
	all, ok := d.known(cells.Prompt)
	hit, ok2 := d.known(cells.Cached)
	if ok && ok2 && all >= hit && d.c.In[cells.Computed].State == cells.Absent {
		d.c.In[cells.Computed] = cells.Cell{State: cells.Known, Value: all - hit, Name: d.name(cells.Prompt)}
	}
}

func (d *draft) requests() {
	d.copyCount(store.NumRunningReqs, cells.Running)
	most, ok := d.known(cells.MaxRunning)
	h := names(opNone, d.name(cells.MaxRunning), "")
	if !ok {
		most, ok = d.hint(d.s.hints.MaxRunning)
		h = names(opNone, nameHint, "")
	}
	if v, has := d.known(cells.Running); ok && has && v > most {
		d.s.page.Count(ReasonOverBound, 1)
		return
	}
	if ok {
		d.setCount(store.MaxRunningRequests, most, h)
	}
}

// queues sets what waits. Where the engine does not add the queues between
// prefill and decode to it, those of the role are added: bootstrap on prefill
// workers, the others on decode workers; inflight requests were computed
// already. The queues of the other role are zero. (SGLang's load_inquirer.py)
func (d *draft) queues() {
	d.copyCount(store.PrefillBootstrapReqs, cells.Bootstrap)
	d.copyCount(store.PrefillInflightReqs, cells.Inflight)
	d.copyCount(store.DecodePreallocReqs, cells.Prealloc)
	d.copyCount(store.DecodeTransferReqs, cells.Transfer)
	d.copyCount(store.DecodeRetractedReqs, cells.Retracted)
	d.copyCount(store.NumWaitingUncachedTokens, cells.WaitingTokens)
	if d.c.In[cells.Waiting].State != cells.Absent {
		d.copyCount(store.NumWaitingReqs, cells.Waiting)
		return
	}
	sum, h, n := 0.0, how{op: opPlus}, 0
	for _, i := range [...]cells.Input{cells.Queued, cells.Bootstrap, cells.Prealloc, cells.Transfer, cells.Retracted} {
		c := d.c.In[i]
		if c.State == cells.Unusable || c.State == cells.Absent && i == cells.Queued {
			return
		}
		if c.State == cells.Known {
			sum += c.Value
			h.names[n] = c.Name
			n++
		}
	}
	if sum > ingest.MaxCount {
		d.s.page.Count(ReasonAboveLimit, 1)
		return
	}
	d.setCount(store.NumWaitingReqs, sum, h)
}

// tokens sets used tokens, their capacity and the usage.
func (d *draft) tokens() {
	d.copyCount(store.NumTotalTokens, cells.Total)
	most, fromMost, haveMost := d.capacity()
	inUse, from, have := d.used(most, haveMost)
	if have {
		d.setCount(store.NumUsedTokens, inUse, from)
	}
	if have && haveMost && inUse > most {
		d.s.page.Count(ReasonOverBound, 1)
		haveMost = false
	}
	if haveMost {
		d.setCount(store.MaxTotalNumTokens, most, fromMost)
	}
	if v, ok := d.known(cells.Usage); ok {
		d.setFloat(store.TokenUsage, v, names(opNone, d.name(cells.Usage), ""))
	} else if have && haveMost && most > 0 && d.c.In[cells.Usage].State == cells.Absent {
		d.setFloat(store.TokenUsage, inUse/most, names(opOver, fieldUsed, fieldCapacity))
	}
}

func (d *draft) capacity() (float64, how, bool) {
	if v, ok := d.known(cells.Capacity); ok {
		return v, names(opNone, d.name(cells.Capacity), ""), true
	}
	if v, h, ok := d.blocks(cells.MaxBlocks); ok {
		return v, h, true
	}
	v, ok := d.hint(d.s.hints.CapacityTokens)
	return v, names(opNone, nameHint, ""), ok
}

func (d *draft) used(most float64, haveMost bool) (float64, how, bool) {
	if v, ok := d.known(cells.Used); ok {
		return v, names(opNone, d.name(cells.Used), ""), true
	}
	if v, h, ok := d.blocks(cells.UsedBlocks); ok {
		return v, h, true
	}
	v, ok := d.known(cells.Usage)
	if !ok || !haveMost || !d.s.endpoint.rules.usedByUsage || d.c.In[cells.Used].State != cells.Absent {
		return 0, how{}, false
	}
	return min(math.Round(v*most), most), names(opTimes, d.name(cells.Usage), fieldCapacity), true
}

// blocks returns a number of blocks in tokens.
func (d *draft) blocks(i cells.Input) (float64, how, bool) {
	n, ok := d.known(i)
	size, ok2 := d.known(cells.BlockTokens)
	if !ok || !ok2 {
		return 0, how{}, false
	}
	if n*size > ingest.MaxCount {
		d.s.page.Count(ReasonAboveLimit, 1)
		return 0, how{}, false
	}
	return n * size, names(opTimes, d.name(i), d.name(cells.BlockTokens)), true
}

// throughput sets the generated tokens a second and the uncached prompt tokens
// a second of the wall clock. Where the engine times its samples itself, the
// store computes the latter by its clock.
func (d *draft) throughput() {
	counter := cells.Generated
	if d.c.In[counter].State == cells.Absent {
		counter = cells.Finished
	}
	_, counted := d.known(counter)
	if v, ok := d.known(cells.GenRate); ok && (!counted || !d.s.endpoint.rules.countersFirst) {
		if d.idle() {
			v = 0
		}
		d.setFloat(store.GenThroughput, v, names(opNone, d.name(cells.GenRate), ""))
	} else if v, ok := d.rate(counter); ok {
		d.setFloat(store.GenThroughput, v, names(opRate, d.name(counter), ""))
	}
	if d.c.In[cells.SampleTime].State == cells.Known {
		return
	}
	if v, ok := d.rate(cells.Computed); ok {
		h := names(opRate, d.name(cells.Computed), "")
		if d.name(cells.Computed) == d.name(cells.Prompt) {
			h.names[1] = d.name(cells.Cached)
		}
		d.setFloat(store.PrefillThroughputWall, v, h)
	}
}

// idle says that no token was generated since the page before, whatever a
// gauge still shows. A counter of requests that ended says so only where none
// runs. Without a counter none runs on either page, and the gauge stands still.
func (d *draft) idle() bool {
	switch {
	case d.prev == nil:
		return false
	case d.c.In[cells.Generated].State != cells.Absent:
		return d.still(cells.Generated)
	case !none(d.c.In[cells.Running]):
		return false
	case d.c.In[cells.Finished].State != cells.Absent:
		return d.still(cells.Finished)
	}
	return none(d.prev.running) && same(d.prev.gauge, d.c.In[cells.GenRate])
}

// none says that a cell is known to be 0.
func none(c cells.Cell) bool { return c.State == cells.Known && c.Value == 0 }

// still says that a counter has the value of the page before.
func (d *draft) still(i cells.Input) bool {
	return same(d.prev.counters[i-cells.FirstCounter], d.c.In[i])
}

// same says that two cells have one name and one value.
func same(a, b cells.Cell) bool { return alike(a, b) && a.Value == b.Value }

// grown returns by how much a counter grew since the page before.
func (d *draft) grown(i cells.Input) (float64, bool) {
	if d.prev == nil {
		return 0, false
	}
	from, to := d.prev.counters[i-cells.FirstCounter], d.c.In[i]
	return to.Value - from.Value, alike(from, to) && to.Value >= from.Value
}

// rate returns the growth of a counter a second.
func (d *draft) rate(i cells.Input) (float64, bool) {
	v, ok := d.grown(i)
	if !ok || d.s.history.seconds == 0 {
		return 0, false
	}
	return v / d.s.history.seconds, true
}

// cache sets the hit rate: of the last window in which the cache was asked,
// where the engine counts, else as it says.
func (d *draft) cache() {
	_, counted := d.known(cells.Queries)
	if _, ok := d.known(cells.Hits); ok && counted {
		d.window()
		return
	}
	v, ok := d.known(cells.HitRate)
	if !ok {
		return
	}
	if d.s.endpoint.rules.percent && strings.HasSuffix(d.name(cells.Running), oldRunning) {
		if v > 0 && v <= 1 {
			d.s.page.Count(ReasonUnclearUnit, 1)
			return
		}
		v /= 100
	}
	d.setFloat(store.CacheHitRate, v, names(opNone, d.name(cells.HitRate), ""))
}

func (d *draft) window() {
	if d.prev != nil {
		d.next.hit = d.prev.hit
	}
	asked, ok := d.grown(cells.Queries)
	found, ok2 := d.grown(cells.Hits)
	if ok && ok2 && asked > 0 {
		d.next.hit = -1
		if found <= asked {
			d.next.hit = found / asked
		}
	}
	if d.next.hit >= 0 {
		d.setFloat(store.CacheHitRate, d.next.hit, names(opOver, d.name(cells.Hits), d.name(cells.Queries)))
	}
}

func (d *draft) utilization() {
	if v, ok := d.known(cells.Utilization); ok {
		d.setFloat(store.Utilization, v, names(opNone, d.name(cells.Utilization), ""))
		return
	}
	r := &d.out.Rank
	tokens, ok := r.Float(store.TokenUsage)
	now, ok2 := r.Count(store.NumRunningReqs)
	most, ok3 := r.Count(store.MaxRunningRequests)
	if ok && ok2 && ok3 && most > 0 && d.c.In[cells.Utilization].State == cells.Absent {
		d.setFloat(store.Utilization, max(tokens, float64(now)/float64(most)), names(opNone, nameUtilization, ""))
	}
}

// cumulative sets what is not content: the time of the sample and the
// counters. Those of processes that answer by turns are of no use.
func (d *draft) cumulative() {
	if v, ok := d.known(cells.SampleTime); ok {
		d.out.TimeUnixMs = ingest.Known(int64(math.Round(v * 1000)))
	}
	if d.s.history.unstable > 0 {
		return
	}
	d.out.PrefillUncachedTokens = d.counted(cells.Computed)
	d.out.PrefillBusyUs = d.counted(cells.Busy)
	if d.out.GeneratedTokens = d.counted(cells.Generated); !d.out.GeneratedTokens.Known {
		d.out.GeneratedTokens = d.counted(cells.Finished)
	}
}

func (d *draft) counted(i cells.Input) ingest.Int {
	v, ok := d.known(i)
	return ingest.Int{Value: int64(v), Known: ok}
}
