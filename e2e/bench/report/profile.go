package report

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// topFunctions is how many functions of a profile are printed.
const topFunctions = 10

// explain says where the CPU time of a profile goes: by the part of the
// program that caused it, and by function.
func explain(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	p, err := profile.Parse(f)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	c := account(p)
	var out strings.Builder
	fmt.Fprintf(&out, "CPU of %s: %.2f s\n", filepath.Base(path), float64(c.total)/1e9)
	c.write(&out, "by cause", c.causes)
	c.write(&out, "by function", c.functions)
	return out.String(), nil
}

// costs are nanoseconds by name.
type costs struct {
	causes, functions map[string]int64
	total             int64
}

func account(p *profile.Profile) costs {
	c := costs{causes: map[string]int64{}, functions: map[string]int64{}}
	for _, s := range p.Sample {
		ns := s.Value[len(s.Value)-1]
		names := stack(s)
		if len(names) == 0 {
			continue
		}
		c.total += ns
		c.functions[names[0]] += ns
		c.causes[cause(names)] += ns
	}
	return c
}

// stack returns the functions of a sample, the innermost first.
func stack(s *profile.Sample) (names []string) {
	for _, l := range s.Location {
		for _, line := range l.Line {
			if line.Function != nil {
				names = append(names, line.Function.Name)
			}
		}
	}
	return names
}

const ourModule = "github.com/loadplane/loadplane/"

// cause names the innermost package that is not the Go runtime or the
// standard library's lower half, or what the runtime did by itself.
func cause(names []string) string {
	for _, n := range names {
		if strings.HasPrefix(n, "runtime.gcBgMarkWorker") || strings.HasPrefix(n, "runtime.gcAssistAlloc") ||
			strings.HasPrefix(n, "runtime.bgsweep") {
			return "garbage collection"
		}
	}
	call := ""
	if strings.Contains(names[0], "Syscall6") {
		call = " (system calls)"
	}
	for _, n := range names {
		pkg := packageOf(n)
		if own, ok := strings.CutPrefix(pkg, ourModule); ok {
			return own + call
		}
		if strings.Contains(pkg, ".") || pkg == "net/http" {
			return pkg + call
		}
	}
	for _, n := range names {
		if n == "runtime.schedule" || n == "runtime.mcall" || n == "runtime.findRunnable" {
			return "scheduler" + call
		}
	}
	return "runtime" + call
}

// packageOf returns the import path of a function.
func packageOf(name string) string {
	if at := strings.IndexAny(name, "(["); at > 0 {
		name = name[:at] // a receiver or a type argument may name other packages
	}
	slash := strings.LastIndexByte(name, '/')
	dot := strings.IndexByte(name[slash+1:], '.')
	if dot < 0 {
		return name
	}
	return name[:slash+1+dot]
}

func (c costs) write(out *strings.Builder, title string, by map[string]int64) {
	fmt.Fprintf(out, "  %s\n", title)
	names := slices.SortedFunc(maps.Keys(by), func(a, b string) int {
		return cmp.Or(cmp.Compare(by[b], by[a]), cmp.Compare(a, b))
	})
	for _, n := range names[:min(topFunctions, len(names))] {
		fmt.Fprintf(out, "  %6.2f s %5.1f %%  %s\n", float64(by[n])/1e9, 100*float64(by[n])/float64(c.total), n)
	}
}
