package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The parts of Prometheus' files that are used. Another key is a mistake.
type (
	ruleFile struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	rule struct {
		Alert       string            `yaml:"alert,omitempty"`
		Record      string            `yaml:"record,omitempty"`
		Expr        string            `yaml:"expr"`
		For         string            `yaml:"for,omitempty"`
		Labels      map[string]string `yaml:"labels,omitempty"`
		Annotations map[string]string `yaml:"annotations,omitempty"`
	}
	ruleTests struct {
		RuleFiles []string `yaml:"rule_files"`
		Evaluate  string   `yaml:"evaluation_interval"`
		Tests     []struct {
			Name     string `yaml:"name"`
			Interval string `yaml:"interval"`
			Input    []struct {
				Series string `yaml:"series"`
				Values string `yaml:"values"`
			} `yaml:"input_series"`
			Alerts []struct {
				At       string `yaml:"eval_time"`
				Name     string `yaml:"alertname"`
				Expected []struct {
					Labels      map[string]string `yaml:"exp_labels"`
					Annotations map[string]string `yaml:"exp_annotations"`
				} `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		} `yaml:"tests"`
	}
)

const (
	alertFile     = "prometheus/alerts.yaml"
	alertTestFile = "prometheus/alerts_test.yaml"
)

// promtool runs Prometheus' own tool in a folder. Where it is not installed the
// test is skipped, unless PROMTOOL is "required".
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("PROMTOOL") == "required" {
			t.Fatal(err)
		}
		t.Skip("promtool is not installed; PROMTOOL=required makes that a failure")
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// decode reads a YAML file in which no key may be unknown.
func decode[T any](t *testing.T, name string) (v T) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

// alerts returns the rules of the alert file.
func alerts(t *testing.T) (all []rule) {
	t.Helper()
	for _, g := range decode[ruleFile](t, alertFile).Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("no rules")
	}
	return all
}

func TestPromtoolTakesTheAlerts(t *testing.T) {
	promtool(t, "prometheus", "check", "rules", "alerts.yaml")
}

// The example scrapes the job that the alerts name, and loads them.
func TestPromtoolTakesTheExample(t *testing.T) {
	type example struct {
		Global  map[string]string `yaml:"global"`
		Rules   []string          `yaml:"rule_files"`
		Scrapes []struct {
			Job     string `yaml:"job_name"`
			Targets []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	e := decode[example](t, "../docs/examples/prometheus.yml")
	if len(e.Scrapes) != 1 || e.Scrapes[0].Job != "loadplane" || len(e.Scrapes[0].Targets) == 0 {
		t.Errorf("scrapes %+v", e.Scrapes)
	}
	promtool(t, "../docs/examples", "check", "config", "prometheus.yml")
}

// TestAlertsFireAndAreQuiet runs alerts_test.yaml, in which all engines are seen
// by two replicas.
func TestAlertsFireAndAreQuiet(t *testing.T) {
	promtool(t, "prometheus", "test", "rules", "alerts_test.yaml")
}

// Every alert fires in a test and is quiet in another.
func TestEveryAlertIsTested(t *testing.T) {
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, c := range decode[ruleTests](t, alertTestFile).Tests {
		for _, a := range c.Alerts {
			fires[a.Name] = fires[a.Name] || len(a.Expected) > 0
			quiet[a.Name] = quiet[a.Name] || len(a.Expected) == 0
		}
	}
	names := map[string]bool{}
	for _, r := range alerts(t) {
		if names[r.Alert] || !fires[r.Alert] || !quiet[r.Alert] {
			t.Errorf("%s: twice %t, fires %t, quiet %t", r.Alert, names[r.Alert], fires[r.Alert], quiet[r.Alert])
		}
		names[r.Alert] = true
	}
	for name := range fires {
		if !names[name] {
			t.Errorf("a test of %s, which is no alert", name)
		}
	}
}

// Every alert says how bad it is, what it is, and where the runbook is.
func TestAlertsAreDescribed(t *testing.T) {
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range alerts(t) {
		if !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) {
			t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
		}
		for _, key := range []string{"summary", "description"} {
			if r.Annotations[key] == "" {
				t.Errorf("%s has no %s", r.Alert, key)
			}
		}
		if want := "docs/operations.md#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
		}
		if !regexp.MustCompile("(?m)^#+ `?" + r.Alert + "`?$").Match(page) {
			t.Errorf("docs/operations.md has no heading %s", r.Alert)
		}
	}
}

// dashboard is the part of a dashboard that is tested.
type dashboard struct {
	UID           string `json:"uid"`
	Title         string `json:"title"`
	SchemaVersion int    `json:"schemaVersion"`
	Templating    struct {
		List []struct {
			Name       string `json:"name"`
			Type       string `json:"type"`
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID         int         `json:"id"`
	Type       string      `json:"type"`
	Title      string      `json:"title"`
	Datasource *datasource `json:"datasource"`
	GridPos    struct{ H, W, X, Y int }
	Targets    []struct {
		Expr       string     `json:"expr"`
		RefID      string     `json:"refId"`
		Datasource datasource `json:"datasource"`
	} `json:"targets"`
}

type datasource struct{ Type, UID string }

// dashboards returns the dashboards by the name of their file.
func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob("grafana/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("%q, %v", files, err)
	}
	all := map[string]dashboard{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		all[f] = d
	}
	return all
}

// filled puts values in the place of a dashboard's variables.
var filled = strings.NewReplacer("$__rate_interval", "5m", "$job", "loadplane", "$worker", ".*")

func TestDashboards(t *testing.T) {
	seen := map[string]bool{}
	for file, d := range dashboards(t) {
		if d.UID == "" || seen[d.UID] || d.Title == "" || d.SchemaVersion < 39 {
			t.Errorf("%s: uid %q, title %q, schema %d", file, d.UID, d.Title, d.SchemaVersion)
		}
		seen[d.UID] = true
		if len(d.Templating.List) == 0 || d.Templating.List[0].Type != "datasource" {
			t.Errorf("%s: the data source is no variable", file)
		}
		ids := map[int]bool{}
		for _, p := range d.Panels {
			checkPanel(t, p)
			if ids[p.ID] {
				t.Errorf("%s: panel %d twice", file, p.ID)
			}
			ids[p.ID] = true
		}
		checkPlaces(t, d.Panels)
	}
}

func checkPanel(t *testing.T, p panel) {
	t.Helper()
	if p.Type == "row" {
		return
	}
	want := datasource{"prometheus", "${datasource}"}
	if p.Title == "" || len(p.Targets) == 0 || p.Datasource == nil || *p.Datasource != want {
		t.Errorf("panel %q: %d targets of %v", p.Title, len(p.Targets), p.Datasource)
	}
	for _, target := range p.Targets {
		if target.Datasource != want || !strings.Contains(target.Expr, `job="$job"`) {
			t.Errorf("panel %q asks %v for %s", p.Title, target.Datasource, target.Expr)
		}
	}
}

// checkPlaces checks that no panel lies on another or beyond the 24 columns.
func checkPlaces(t *testing.T, panels []panel) {
	t.Helper()
	taken := map[[2]int]string{}
	for _, p := range panels {
		g := p.GridPos
		if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("panel %q at %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Fatalf("panel %q lies on %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}

// TestPromtoolTakesTheDashboards writes every expression as a recording rule.
func TestPromtoolTakesTheDashboards(t *testing.T) {
	var rules []rule
	for _, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				rules = append(rules, rule{Record: fmt.Sprintf("r%d", len(rules)), Expr: filled.Replace(target.Expr)})
			}
		}
	}
	if len(rules) < 50 {
		t.Fatalf("%d expressions", len(rules))
	}
	var file ruleFile
	file.Groups = append(file.Groups, struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	}{"dashboards", rules})
	text, err := yaml.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rules.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, dir, "check", "rules", "rules.yaml")
}

// perReplica are the names whose values are of a replica, which may be added up
// or kept apart by "instance".
var perReplica = regexp.MustCompile(`^(up|loadplane_api_ready|process_\w+|go_\w+|loadplane_store_stalls_total|loadplane_client_\w+)$`)

var name = regexp.MustCompile(`\b(up|loadplane_\w+|process_\w+|go_\w+)\b[{\[ )=]`)

// TestBug65ReplicasAreNotAddedUp looks at how each expression gathers replicas:
// by the largest or the smallest of them, or with each apart.
func TestBug65ReplicasAreNotAddedUp(t *testing.T) {
	check := func(where, expr string) {
		names := name.FindAllStringSubmatch(expr, -1)
		if len(names) == 0 {
			t.Errorf("%s: no metric in %s", where, expr)
		}
		for _, m := range names {
			if !perReplica.MatchString(m[1]) && !gathers(expr) {
				t.Errorf("%s adds up replicas or repeats them: %s", where, expr)
			}
		}
	}
	for file, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				check(file+" "+p.Title, target.Expr)
			}
		}
	}
	for _, r := range alerts(t) {
		check(r.Alert, r.Expr)
	}
	for _, bad := range []string{`sum(loadplane_api_workers)`, `loadplane_api_workers`, `sum by (freshness) (loadplane_api_workers)`, `max(sum by (model) (loadplane_api_pool_fresh))`} {
		if gathers(bad) {
			t.Errorf("%s is not found", bad)
		}
	}
}

var sums = regexp.MustCompile(`\b(sum|count|avg)(?: by \(([^)]*)\))?`)

// gathers says that every sum is within an instance, or over what a max or min
// gathered, and that there is a max, a min or a label of the instance.
func gathers(expr string) bool {
	for _, at := range sums.FindAllStringSubmatchIndex(expr, -1) {
		by := ""
		if at[4] >= 0 {
			by = expr[at[4]:at[5]]
		}
		rest := strings.TrimLeft(expr[at[1]:], " (")
		if !strings.Contains(by, "instance") && !strings.HasPrefix(rest, "max by (") && !strings.HasPrefix(rest, "increase(loadplane_client_") {
			return false
		}
	}
	return regexp.MustCompile(`\b(max|min)\b|\bby \([^)]*instance`).MatchString(expr)
}
