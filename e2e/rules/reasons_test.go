package rules

import (
	"go/ast"
	"path"
	"slices"
	"testing"
)

// reasonConst is a constant of type store.Reason or pick.Reason.
type reasonConst struct {
	pkg   *pkg
	file  *file
	ident *ast.Ident
	word  string
}

func TestReasonsAreDeclaredInOnePlace(t *testing.T) { hold(t, reasonDeclarations) }
func TestReasonsAreProvoked(t *testing.T)           { hold(t, reasonsProvoked) }

func TestReasonRulesCatch(t *testing.T) {
	decl := "package p\nconst (\n\tReasonA store.Reason = \"a\"\n)\n"
	catch(t, reasonDeclarations, []breaks{
		{"fine", map[string]string{"p/reason.go": decl}, ""},
		{"other file", map[string]string{"p/a.go": decl}, "outside of reason.go"},
		{"twice", map[string]string{"p/reason.go": decl, "q/reason.go": decl}, "\"a\" stands for"},
		{"bad word", map[string]string{"p/reason.go": "package p\nconst ReasonA store.Reason = \"Not A Word\"\n"}, "is not a word"},
		{"no literal", map[string]string{"p/reason.go": "package p\nconst ReasonA store.Reason = other\n"}, "is not a word"},
		{"in the store", map[string]string{"store/a.go": "package store\nconst ReasonA Reason = \"a\"\n"}, "outside of reason.go"},
		{"in the router's side", map[string]string{"client/pick/a.go": "package pick\nconst ReasonA Reason = \"a\"\n"}, "outside of reason.go"},
		{"in the plane and the router's side", map[string]string{"p/reason.go": decl, "client/pick/reason.go": "package pick\nconst ReasonA Reason = \"a\"\n"}, "\"a\" stands for"},
		{"made on the spot of the router's side", map[string]string{"p/a.go": "package p\nvar r = pick.Reason(\"b\")\n"}, "made on the spot"},
		{"made on the spot", map[string]string{"p/a.go": "package p\nvar r = store.Reason(\"b\")\n"}, "made on the spot"},
	})
	catch(t, reasonsProvoked, []breaks{
		{"no test", map[string]string{"p/reason.go": decl}, "no test of p names ReasonA"},
		{"test names it", map[string]string{"p/reason.go": decl, "p/a_test.go": "package p\nvar _ = ReasonA\n"}, ""},
		{"outer test names it", map[string]string{"p/reason.go": decl, "p/a_test.go": "package p_test\nvar _ = p.ReasonA\n"}, ""},
	})
}

// reasons returns all constants of type store.Reason or pick.Reason.
func reasons(tr *tree) (found []reasonConst) {
	tr.each(written, func(p *pkg, f *file) {
		for _, d := range f.ast.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range g.Specs {
				if v, ok := s.(*ast.ValueSpec); ok && isReason(p, v.Type) {
					found = append(found, reasonsOf(p, f, v)...)
				}
			}
		}
	})
	return found
}

func reasonsOf(p *pkg, f *file, v *ast.ValueSpec) (found []reasonConst) {
	for i, id := range v.Names {
		r := reasonConst{pkg: p, file: f, ident: id}
		if i < len(v.Values) {
			r.word, _ = stringOf(v.Values[i])
		}
		found = append(found, r)
	}
	return found
}

// isReason says whether e is a type of reasons as package p writes it: that of
// the plane, or that of the router's side, which knows no store.
func isReason(p *pkg, e ast.Expr) bool {
	if id, ok := e.(*ast.Ident); ok {
		return (p.dir == "store" || p.dir == "client/pick") && id.Name == "Reason"
	}
	x, sel := selector(e)
	return (x == "store" || x == "pick") && sel == "Reason"
}

func reasonDeclarations(tr *tree) (findings []string) {
	names := map[string]string{}
	for _, r := range reasons(tr) {
		if path.Base(r.file.path) != "reason.go" {
			findings = append(findings, tr.at(r.ident, "%s is declared outside of reason.go", r.ident.Name))
		}
		if !isWord(r.word) {
			findings = append(findings, tr.at(r.ident, "%s is not a word like no_report", r.ident.Name))
		}
		if other, ok := names[r.word]; ok {
			findings = append(findings, tr.at(r.ident, "%q stands for %s and %s", r.word, other, r.ident.Name))
		}
		names[r.word] = r.pkg.dir + "." + r.ident.Name
	}
	return append(findings, reasonsOnTheSpot(tr)...)
}

func isWord(s string) bool {
	return s != "" && !slices.ContainsFunc([]byte(s), func(c byte) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_'
	})
}

// reasonsOnTheSpot finds conversions of literals, which escape the lists.
func reasonsOnTheSpot(tr *tree) (findings []string) {
	tr.each(written, func(p *pkg, f *file) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 || !isReason(p, call.Fun) {
				return true
			}
			if word, ok := stringOf(call.Args[0]); ok {
				findings = append(findings, tr.at(n, "reason %q is made on the spot", word))
			}
			return true
		})
	})
	return findings
}

// reasonsProvoked demands that a test beside the declaration names every
// constant. That it provokes it as well is the claim of that test.
func reasonsProvoked(tr *tree) (findings []string) {
	for _, r := range reasons(tr) {
		if !slices.ContainsFunc(r.pkg.files, func(f *file) bool { return f.test && names(f, r.ident.Name) }) {
			findings = append(findings, tr.at(r.ident, "no test of %s names %s", r.pkg.dir, r.ident.Name))
		}
	}
	return findings
}

// names says whether an identifier occurs in f.
func names(f *file, ident string) bool {
	found := false
	ast.Inspect(f.ast, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		found = found || ok && id.Name == ident
		return !found
	})
	return found
}

func TestReasonsAreFound(t *testing.T) {
	tr, err := checkout()
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, r := range reasons(tr) {
		dirs = append(dirs, r.pkg.dir)
	}
	for _, want := range []string{"ingest", "registry", "store", "client/pick"} {
		if !slices.ContainsFunc(dirs, func(dir string) bool { return within(dir, want) }) {
			t.Errorf("no reason found in %s", want)
		}
	}
}
