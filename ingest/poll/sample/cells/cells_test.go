package cells

import (
	"math"
	"testing"

	"github.com/loadplane/loadplane/store"
)

func TestReject(t *testing.T) {
	for _, c := range []struct {
		to   Input
		v    float64
		want store.Reason
	}{
		{Running, 0, ""}, {Running, 27, ""}, {Running, 1 << 50, ""}, {Running, 1<<50 + 1, ReasonAboveLimit},
		{Running, 1.5, ReasonNotWhole}, {Running, -1, ReasonNegative}, {Running, math.NaN(), ReasonNotFinite},
		{Usage, math.Inf(1), ReasonNotFinite}, {Usage, math.Inf(-1), ReasonNotFinite}, {Usage, 4, ""}, {Usage, 4.5, ReasonAboveLimit},
		{Utilization, 5, ReasonAboveLimit}, {HitRate, 87.5, ""}, {GenRate, 1e12, ""}, {GenRate, 2e12, ReasonAboveLimit},
		{Generated, 0.5, ""}, {Generated, 1e17, ReasonAboveLimit}, {SampleTime, 1.8e9, ""}, {BlockTokens, 0.5, ReasonNotWhole},
	} {
		if got := Reject(c.to, c.v); got != c.want {
			t.Errorf("%g for input %d is rejected as %q, want %q", c.v, c.to, got, c.want)
		}
	}
}

func TestPage(t *testing.T) {
	var p Page
	p.Begin([]string{"m"}, 2)
	r := p.Add(3)
	p.Set(r, Running, "a", 5)
	p.Set(r, Used, "b", -1)
	p.Count(ReasonNotWhole, 0)
	p.OneRank()
	if want := (Cell{Known, 5, "a"}); r.In[Running] != want || !r.Load() {
		t.Errorf("cell %+v, want %+v", r.In[Running], want)
	}
	if want := (Cell{Unusable, 0, "b"}); r.In[Used] != want || len(p.Odd) != 1 || p.Odd[ReasonNegative] != 1 {
		t.Errorf("cell %+v, counted %v", r.In[Used], p.Odd)
	}
	if !p.RanksUnknown || !p.Partial() {
		t.Error("two ranks on one page are not noted")
	}
	p.Begin(nil, 1)
	p.OneRank()
	if len(p.Ranks) != 0 || len(p.Odd) != 0 || p.RanksUnknown || p.Served != nil {
		t.Errorf("page %+v after Begin", p)
	}
	r = p.Add(0)
	p.Set(r, GenRate, "c", 5)
	p.Set(r, Capacity, "d", 5)
	if r.Load() {
		t.Error("a throughput and a capacity are load")
	}
}

func TestPartial(t *testing.T) {
	for _, c := range []struct {
		name         string
		size, listed int
		gaps, want   bool
	}{
		{"all", 2, 2, false, false},
		{"fewer", 3, 2, false, true},
		{"more", 1, 2, false, false},
		{"unknown size", 0, 2, false, false},
		{"a gap", 0, 2, true, true},
	} {
		var p Page
		p.Begin(nil, c.size)
		for i := range c.listed {
			p.Add(int32(i))
		}
		p.Gaps = c.gaps
		if p.Partial() != c.want {
			t.Errorf("%s: partial is %t", c.name, p.Partial())
		}
	}
}
