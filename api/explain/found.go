package explain

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/loadplane/loadplane/store"
)

// plane says how the plane itself is.
func (x *explainer) plane() {
	c := check{name: "plane", value: "all workers that are expected were heard or given up", verdict: ok}
	if x.Plane.Warming {
		c.value, c.verdict = "warming: not all workers that are expected were heard", warn
		c.advice = "wait: the plane has just started, and routers keep their last view meanwhile"
	}
	x.add(c)
}

// discovered says where the worker was found, and whether that source works.
func (x *explainer) discovered() {
	c := check{name: "discovered_by", value: x.w.DiscoveredBy, verdict: ok}
	switch {
	case x.Entry.Freshness == store.Missing && (x.w.NoEngine || x.Entry.Reason == store.ReasonNoEngine):
		c.verdict, c.reason = fail, store.ReasonNoEngine
	case x.w.Duplicate:
		c.value += "; another worker with a lower id has the origin " + x.w.Origin
		c.verdict, c.reason = fail, store.ReasonDuplicateOrigin
	default:
		if src, bad := x.badSource(); bad {
			c.value += "; source " + src.Name + ": " + src.Error
			c.verdict, c.advice = warn, "the last list stays in force: repair the source, or changes of it are not seen"
		}
	}
	x.add(c)
}

// badSource returns the first source that lists the worker and cannot deliver.
func (x *explainer) badSource() (store.SourceStatus, bool) {
	for _, by := range strings.Split(x.w.DiscoveredBy, "+") {
		for _, src := range x.Plane.Sources {
			if src.Name == by && src.Error != "" {
				return src, true
			}
		}
	}
	return store.SourceStatus{}, false
}

func (x *explainer) draining() {
	if !x.w.Draining {
		x.add(check{name: "draining", value: "no", verdict: ok})
		return
	}
	x.add(check{
		name: "draining", value: "yes: routers send it no new work", verdict: warn,
		advice: "if it shall work again: loadplane workers drain ID --undo, or undo it where discovery has it from",
	})
}

func (x *explainer) engine() {
	c := check{name: "engine", value: strings.TrimSpace(x.g.Engine + " " + x.g.EngineVersion), verdict: info}
	if c.value == "" {
		c.value, c.verdict = "it was not told yet", unknown
	}
	x.add(c)
}

// dialect says which dialect is in force, and why.
func (x *explainer) dialect() {
	why, word := x.g.DialectWhy, x.w.Dialect.String()
	c := check{name: "dialect", value: word, verdict: ok}
	switch {
	case x.w.Dialect == store.DialectNone:
		c.value, c.verdict = "none (configured): the worker is only listed, nothing is sent to it", warn
		c.advice = "give it another dialect, or none at all for auto, if its load shall be seen"
	case x.w.Dialect == store.DialectUnspecified:
		c.value, c.verdict = "auto, none in force yet: "+cmp.Or(why, "the engine is being asked"), x.undecided()
		if c.verdict != unknown {
			c.reason = x.callReason()
			c.advice = adviceFor(c.reason) + "; ask it by hand: loadplane probe " + x.w.URL
		}
	case strings.HasSuffix(why, ": configured"):
		c.value = word + " (configured)"
	case why != "":
		c.value = word + " (auto): " + why
	}
	x.add(c)
}

// ranks says what is shown of the worker's ranks.
func (x *explainer) ranks() {
	e := x.Entry
	if len(e.Ranks) == 0 {
		x.add(check{name: "ranks", value: "none are known", verdict: unknown})
		return
	}
	c := check{name: "ranks", value: fmt.Sprintf("%d", len(e.Ranks)), verdict: ok}
	if e.Partial {
		text, some := lacking(e.Ranks)
		c.value += ", partial: " + text
		// What no rank tells, an engine of the kind does not tell: nothing is wrong.
		if c.verdict = info; some {
			c.verdict = warn
		}
		c.advice = "sums that need these fields are unknown; the engine's load page does not have them (loadplane probe)"
	}
	x.add(c)
	x.capacity()
	x.flags()
	x.spread()
}

// lacking says which core fields are unknown on which ranks, and whether there
// are some that other ranks tell.
func lacking(ranks []store.Rank) (text string, some bool) {
	var parts []string
	for f, field := range store.Fields {
		if !field.Core {
			continue
		}
		var on []string
		for i := range ranks {
			if !ranks[i].Has(store.Field(f)) {
				on = append(on, fmt.Sprint(ranks[i].DPRank))
			}
		}
		if len(on) > 0 {
			parts = append(parts, field.Name+" "+onRanks(on, len(ranks)))
			some = some || len(on) < len(ranks)
		}
	}
	return strings.Join(parts, ", "), some
}

// onRanks names ranks, at most eight of them.
func onRanks(on []string, all int) string {
	const most = 8
	switch {
	case len(on) == all:
		return "on all ranks"
	case len(on) > most:
		return fmt.Sprintf("on %d ranks", len(on))
	}
	return "on rank " + strings.Join(on, " ")
}

// capacity says whether each rank has room at all.
func (x *explainer) capacity() {
	var none []string
	known := false
	for i := range x.Entry.Ranks {
		r := &x.Entry.Ranks[i]
		tokens, okT := r.Count(store.MaxTotalNumTokens)
		requests, okR := r.Count(store.MaxRunningRequests)
		known = known || okT || okR
		if okT && tokens == 0 || okR && requests == 0 {
			none = append(none, fmt.Sprint(r.DPRank))
		}
	}
	switch {
	case len(none) > 0:
		x.add(check{
			name: "capacity", value: "0 tokens or 0 requests " + onRanks(none, len(x.Entry.Ranks)),
			limit: "above 0", verdict: fail, reason: store.ReasonZeroCapacity,
		})
	case known:
		x.add(check{name: "capacity", value: "every rank that tells has room", limit: "above 0", verdict: ok})
	default:
		x.add(check{name: "capacity", value: "no rank tells its capacity", limit: "above 0", verdict: unknown})
	}
}

// flags says what is odd about the values.
func (x *explainer) flags() {
	words := x.Entry.Flags.Words()
	if len(words) == 0 {
		x.add(check{name: "flags", value: "none", verdict: ok})
		return
	}
	x.add(check{name: "flags", value: strings.Join(words, ", "), verdict: warn, advice: flagAdvice[words[0]]})
}

// spread says which rank is the hottest, and how uneven they are.
func (x *explainer) spread() {
	a := x.Entry.Aggregate
	if a == nil {
		return
	}
	if a.HottestBy != "" {
		value := fmt.Sprintf("rank %d by %s", a.HottestRank, a.HottestBy)
		if usage, known := a.Float(store.SumMaxRankTokenUsage); known && a.HottestBy == store.Fields[store.TokenUsage].Name {
			value += fmt.Sprintf(", %.0f%%", 100*usage)
		}
		x.add(check{name: "hottest_rank", value: value, verdict: info})
	}
	var parts []string
	if v, known := a.Float(store.SumTokenUsageImbalance); known {
		parts = append(parts, fmt.Sprintf("%.2f of token usage", v))
	}
	if v, known := a.Float(store.SumRequestImbalance); known {
		parts = append(parts, fmt.Sprintf("%.2f of requests", v))
	}
	if len(parts) > 0 {
		x.add(check{name: "imbalance", value: strings.Join(parts, ", ") + " (largest over mean)", verdict: info})
	}
}
