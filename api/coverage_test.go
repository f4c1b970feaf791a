package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// pooled is a worker of a pool.
func pooled(id, model string, role store.Role) *store.Worker {
	w := newWorker(id)
	w.Models, w.Role = []string{model}, role
	return w
}

// wantPools checks all series of the coverage of pools, which are written
// "expected heard fresh model role".
func (p *plane) wantPools(lines ...string) {
	p.Helper()
	got := []string{}
	for i, name := range []string{"expected", "heard", "fresh"} {
		samples := p.series("loadplane_api_pool_" + name)
		if i == 0 {
			got = make([]string, len(samples))
		}
		if len(samples) != len(got) {
			p.Fatalf("%d series of %s, %d of expected", len(samples), name, len(got))
		}
		for j, s := range samples {
			got[j] += fmt.Sprintf("%v ", s.value)
			if name == "fresh" {
				got[j] += strings.Join(s.labels, " ")
			}
		}
	}
	slices.Sort(got)
	slices.Sort(lines)
	if !slices.Equal(got, lines) {
		p.Errorf("pools\n got %q\nwant %q", got, lines)
	}
}

// sample is one series of a metric, with the values of its labels.
type sample struct {
	labels []string
	value  float64
}

func (p *plane) series(name string) (all []sample) {
	p.Helper()
	families, err := p.reg.Gather()
	if err != nil {
		p.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != name {
				continue
			}
			s := sample{value: m.GetGauge().GetValue()}
			for _, l := range m.GetLabel() {
				s.labels = append(s.labels, l.GetValue())
			}
			all = append(all, s)
		}
	}
	return all
}

// Coverage is by pool in the metrics and over all pools in /readyz, goes with
// the pool, and never decides about readiness.
func TestCoverage(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		silent, none := pooled("c:1", "llama", store.RoleDecode), pooled("d:1", "llama", store.RoleDecode)
		none.NoEngine = true
		nameless := newWorker("e:1")
		nameless.Models = nil
		p.add(pooled("a:1", "qwen3", store.RoleRegular), pooled("b:1", "qwen3", store.RoleRegular), silent, none, nameless)
		p.report("a:1", 1, 1, 1)
		p.after(staleAfter / 2)
		p.report("b:1", 1, 1, 1)
		p.after(settle)
		p.wantPools("2 2 2 qwen3 plain", "1 0 0 llama decode", "1 0 0  plain")
		p.after(staleAfter/2 + time.Second/2)
		p.wantPools("2 2 1 qwen3 plain", "1 0 0 llama decode", "1 0 0  plain")
		p.after(10 * time.Second)
		if a := p.ops("/readyz"); a.StatusCode != http.StatusOK || !strings.Contains(a.body, `"pools":{"expected":4,"heard":2,"fresh":0}`) {
			p.Errorf("readyz: %d %s", a.StatusCode, a.body)
		}
		p.remove("c:1")
		p.remove("d:1")
		p.after(settle)
		p.wantPools("2 2 0 qwen3 plain", "1 0 0  plain")
		if problems, err := testutil.GatherAndLint(p.reg); err != nil || len(problems) > 0 {
			p.Errorf("problems %v, error %v", problems, err)
		}
	})
}

// Names of models that are odd make good labels, and those that end up as one
// label are one series.
func TestCoverageLabels(t *testing.T) {
	long := strings.Repeat("x", 127) + "é"
	inBubble(t, nil, func(p *plane) {
		for i, model := range []string{"a\nb", "a\x00b", `a"b`, "org/模型-7b:v1", long + "1", long + "2", "bad\xff"} {
			p.add(pooled(fmt.Sprintf("w%d:1", i), model, store.RolePrefill))
		}
		p.after(settle)
		p.wantPools("3 0 0 a_b prefill", "1 0 0 org/模型-7b:v1 prefill", "2 0 0 "+strings.Repeat("x", 127)+" prefill", "1 0 0 bad_ prefill")
	})
}

// However many pools there are, the largest have series of their own, and none
// is left out of the sums.
func TestCoverageIsBounded(t *testing.T) {
	inBubble(t, nil, func(p *plane) {
		for i := range 150 {
			role := []store.Role{store.RoleRegular, store.RoleDecode}[i%2]
			p.add(pooled(fmt.Sprintf("w%d:1", i), fmt.Sprintf("m%03d", i), role))
		}
		p.add(pooled("x:1", "zz", store.RoleRegular), pooled("y:1", "zz", store.RoleRegular), pooled("z:1", "other", store.RoleRegular))
		p.after(settle)
		all := p.series("loadplane_api_pool_expected")
		sum, by := 0.0, map[string]float64{}
		for _, s := range all {
			sum += s.value
			by[strings.Join(s.labels, " ")] = s.value
		}
		// Of those with one worker the first 99 by name have their own.
		if len(all) != 102 || sum != 153 || by["zz plain"] != 2 || by["m098 plain"] != 1 || by["other plain"] != 26 || by["other decode"] != 26 {
			p.Errorf("%d series, sum %v, %v", len(all), sum, by)
		}
	})
}
