package metrics

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

// TestPages starts the planes once and looks at their pages.
func TestPages(t *testing.T) {
	workers := runFleets(t)
	a, router := pages(t, workers)
	b, _ := pages(t, workers)
	t.Run("bug 66: promtool takes the page", func(t *testing.T) { checkPage(t, a) })
	t.Run("each name has one HELP and one TYPE", func(t *testing.T) { checkHeads(t, a) })
	t.Run("the fleet is on the page", func(t *testing.T) { checkFleet(t, parse(t, a)) })
	t.Run("alerts and dashboards ask for what there is", func(t *testing.T) {
		checkNames(t, parse(t, a), parse(t, router))
	})
	t.Run("bug 65: two replicas count an engine once", func(t *testing.T) { checkReplicas(t, parse(t, a), parse(t, b)) })
}

// promtool runs Prometheus' own tool. Where it is not installed the test is
// skipped, unless PROMTOOL is "required".
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("PROMTOOL") == "required" {
			t.Fatal(err)
		}
		t.Skip("promtool is not installed; PROMTOOL=required makes that a failure")
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// foreign are names of the Go runtime's collector, which are its own.
var foreign = regexp.MustCompile(`(?m)^(# (HELP|TYPE) )?(go|process|promhttp)_.*\n`)

func checkPage(t *testing.T, page string) {
	t.Helper()
	promtool(t, foreign.ReplaceAllString(page, ""), "check", "metrics")
}

func checkHeads(t *testing.T, page string) {
	t.Helper()
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# (HELP|TYPE) \w+`).FindAllString(page, -1) {
		if seen[m] {
			t.Errorf("%s twice", m)
		}
		seen[m] = true
	}
	if len(seen) < 200 {
		t.Errorf("%d heads on a whole page", len(seen))
	}
}

// families are the metrics of a page, by name.
type families map[string]*dto.MetricFamily

func parse(t *testing.T, page string) families {
	t.Helper()
	p := expfmt.NewTextParser(model.UTF8Validation)
	all, err := p.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// labels returns the values that a label has.
func (f families) labels(name, label string) []string {
	values := map[string]bool{}
	for _, m := range f[name].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == label {
				values[l.GetValue()] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(values))
}

// checkFleet checks that the page is of the fleet that the test wants to see.
func checkFleet(t *testing.T, f families) {
	t.Helper()
	if models := f.labels("loadplane_api_pool_fresh", "model"); !slices.Equal(models, []string{"model-a", "model-b"}) {
		t.Errorf("models %q", models)
	}
	if roles := f.labels("loadplane_api_pool_fresh", "role"); len(roles) != 3 {
		t.Errorf("roles %q", roles)
	}
	if n := len(f["loadplane_worker_info"].GetMetric()); n != engines() {
		t.Errorf("%d workers with series, want %d", n, engines())
	}
	if dialects := f.labels("loadplane_worker_info", "dialect"); !slices.Equal(dialects, []string{"loadstat", "monitor", "poll", "push"}) {
		t.Errorf("dialects %q", dialects)
	}
	if r := f.labels("loadplane_rank_running_requests", "dp_rank"); len(r) != ranks {
		t.Errorf("ranks %q", r)
	}
	if v := f.labels("loadplane_build_info", "version"); !slices.Equal(v, []string{"1.2.3"}) {
		t.Errorf("version %q", v)
	}
	for _, name := range []string{
		"loadplane_store_report_age_seconds", "loadplane_store_sample_age_seconds", "loadplane_store_receipt_to_publish_seconds",
		"loadplane_api_publish_to_send_seconds", "loadplane_store_commit_seconds",
	} {
		if n := f[name].GetMetric()[0].GetHistogram().GetSampleCount(); n == 0 {
			t.Errorf("%s saw nothing", name)
		}
	}
}

// unborn are counters with a label that have no series before the first event,
// none of which happened.
var unborn = []string{
	"loadplane_registry_refused_total", "loadplane_push_reports_refused_total", "loadplane_native_reports_refused_total",
	"loadplane_monitor_reports_refused_total", "loadplane_ingest_refused_total", "loadplane_access_refused_total",
	"loadplane_native_registrations_refused_total", "loadplane_registry_lease_events_total",
}

// asked returns what the alerts and the dashboards ask for, each with where it
// stands.
func asked(t *testing.T) map[string]string {
	t.Helper()
	exprs := map[string]string{}
	files, err := filepath.Glob("../../deploy/grafana/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		for title, list := range targets(t, file) {
			for i, expr := range list {
				exprs[fmt.Sprintf("%s %s %d", filepath.Base(file), title, i)] = expr
			}
		}
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	text, err := os.ReadFile("../../deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			exprs[r.Alert] = r.Expr
		}
	}
	return exprs
}

// targets returns the expressions of a dashboard by the title of their panel.
func targets(t *testing.T, file string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	byTitle := map[string][]string{}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			byTitle[p.Title] = append(byTitle[p.Title], target.Expr)
		}
	}
	return byTitle
}

var name = regexp.MustCompile(`\b(loadplane|process|go)_\w+`)

func checkNames(t *testing.T, pages ...families) {
	t.Helper()
	known := map[string]bool{}
	for _, page := range pages {
		for n, f := range page {
			known[n] = true
			if f.GetType() == dto.MetricType_HISTOGRAM {
				known[n+"_bucket"], known[n+"_sum"], known[n+"_count"] = true, true, true
			}
		}
	}
	all := asked(t)
	for where, expr := range all {
		for _, n := range name.FindAllString(expr, -1) {
			if !known[n] && !slices.Contains(unborn, n) {
				t.Errorf("%s asks for %s, which is on no page", where, n)
			}
		}
	}
	for _, n := range unborn {
		if !strings.Contains(strings.Join(slices.Collect(maps.Values(all)), "\n"), n) {
			t.Errorf("nobody asks for %s", n)
		}
	}
}

// A test of rules, for promtool.
type (
	ruleTests struct {
		Tests []ruleTest `yaml:"tests"`
	}
	ruleTest struct {
		Interval string     `yaml:"interval"`
		Input    []input    `yaml:"input_series"`
		Exprs    []exprTest `yaml:"promql_expr_test"`
	}
	input struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	}
	exprTest struct {
		Expr    string  `yaml:"expr"`
		At      string  `yaml:"eval_time"`
		Samples []point `yaml:"exp_samples"`
	}
	point struct {
		Labels string  `yaml:"labels"`
		Value  float64 `yaml:"value"`
	}
)

// checkReplicas gives Prometheus the pages of two replicas and asks what the
// panels of the dashboards ask.
func checkReplicas(t *testing.T, replicas ...families) {
	t.Helper()
	test := ruleTest{Interval: "1m"}
	for i, page := range replicas {
		test.Input = append(test.Input, series(page, fmt.Sprintf(`job="loadplane",instance="replica-%d"`, i))...)
	}
	plane, workers := targets(t, "../../deploy/grafana/loadplane.json"), targets(t, "../../deploy/grafana/loadplane-workers.json")
	fresh := point{`{freshness="fresh"}`, float64(engines())}
	none := func(f string) point { return point{fmt.Sprintf(`{freshness=%q}`, f), 0} }
	states := []point{fresh, none("stale"), none("missing"), none("unreachable")}
	for _, c := range []struct {
		expr string
		want []point
	}{
		{plane["Workers"][0], states},
		{plane["Workers by freshness"][0], states},
		{plane["Workers by source"][0], []point{{`{source="flag"}`, float64(engines())}, {`{source="registration"}`, 0}}},
		{plane["Replicas ready"][0], []point{{"{}", 2}}},
		{plane["Coverage"][0], []point{{"{}", 1}}},
		{workers["Workers shown"][0], []point{{"{}", float64(engines())}}},
	} {
		test.Exprs = append(test.Exprs, exprTest{strings.NewReplacer("$job", "loadplane").Replace(c.expr), "1m", c.want})
	}
	text, err := yaml.Marshal(ruleTests{[]ruleTest{test}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "replicas.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "", "test", "rules", file)
}

// series returns the gauges of a page as Prometheus has them after a scrape.
func series(page families, target string) (all []input) {
	for _, n := range slices.Sorted(maps.Keys(page)) {
		if page[n].GetType() != dto.MetricType_GAUGE {
			continue
		}
		for _, m := range page[n].GetMetric() {
			var s bytes.Buffer
			s.WriteString(n + "{" + target)
			for _, l := range m.GetLabel() {
				fmt.Fprintf(&s, ",%s=%q", l.GetName(), l.GetValue())
			}
			s.WriteString("}")
			value := strconv.FormatFloat(m.GetGauge().GetValue(), 'f', -1, 64)
			all = append(all, input{s.String(), value + " " + value})
		}
	}
	return all
}
