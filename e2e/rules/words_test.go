package rules

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// ban is a text that must stand nowhere.
type ban struct {
	text *regexp.Regexp
	why  string
	// except lists the only files that may have it.
	except []string
}

// bans are written in two parts so that this file does not break them.
var bans = []ban{
	{text: words("work" + "place"), why: "names a place of work"},
	{text: words("tool " + "library"), why: "names a place of work"},
	{text: words("helper " + "session"), why: "names a place of work"},
	{text: words("AI" + "[- ]generated"), why: "says how the text came to be"},
	{text: words("cl" + "aude|chat" + "gpt|co" + "pilot|co" + "dex|anth" + "ropic"), why: "names an assistant"},
	{text: regexp.MustCompile("/wo" + "rk/"), why: "is a path of one machine"},
	{text: regexp.MustCompile("shared/" + "(cases|design|traces)"), why: "is a path outside of the repository", except: []string{".ci/run"}},
	{text: words(`(proxy|sum)\.go` + `lang\.org|registry\.np` + `mjs\.org|deb\.deb` + `ian\.org|py` + `pi\.org`), why: "is the host of a package registry"},
	{text: regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`), why: "marks unfinished work"},
	{text: regexp.MustCompile(`panic\("to` + `do"\)`), why: "is unfinished work"},
}

// goLists are the files that the Go command writes; names of other people's
// modules stand in them.
var goLists = []string{"go.sum", "tools/buf/go.mod", "tools/lint/go.mod"}

func words(pattern string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(` + pattern + `)\b`)
}

func TestForbiddenWords(t *testing.T) { hold(t, forbiddenWords) }

func TestForbiddenWordsCatch(t *testing.T) {
	const finding = "a.md:2: "
	file := func(s string) map[string]string { return map[string]string{"a.md": "first\n" + s + "\n"} }
	catch(t, forbiddenWords, []breaks{
		{"plain text", file("a load-control plane; todo lists are fine"), ""},
		{"place of work", file("at the Work" + "place"), finding},
		{"assistant", file("by Cl" + "aude"), finding},
		{"machine path", file("see /wo" + "rk/main"), finding},
		{"outside path", file("see ../shared/" + "cases/files"), finding},
		{"registry host", file("from proxy.go" + "lang.org"), finding},
		{"unfinished", file("// TO" + "DO: later"), finding},
		{"unfinished panic", file(`{ panic("to` + `do") }`), finding},
		{"outside path where it may be", map[string]string{".ci/run": "../shared/" + "cases/files"}, ""},
		{"sums of modules", map[string]string{"tools/x/go.sum": "github.com/anth" + "ropic/x"}, ""},
	})
}

func forbiddenWords(tr *tree) (findings []string) {
	for _, p := range tr.paths() {
		text := tr.files[p]
		if path.Base(p) == "go.sum" || slices.Contains(goLists, p) || strings.Contains(text, "\x00") {
			continue
		}
		for _, b := range bans {
			if slices.Contains(b.except, p) {
				continue
			}
			for _, at := range b.text.FindAllStringIndex(text, -1) {
				line := 1 + strings.Count(text[:at[0]], "\n")
				findings = append(findings, fmt.Sprintf("%s:%d: %q %s", p, line, text[at[0]:at[1]], b.why))
			}
		}
	}
	return findings
}
