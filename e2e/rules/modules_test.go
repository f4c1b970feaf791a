package rules

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// floor is the lowest version of a module that is known to be sound here.
type floor struct{ module, version, why string }

var floors = []floor{
	{"google.golang.org/grpc", "1.85.0", "reset floods, authorization by path"},
	{"connectrpc.com/connect", "1.21.1", "major 1; request gate before decoding"},
	{"google.golang.org/protobuf", "1.36.11", "what the generated code needs"},
	{"github.com/hashicorp/go-memdb", "1.3.5", "the state"},
	{"github.com/prometheus/client_golang", "1.24.0", "the metrics"},
	{"github.com/lmittmann/tint", "1.2.0", "logs on a terminal"},
	{"golang.org/x/net", "0.23.0", "floods of HTTP/2 continuation frames"},
}

func TestVersionFloors(t *testing.T) { hold(t, versionFloors(floors)) }

func TestVersionFloorsCatch(t *testing.T) {
	fs := []floor{{"example.com/a", "1.10.2", "a reason"}}
	mod := func(line string) map[string]string {
		return map[string]string{"go.mod": "module m\nrequire (\n\t" + line + "\n)\n"}
	}
	catch(t, versionFloors(fs), []breaks{
		{"equal", mod("example.com/a v1.10.2"), ""},
		{"above", mod("example.com/a v1.11.0 // indirect"), ""},
		{"below", mod("example.com/a v1.9.9"), "1.9.9 is below 1.10.2"},
		{"other major", mod("example.com/a v2.0.0"), "another major"},
		{"absent", mod("example.com/b v1.0.0"), "is not required"},
		{"longer name", mod("example.com/ab v1.10.2"), "is not required"},
		{"replaced", map[string]string{"go.mod": "module m\nrequire example.com/a v1.10.2\nreplace example.com/a => ../a\n"}, "replaces"},
	})
}

var requirement = regexp.MustCompile(`(?m)^(?:require)?\s+([^\s()]+) v(\d+)\.(\d+)\.(\d+)`)

func versionFloors(floors []floor) rule {
	return func(tr *tree) (findings []string) {
		text := tr.files["go.mod"]
		if strings.Contains(text, "replace ") {
			findings = append(findings, "go.mod replaces a module")
		}
		have := map[string][]int{}
		for _, m := range requirement.FindAllStringSubmatch(text, -1) {
			have[m[1]] = numbers(m[2:])
		}
		for _, f := range floors {
			want := numbers(strings.Split(f.version, "."))
			got := have[f.module]
			switch {
			case got == nil:
				findings = append(findings, fmt.Sprintf("%s is not required", f.module))
			case got[0] != want[0]:
				findings = append(findings, fmt.Sprintf("%s has another major than %s", f.module, f.version))
			case slices.Compare(got, want) < 0:
				findings = append(findings, fmt.Sprintf("%s %d.%d.%d is below %s: %s", f.module, got[0], got[1], got[2], f.version, f.why))
			}
		}
		return findings
	}
}

func numbers(parts []string) []int {
	var ns []int
	for _, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil {
			return nil
		}
		ns = append(ns, n)
	}
	return ns
}
