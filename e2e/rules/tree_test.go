package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/loadplane/loadplane"

// tree is the source of the repository.
type tree struct {
	fset *token.FileSet
	// files maps a path relative to the root to its content.
	files map[string]string
	// packages maps a folder relative to the root to its package.
	packages map[string]*pkg
}

// pkg is the Go code of one folder.
type pkg struct {
	dir   string
	name  string
	files []*file
}

// file is one Go file.
type file struct {
	path      string
	src       string
	ast       *ast.File
	test      bool
	generated bool
}

// rule returns what breaks it.
type rule func(*tree) []string

// checkout reads the repository once.
var checkout = sync.OnceValues(func() (*tree, error) {
	files := map[string]string{}
	root := os.DirFS(filepath.Join("..", ".."))
	err := fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (slices.Contains([]string{".git", "bin", "dist"}, p) || d.Name() == "node_modules") {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() || strings.HasSuffix(p, ".test") || strings.HasSuffix(p, ".out") {
			return nil
		}
		data, err := fs.ReadFile(root, p)
		files[p] = string(data)
		return err
	})
	if err != nil {
		return nil, err
	}
	return newTree(files)
})

// newTree parses the Go files among files.
func newTree(files map[string]string) (*tree, error) {
	t := &tree{fset: token.NewFileSet(), files: files, packages: map[string]*pkg{}}
	for _, p := range t.paths() {
		if path.Ext(p) != ".go" || strings.Contains(p, "testdata/") || t.nested(path.Dir(p)) {
			continue
		}
		f, err := parser.ParseFile(t.fset, p, files[p], parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		t.add(&file{
			path: p, src: files[p], ast: f,
			test:      strings.HasSuffix(p, "_test.go"),
			generated: ast.IsGenerated(f),
		})
	}
	return t, nil
}

// nested says that a folder belongs to a module of its own, whose imports and
// sizes are not the product's.
func (t *tree) nested(dir string) bool {
	for ; dir != "."; dir = path.Dir(dir) {
		if _, ok := t.files[dir+"/go.mod"]; ok {
			return true
		}
	}
	return false
}

func (t *tree) add(f *file) {
	dir := path.Dir(f.path)
	p := t.packages[dir]
	if p == nil {
		p = &pkg{dir: dir}
		t.packages[dir] = p
	}
	if !f.test || p.name == "" {
		p.name = f.ast.Name.Name
	}
	p.files = append(p.files, f)
}

// paths returns the paths of all files, sorted.
func (t *tree) paths() []string {
	return sortedKeys(t.files)
}

// each calls fn for every Go file that keep accepts.
func (t *tree) each(keep func(*file) bool, fn func(*pkg, *file)) {
	for _, dir := range sortedKeys(t.packages) {
		for _, f := range t.packages[dir].files {
			if keep(f) {
				fn(t.packages[dir], f)
			}
		}
	}
}

// at formats a finding with its place.
func (t *tree) at(n ast.Node, format string, args ...any) string {
	pos := t.fset.Position(n.Pos())
	return fmt.Sprintf("%s:%d: ", pos.Filename, pos.Line) + fmt.Sprintf(format, args...)
}

// written accepts code that people wrote and that ships.
func written(f *file) bool { return !f.test && !f.generated }

// tests accepts test files.
func tests(f *file) bool { return f.test }

// imports returns the paths that f imports.
func (f *file) imports() []string {
	var paths []string
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

// own returns the folder of an import path of this module.
func own(importPath string) (dir string, ok bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// stringOf returns the value of a string literal.
func stringOf(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(lit.Value)
	return s, err == nil
}

// selector returns the two names of an expression like time.Sleep.
func selector(e ast.Expr) (x, sel string) {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	if id, ok := s.X.(*ast.Ident); ok {
		x = id.Name
	}
	return x, s.Sel.Name
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// hold fails the test with every finding of a rule.
func hold(t *testing.T, r rule) {
	t.Helper()
	tr, err := checkout()
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range r(tr) {
		t.Error(finding)
	}
}

// breaks is a small tree and the finding that a rule must have on it.
type breaks struct {
	name  string
	files map[string]string
	want  string
}

// catch fails the test unless the rule finds what each case breaks.
func catch(t *testing.T, r rule, cases []breaks) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			tr, err := newTree(c.files)
			if err != nil {
				t.Fatal(err)
			}
			findings := r(tr)
			has := func(s string) bool { return strings.Contains(s, c.want) }
			if c.want == "" && len(findings) > 0 {
				t.Errorf("findings %q, want none", findings)
			}
			if c.want != "" && !slices.ContainsFunc(findings, has) {
				t.Errorf("findings %q, want one with %q", findings, c.want)
			}
		})
	}
}
