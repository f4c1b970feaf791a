package rules

import (
	"fmt"
	"go/ast"
	"go/scanner"
	"go/token"
	"strings"
	"testing"
)

// Limits on shipped code.
const (
	maxFunctionLines = 70
	maxParameters    = 4
	maxPackageLines  = 900
	maxInterfaces    = 5
)

// sizeExceptions maps a folder, or a folder and a function, to the reason why
// it may pass a limit.
var sizeExceptions = map[string]string{
	"api":      "one loop and one gate serve every protocol",
	"registry": "discovery, registration and admission decide under one lock of the worker",
	"store":    "values, decision and committer are one: a part of them cannot be used without the others",
}

func TestFunctionSize(t *testing.T)       { hold(t, functionSize) }
func TestPackageSize(t *testing.T)        { hold(t, packageSize) }
func TestExportedInterfaces(t *testing.T) { hold(t, exportedInterfaces) }
func TestNoSleepInTests(t *testing.T)     { hold(t, sleeps) }
func TestNoInitFunctions(t *testing.T)    { hold(t, initFunctions) }

// TestSizeExceptionsAreNeeded takes the exceptions away and demands a finding
// for each.
func TestSizeExceptionsAreNeeded(t *testing.T) {
	tr, err := checkout()
	if err != nil {
		t.Fatal(err)
	}
	granted := sizeExceptions
	sizeExceptions = nil
	defer func() { sizeExceptions = granted }()
	findings := strings.Join(append(functionSize(tr), packageSize(tr)...), "\n")
	for _, name := range sortedKeys(granted) {
		dir, function, _ := strings.Cut(name, " ")
		if granted[name] == "" || !strings.Contains(findings, dir) || !strings.Contains(findings, function+" ") {
			t.Errorf("exception %q has no reason or is not needed", name)
		}
	}
}

func TestSizeRulesCatch(t *testing.T) {
	src := func(s string) map[string]string { return map[string]string{"p/a.go": "package p\n" + s} }
	body := func(lines int) string { return "func f() {\n" + strings.Repeat("\tg()\n", lines) + "}\n" }
	catch(t, functionSize, []breaks{
		{"long", src(body(69)), "f has 71 lines"},
		{"not long", src(body(68)), ""},
		{"five parameters", src("func f(a, b int, c, d string, e ...int) {}"), "f takes 5 parameters"},
		{"five on a method", src("type t int\nfunc (t) f(int, int, int, int, int) {}"), "f takes 5 parameters"},
		{"four parameters", src("func f(a, b int, c, d string) {}"), ""},
		{"in a test", map[string]string{"p/a_test.go": "package p\n" + body(100)}, ""},
	})
	catch(t, packageSize, []breaks{
		{"over two files", map[string]string{"p/a.go": "package p\n" + body(500), "p/b.go": "package p\n" + body(500)}, "p has 1006 code lines"},
		{"comments and blanks", src(strings.Repeat("// A comment.\n\n", 1000)), ""},
	})
	catch(t, exportedInterfaces, []breaks{
		{"six", src("type (\nA interface{}\nB interface{}\nC interface{}\nD interface{}\nE interface{}\nF interface{}\n)"), "6 exported interfaces"},
		{"five", src("type (\nA interface{}\nB interface{}\nC interface{}\nD interface{}\nE interface{}\nf interface{}\n)"), ""},
	})
	catch(t, sleeps, []breaks{
		{"in a test", map[string]string{"p/a_test.go": "package p\nfunc f() { time.Sleep(1) }"}, "sleeps"},
		{"elsewhere", src("func f() { time.Sleep(1) }"), ""},
	})
	catch(t, initFunctions, []breaks{
		{"init", src("func init() {}"), "init"},
		{"method of that name", src("type t int\nfunc (t) init() {}"), ""},
	})
}

// functions calls fn for every function that shipped files declare.
func functions(tr *tree, fn func(*pkg, *ast.FuncDecl)) {
	tr.each(written, func(p *pkg, f *file) {
		for _, d := range f.ast.Decls {
			if decl, ok := d.(*ast.FuncDecl); ok {
				fn(p, decl)
			}
		}
	})
}

func functionSize(tr *tree) (findings []string) {
	functions(tr, func(p *pkg, d *ast.FuncDecl) {
		if _, ok := sizeExceptions[p.dir+" "+d.Name.Name]; ok {
			return
		}
		lines := 1 + tr.fset.Position(d.End()).Line - tr.fset.Position(d.Pos()).Line
		if lines > maxFunctionLines {
			findings = append(findings, tr.at(d, "%s has %d lines, more than %d", d.Name.Name, lines, maxFunctionLines))
		}
		if n := d.Type.Params.NumFields(); n > maxParameters {
			findings = append(findings, tr.at(d, "%s takes %d parameters, more than %d", d.Name.Name, n, maxParameters))
		}
	})
	return findings
}

func packageSize(tr *tree) (findings []string) {
	lines := map[string]int{}
	tr.each(written, func(p *pkg, f *file) { lines[p.dir] += codeLines(f.src) })
	for _, dir := range sortedKeys(lines) {
		if _, ok := sizeExceptions[dir]; !ok && lines[dir] > maxPackageLines {
			findings = append(findings, fmt.Sprintf("%s has %d code lines, more than %d", dir, lines[dir], maxPackageLines))
		}
	}
	return findings
}

// codeLines counts the lines that hold more than comments and white space.
func codeLines(src string) int {
	var s scanner.Scanner
	fset := token.NewFileSet()
	f := fset.AddFile("", fset.Base(), len(src))
	s.Init(f, []byte(src), nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue
		}
		first := f.Line(pos)
		for i := range 1 + strings.Count(lit, "\n") {
			lines[first+i] = true
		}
	}
}

func exportedInterfaces(tr *tree) (findings []string) {
	var names []string
	tr.each(written, func(p *pkg, f *file) {
		for spec := range typeDocs(f) {
			if spec.Name.IsExported() && isInterface(spec) {
				names = append(names, p.dir+"."+spec.Name.Name)
			}
		}
	})
	if len(names) > maxInterfaces {
		findings = append(findings, fmt.Sprintf("%d exported interfaces, more than %d: %q", len(names), maxInterfaces, names))
	}
	return findings
}

func sleeps(tr *tree) (findings []string) {
	tr.each(tests, func(_ *pkg, f *file) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, sel := selector(s); x == "time" && sel == "Sleep" {
					findings = append(findings, tr.at(n, "a test sleeps"))
				}
			}
			return true
		})
	})
	return findings
}

func initFunctions(tr *tree) (findings []string) {
	functions(tr, func(_ *pkg, d *ast.FuncDecl) {
		if d.Name.Name == "init" && d.Recv == nil {
			findings = append(findings, tr.at(d, "an init function acts at import"))
		}
	})
	return findings
}
