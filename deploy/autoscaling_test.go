package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	fencedQuery = regexp.MustCompile("(?s)```promql\n(.*?)```")
	kedaQuery   = regexp.MustCompile(`(?s)query: >-\n(.*?)` + "```")
	between     = regexp.MustCompile(`\s+|([()])`)
)

// autoscalingQuery returns the query of the page, which has it twice.
func autoscalingQuery(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "docs", "autoscaling.md"))
	if err != nil {
		t.Fatal(err)
	}
	plain, inKEDA := fencedQuery.FindSubmatch(page), kedaQuery.FindSubmatch(page)
	if plain == nil || inKEDA == nil {
		t.Fatal("the page has no query, or no trigger with it")
	}
	same := func(q []byte) string { return between.ReplaceAllString(string(q), "$1") }
	if same(plain[1]) != same(inKEDA[1]) {
		t.Errorf("the queries differ: %s and %s", same(plain[1]), same(inKEDA[1]))
	}
	return string(plain[1])
}

// exporter is what a plane exports of a pool; below 0 for no series.
type exporter struct{ running, waiting, fresh, expected, warming int }

// series writes what Prometheus has of a plane.
func (e exporter) series(instance int) string {
	var b strings.Builder
	pool := fmt.Sprintf(`model="my-model",role="decode",instance="%d"`, instance)
	for _, s := range []struct {
		name, labels string
		value        int
	}{
		{"pool_running_requests", pool, e.running}, {"pool_waiting_requests", pool, e.waiting},
		{"pool_fresh", pool, e.fresh}, {"pool_expected", pool, e.expected},
		{"warming", fmt.Sprintf(`instance="%d"`, instance), e.warming},
	} {
		if s.value >= 0 {
			fmt.Fprintf(&b, "  - {series: 'loadplane_api_%s{%s}', values: '%d'}\n", s.name, s.labels, s.value)
		}
	}
	return b.String()
}

// TestAutoscalingQuery runs the query of the page on what planes export.
func TestAutoscalingQuery(t *testing.T) {
	query := autoscalingQuery(t)
	for _, c := range []struct {
		name   string
		planes []exporter
		want   int // below 0 for no sample
	}{
		{"one plane", []exporter{{6, 3, 4, 4, 0}}, 9},
		{"two planes are not added", []exporter{{6, 3, 4, 4, 0}, {6, 2, 4, 4, 0}}, 9},
		{"no demand", []exporter{{0, 0, 4, 4, 0}}, 0},
		{"too few fresh", []exporter{{60, 3, 3, 4, 0}}, -1},
		{"too few fresh in one", []exporter{{60, 3, 3, 4, 0}, {6, 2, 4, 4, 0}}, 8},
		{"one is warming", []exporter{{60, 3, 4, 4, 1}, {6, 2, 4, 4, 0}}, 8},
		{"waiting requests unknown", []exporter{{60, -1, 4, 4, 0}}, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			input := ""
			for i, e := range c.planes {
				input += e.series(i)
			}
			samples := "[]"
			if c.want >= 0 {
				samples = fmt.Sprintf(`[{labels: 'demand{model="my-model",role="decode"}', value: %d}]`, c.want)
			}
			write(t, filepath.Join(dir, "rules.yaml"), fmt.Sprintf("groups:\n- name: g\n  rules:\n  - record: demand\n    expr: %q\n", query))
			write(t, filepath.Join(dir, "test.yaml"), fmt.Sprintf(
				"rule_files: [rules.yaml]\ntests:\n- interval: 1m\n  input_series:\n%s  promql_expr_test:\n  - {expr: demand, eval_time: 0m, exp_samples: %s}\n", input, samples))
			promtool(t, dir, "test", "rules", "test.yaml")
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
