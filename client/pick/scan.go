package pick

import (
	"math"
	"sync/atomic"
)

// The scans below are the costly part of a pick among thousands of ranks, and
// are written for it: a span is read in steps of eight, without a branch that
// depends on its numbers.

// leastCount returns a candidate whose value and credit sum to the least, at
// random where several have it; -1 where the request avoids all. A span that
// has the least is drawn first, by how many candidates of it have it, then one
// of these.
func (q *query) leastCount(values []int64, credits [][]atomic.Int64) (best int, least int64) {
	least = math.MaxInt64
	chosen, start, total, at := -1, 0, 0, 0
	for n, cells := range credits[:q.spans] {
		column := values[at : at+len(cells)]
		if low := lowestSum(column, cells); low <= least {
			low, ties := q.ties(at, column, cells, low)
			if low < least {
				least, total = low, 0
			}
			if low == least && ties > 0 {
				if total += ties; ties == total || q.below(total) < ties {
					chosen, start = n, at
				}
			}
		}
		at += len(cells)
	}
	if chosen < 0 {
		return -1, 0
	}
	cells := credits[chosen]
	best, least, _ = q.leastOfSpan(start, values[start:start+len(cells)], cells)
	return best, least
}

// ties returns the least sum that a candidate of a span from at on has and the
// request does not avoid, and how many have it. low is the least of all of them.
func (q *query) ties(at int, values []int64, credits []atomic.Int64, low int64) (least int64, ties int) {
	if len(q.request.Avoid) == 0 {
		return low, max(1, countSum(values, credits, low)) // others dispatch meanwhile
	}
	_, least, ties = q.leastOfSpan(at, values, credits)
	return least, ties
}

// leastOfSpan returns a candidate of a span from at on that has the least sum
// of those that are not avoided, at random where several have it, which it
// counts; -1 for none.
func (q *query) leastOfSpan(at int, values []int64, credits []atomic.Int64) (best int, least int64, ties int) {
	best, least = -1, math.MaxInt64
	for j := range credits {
		v := values[j] + credits[j].Load()
		if v > least || q.avoided(at+j) {
			continue
		}
		if v < least {
			least, ties = v, 0
		}
		if ties++; ties == 1 || q.below(ties) == 0 {
			best = at + j
		}
	}
	return best, least, ties
}

// step is how many candidates are read at once.
const step = 8

// lowestSum returns the least sum of a value and its credit.
func lowestSum(values []int64, credits []atomic.Int64) int64 {
	a, b := int64(math.MaxInt64), int64(math.MaxInt64)
	i := 0
	for ; i+step <= len(credits); i += step {
		v, c := (*[step]int64)(values[i:]), (*[step]atomic.Int64)(credits[i:])
		a = min(a, v[0]+c[0].Load())
		b = min(b, v[1]+c[1].Load())
		a = min(a, v[2]+c[2].Load())
		b = min(b, v[3]+c[3].Load())
		a = min(a, v[4]+c[4].Load())
		b = min(b, v[5]+c[5].Load())
		a = min(a, v[6]+c[6].Load())
		b = min(b, v[7]+c[7].Load())
	}
	for ; i < len(credits); i++ {
		a = min(a, values[i]+credits[i].Load())
	}
	return min(a, b)
}

// countSum returns how many sums of a value and its credit are low.
func countSum(values []int64, credits []atomic.Int64, low int64) (n int) {
	for i := range credits {
		if values[i]+credits[i].Load() == low {
			n++
		}
	}
	return n
}

// least is leastCount for costs of any kind. Where several have the least, it
// looks again for the one that is drawn; where costs changed meanwhile, it takes
// the last that it meets.
func (q *query) least(cost func(p place) float64) (best int, least float64) {
	best = -1
	ties := 0
	for p := range q.places {
		v := cost(p)
		if v > least && ties > 0 || q.avoided(p.i) {
			continue
		}
		if v < least || ties == 0 {
			best, least, ties = p.i, v, 0
		}
		ties++
	}
	if ties < 2 {
		return best, least
	}
	skip := q.below(ties)
	for p := range q.places {
		if cost(p) > least || q.avoided(p.i) {
			continue
		}
		if best = p.i; skip == 0 {
			break
		}
		skip--
	}
	return best, least
}

// places yields all eligible candidates.
func (q *query) places(yield func(place) bool) {
	p := place{}
	for p.span = range q.spans {
		p.at = 0
		for end := q.section.end(p.span + 1); p.i < end; p.i++ {
			if !yield(p) {
				return
			}
			p.at++
		}
	}
}
