package rules

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/store"
)

// operations is the page whose tables list what the code has.
const operations = "docs/operations.md"

func TestOperationsListsFlags(t *testing.T)     { hold(t, listed(flagRows, flagNames)) }
func TestOperationsListsMetrics(t *testing.T)   { hold(t, listed(metricRows, metricNames)) }
func TestOperationsListsReasons(t *testing.T)   { hold(t, listed(reasonRows, reasonWords)) }
func TestOperationsListsFlagWords(t *testing.T) { hold(t, listed(valueFlagRows, valueFlagWords)) }

// TestOperationsTablesAreNotEmpty guards the readers of the code: one that
// finds nothing would agree with a page that lists nothing.
func TestOperationsTablesAreNotEmpty(t *testing.T) {
	tr, err := checkout()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		read inventory
		has  string
	}{
		"flags":       {flagNames, "--workers-file"},
		"metrics":     {metricNames, "loadplane_store_commits_total"},
		"reasons":     {reasonWords, "duplicate_origin"},
		"value flags": {valueFlagWords, "suspect"},
	} {
		names, faults := c.read(tr)
		if !slices.Contains(names, c.has) || len(faults) > 0 {
			t.Errorf("%s of the code: %q lacks %s, or faults %q", name, names, c.has, faults)
		}
	}
}

func TestOperationsRulesCatch(t *testing.T) {
	flags := func(names ...string) string {
		src := "package service\nconst logLevel = \"log-level\"\nfunc f(fs *pflag.FlagSet) {\n"
		for _, n := range names {
			src += "\tfs." + n + "\n"
		}
		return src + "}\n"
	}
	page := func(rows ...string) string {
		return "# Operations\n## Flags\n| flag | meaning |\n|---|---|\n" + strings.Join(rows, "\n") + "\n"
	}
	catch(t, listed(flagRows, flagNames), []breaks{
		{"no page", map[string]string{"service/a.go": flags()}, "docs/operations.md does not exist"},
		{"same", map[string]string{"service/a.go": flags(`String("api-listen", "", "")`), operations: page("| `--api-listen` | x |")}, ""},
		{"with a value", map[string]string{"service/a.go": flags(`DurationVar(&d, "lease", 0, "")`), operations: page("| `--lease 15s` | x |")}, ""},
		{"by constant", map[string]string{"service/a.go": flags(`String(logLevel, "", "")`), operations: page("| `--log-level` | x |")}, ""},
		{"with a short form", map[string]string{"cmd/x/a.go": flags(`StringP("output", "o", "", "")`), operations: page("| `--output`, `-o` | x |")}, ""},
		{"not listed", map[string]string{"service/a.go": flags(`String("api-listen", "", "")`), operations: page()}, "does not list --api-listen"},
		{"not in the code", map[string]string{"service/a.go": flags(), operations: page("| `--lease` | x |")}, "lists --lease, which the code does not have"},
		{"no meaning", map[string]string{"service/a.go": flags(`String("lease", "", "")`), operations: page("| `--lease` | |")}, "says nothing of --lease"},
		{"log attribute", map[string]string{"service/a.go": "package service\nvar _ = slog.String(\"key\", \"v\")\n", operations: page()}, ""},
		{"unknown name", map[string]string{"service/a.go": flags(`String(name(), "", "")`), operations: page()}, "cannot tell the name"},
	})
	catch(t, listed(metricRows, metricNames), []breaks{
		{"literal", map[string]string{"p/a.go": "package p\nvar o = prometheus.CounterOpts{Name: \"loadplane_p_a_total\"}\n", operations: page("| `loadplane_p_a_total` | x |")}, ""},
		{"parts", map[string]string{"p/a.go": "package p\nvar o = prometheus.GaugeOpts{Namespace: \"loadplane\", Subsystem: \"p\", Name: \"a\"}\n", operations: page()}, "does not list loadplane_p_a"},
		{"helper", map[string]string{"p/a.go": helperSource, operations: page("| `loadplane_p_a_total` | x |", "| `loadplane_p_b_total` | x |")}, ""},
		{"helper with a sum", map[string]string{"p/a.go": "package p\nfunc g() {\n\td := func(n string) { prometheus.NewDesc(\"loadplane_p_\"+n, \"\", nil, nil) }\n\td(\"a\")\n}\n", operations: page()}, "does not list loadplane_p_a"},
		{"unknown name", map[string]string{"p/a.go": "package p\nvar o = prometheus.CounterOpts{Name: name()}\n", operations: page()}, "cannot tell the name"},
		{"not in the code", map[string]string{operations: page("| `loadplane_p_a_total` | x |")}, "lists loadplane_p_a_total"},
	})
	decl := "package p\nconst ReasonA store.Reason = \"a_word\"\n"
	reasonPage := "# Operations\n## Reason words\n| word | meaning |\n|---|---|\n| `%s` | x |\n## Others\n| `z` | x |\n"
	catch(t, listed(reasonRows, reasonWords), []breaks{
		{"same", map[string]string{"p/reason.go": decl, operations: fmt.Sprintf(reasonPage, "a_word")}, ""},
		{"other", map[string]string{"p/reason.go": decl, operations: fmt.Sprintf(reasonPage, "b_word")}, "does not list a_word"},
	})
}

const helperSource = `package p

func g() {
	counter := func(help, name string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "loadplane", Subsystem: "p", Name: name})
	}
	counter("Help.", "a_total")
	counter("Help.", "b_total")
}
`

// row is a name that the page lists, and whether it says what it means.
type row struct {
	name string
	said bool
}

// inventory returns names of one kind that the code has, and the places where
// it cannot tell.
type inventory func(*tree) (names, faults []string)

// listed compares rows of the page with the code in both directions.
func listed(rows func(string) []row, code inventory) rule {
	return func(tr *tree) (findings []string) {
		text, ok := tr.files[operations]
		if !ok {
			return []string{operations + " does not exist"}
		}
		names, findings := code(tr)
		said := map[string]bool{}
		for _, r := range rows(text) {
			if !slices.Contains(names, r.name) {
				findings = append(findings, fmt.Sprintf("%s lists %s, which the code does not have", operations, r.name))
			}
			if !r.said {
				findings = append(findings, fmt.Sprintf("%s says nothing of %s", operations, r.name))
			}
			said[r.name] = true
		}
		for _, n := range names {
			if !said[n] {
				findings = append(findings, fmt.Sprintf("%s does not list %s", operations, n))
			}
		}
		return findings
	}
}

var (
	span     = regexp.MustCompile("`([^`]+)`")
	flagSpan = regexp.MustCompile(`^--([a-z][a-z0-9-]*)\b`)
)

// cells calls fn for the first code span of every row of a table, with the
// heading above it and the text of the other cells.
func cells(text string, fn func(heading, name, rest string)) {
	above := ""
	for _, l := range prose(text) {
		if m := heading.FindStringSubmatch(l); m != nil {
			above = strings.ToLower(m[1])
		}
		parts := strings.SplitN(strings.TrimSpace(l), "|", 3)
		if len(parts) < 3 || parts[0] != "" {
			continue
		}
		if m := span.FindStringSubmatch(parts[1]); m != nil {
			fn(above, m[1], strings.Trim(parts[2], "| \t"))
		}
	}
}

// flagRows returns the rows whose first cell begins with two dashes.
func flagRows(text string) (rows []row) {
	cells(text, func(_, name, rest string) {
		if m := flagSpan.FindStringSubmatch(name); m != nil {
			rows = append(rows, row{"--" + m[1], rest != ""})
		}
	})
	return rows
}

// metricRows returns the rows whose first cell begins with a prefix of
// metrics.
func metricRows(text string) (rows []row) {
	cells(text, func(_, name, rest string) {
		if strings.HasPrefix(name, "loadplane_") || strings.HasPrefix(name, "loadreporter_") {
			base, _, _ := strings.Cut(name, "{")
			rows = append(rows, row{base, rest != ""})
		}
	})
	return rows
}

// reasonRows returns the rows below headings that speak of reasons.
func reasonRows(text string) []row { return wordRows(text, "reason") }

// valueFlagRows returns the rows below headings that speak of value flags.
func valueFlagRows(text string) []row { return wordRows(text, "value flag") }

func wordRows(text, topic string) (rows []row) {
	cells(text, func(heading, name, rest string) {
		if strings.Contains(heading, topic) && isWord(name) {
			rows = append(rows, row{name, rest != ""})
		}
	})
	return rows
}

func reasonWords(tr *tree) (words, faults []string) {
	for _, r := range reasons(tr) {
		if !slices.Contains(words, r.word) {
			words = append(words, r.word)
		}
	}
	return words, nil
}

func valueFlagWords(*tree) (words, faults []string) {
	return store.Flag(0xff).Words(), nil
}

// flagMethod are the methods of a flag set that define a flag.
var flagMethod = regexp.MustCompile(`^(Bool|Count|Duration|Float64|IP|IPNet|Int|Int64|String|StringArray|StringSlice|StringToString|Text|Uint|Uint16|Uint32|Uint64)?(Var)?P?$`)

// flagNames returns the flags that the service and the commands define.
func flagNames(tr *tree) (found, faults []string) {
	tr.each(written, func(p *pkg, f *file) {
		if !within(p.dir, "cmd") && !within(p.dir, "service") {
			return
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !definesFlag(call) {
				return true
			}
			name, ok := constant(p, call.Args[flagNameAt(call)])
			if !ok {
				faults = append(faults, tr.at(n, "cannot tell the name of a flag"))
			} else if !slices.Contains(found, "--"+name) {
				found = append(found, "--"+name)
			}
			return true
		})
	})
	return found, faults
}

// definesFlag tells flags by the method and by the last argument but the
// receiver: every definition of a flag has at least a name, a value and a
// usage.
func definesFlag(call *ast.CallExpr) bool {
	x, sel := selector(call.Fun)
	if sel == "" || !flagMethod.MatchString(sel) || x == "slog" || len(call.Args) < 2+flagNameAt(call) {
		return false
	}
	return len(call.Args) >= 3 || strings.HasPrefix(sel, "Count")
}

// flagNameAt returns which argument is the name: the first, or the second
// after a variable.
func flagNameAt(call *ast.CallExpr) int {
	if _, sel := selector(call.Fun); strings.Contains(sel, "Var") {
		return 1
	}
	return 0
}

// constant returns the value of a string literal or of a constant of p.
func constant(p *pkg, e ast.Expr) (string, bool) {
	if s, ok := stringOf(e); ok {
		return s, true
	}
	id, ok := e.(*ast.Ident)
	if !ok {
		return "", false
	}
	for _, f := range p.files {
		for _, d := range f.ast.Decls {
			if s, ok := declared(d, id.Name); ok {
				return s, true
			}
		}
	}
	return "", false
}

// declared returns the string that d gives to a constant.
func declared(d ast.Decl, name string) (string, bool) {
	g, ok := d.(*ast.GenDecl)
	if !ok || g.Tok != token.CONST {
		return "", false
	}
	for _, s := range g.Specs {
		v := s.(*ast.ValueSpec)
		for i, id := range v.Names {
			if id.Name == name && i < len(v.Values) {
				return stringOf(v.Values[i])
			}
		}
	}
	return "", false
}

// metricNames returns the metrics that shipped code defines.
func metricNames(tr *tree) (found, faults []string) {
	tr.each(written, func(p *pkg, f *file) {
		r := metricReader{tr: tr, pkg: p, file: f}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if e := metricName(n); e != nil {
				r.read(n, e)
			}
			return true
		})
		found, faults = append(found, r.found...), append(faults, r.faults...)
	})
	slices.Sort(found)
	return slices.Compact(found), faults
}

// metricName returns the expression of the name where n defines a metric: the
// first argument of prometheus.NewDesc, or its options joined as a sum.
func metricName(n ast.Node) ast.Expr {
	switch n := n.(type) {
	case *ast.CallExpr:
		if x, sel := selector(n.Fun); x == "prometheus" && sel == "NewDesc" && len(n.Args) > 0 {
			return n.Args[0]
		}
	case *ast.CompositeLit:
		x, sel := selector(n.Type)
		if x == "prometheus" && strings.HasSuffix(sel, "Opts") && sel != "ProcessCollectorOpts" {
			return joined(n)
		}
	}
	return nil
}

// joined returns Namespace_Subsystem_Name of metric options as a sum.
func joined(lit *ast.CompositeLit) ast.Expr {
	parts := map[string]ast.Expr{}
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok {
				parts[key.Name] = kv.Value
			}
		}
	}
	name := parts["Name"]
	for _, key := range []string{"Subsystem", "Namespace"} {
		if name != nil && parts[key] != nil {
			under := &ast.BasicLit{Kind: token.STRING, Value: `"_"`}
			name = &ast.BinaryExpr{X: &ast.BinaryExpr{X: parts[key], Op: token.ADD, Y: under}, Op: token.ADD, Y: name}
		}
	}
	return name
}

// metricReader finds the values that the names of a file's metrics take.
type metricReader struct {
	tr     *tree
	pkg    *pkg
	file   *file
	found  []string
	faults []string
}

func (r *metricReader) read(n ast.Node, e ast.Expr) {
	names, ok := r.values(n, e)
	if !ok {
		r.faults = append(r.faults, r.tr.at(n, "cannot tell the name of a metric"))
	}
	r.found = append(r.found, names...)
}

// values returns every value of e, which stands within n: a constant, a sum,
// or a parameter of the function around it, which takes what its calls in the
// same file pass.
func (r *metricReader) values(n ast.Node, e ast.Expr) ([]string, bool) {
	if s, ok := constant(r.pkg, e); ok {
		return []string{s}, true
	}
	switch e := e.(type) {
	case *ast.BinaryExpr:
		left, okLeft := r.values(n, e.X)
		right, okRight := r.values(n, e.Y)
		var sums []string
		for _, a := range left {
			for _, b := range right {
				sums = append(sums, a+b)
			}
		}
		return sums, okLeft && okRight && e.Op == token.ADD
	case *ast.Ident:
		return r.passed(n, e.Name)
	}
	return nil, false
}

// passed returns what calls in the file pass for a parameter of the function
// around n.
func (r *metricReader) passed(n ast.Node, param string) (values []string, ok bool) {
	function, at := enclosing(r.file.ast, n, param)
	if function == "" {
		return nil, false
	}
	ast.Inspect(r.file.ast, func(m ast.Node) bool {
		call, isCall := m.(*ast.CallExpr)
		if !isCall || !callee(call, function) || at >= len(call.Args) {
			return true
		}
		s, known := constant(r.pkg, call.Args[at])
		ok = known
		values = append(values, s)
		return known
	})
	return values, ok
}

func callee(call *ast.CallExpr, function string) bool {
	id, ok := call.Fun.(*ast.Ident)
	return ok && id.Name == function
}

// enclosing returns the name of the innermost function around n that has the
// parameter, and the parameter's position.
func enclosing(f *ast.File, n ast.Node, param string) (name string, at int) {
	ast.Inspect(f, func(m ast.Node) bool {
		if m == nil || m.Pos() > n.Pos() || m.End() < n.End() {
			return m != nil && m.Pos() <= n.Pos() && m.End() >= n.End()
		}
		switch m := m.(type) {
		case *ast.FuncDecl:
			if i, ok := position(m.Type, param); ok {
				name, at = m.Name.Name, i
			}
		case *ast.AssignStmt:
			for i, v := range m.Rhs {
				lit, isFunc := v.(*ast.FuncLit)
				id, isName := m.Lhs[min(i, len(m.Lhs)-1)].(*ast.Ident)
				if isFunc && isName {
					if i, ok := position(lit.Type, param); ok {
						name, at = id.Name, i
					}
				}
			}
		}
		return true
	})
	return name, at
}

func position(t *ast.FuncType, param string) (int, bool) {
	i := 0
	for _, field := range t.Params.List {
		for _, id := range field.Names {
			if id.Name == param {
				return i, true
			}
			i++
		}
	}
	return 0, false
}
