package rules

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*$`)
	// unsaid is what an anchor leaves out of its heading.
	unsaid = regexp.MustCompile(`[^\p{L}\p{N}\s_-]`)
)

func TestLinks(t *testing.T) { hold(t, links) }

func TestLinksCatch(t *testing.T) {
	catch(t, links, []breaks{
		{"file", map[string]string{"README.md": "[a](docs/a.md)", "docs/a.md": ""}, ""},
		{"folder", map[string]string{"README.md": "[a](docs)", "docs/a.md": ""}, ""},
		{"up", map[string]string{"docs/a.md": "[a](../README.md)", "README.md": ""}, ""},
		{"missing file", map[string]string{"README.md": "x\n[a](docs/a.md)"}, "README.md:2: docs/a.md does not exist"},
		{"anchor", map[string]string{"a.md": "[a](b.md#the-api-v1)", "b.md": "## The API (`v1`)\n"}, ""},
		{"second anchor", map[string]string{"a.md": "# One\n# One\n[a](#one-1)"}, ""},
		{"missing anchor", map[string]string{"a.md": "[a](b.md#two)", "b.md": "# One\n"}, "no heading #two"},
		{"own anchor", map[string]string{"a.md": "# One\n[a](#two)"}, "no heading #two"},
		{"heading in code", map[string]string{"a.md": "```\n# one\n```\n[a](#one)"}, "no heading #one"},
		{"link in code", map[string]string{"a.md": "```\n[a](b.md)\n```"}, ""},
		{"out", map[string]string{"a.md": "[a](https://example.com/b.md)"}, ""},
	})
}

func links(tr *tree) (findings []string) {
	for _, p := range tr.paths() {
		if path.Ext(p) != ".md" {
			continue
		}
		for i, line := range prose(tr.files[p]) {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				if fault := follow(tr, p, m[1]); fault != "" {
					findings = append(findings, fmt.Sprintf("%s:%d: %s", p, i+1, fault))
				}
			}
		}
	}
	return findings
}

// follow says what is wrong with a link in file from; empty for nothing.
func follow(tr *tree, from, target string) string {
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return ""
	}
	file, anchor, _ := strings.Cut(target, "#")
	to := from
	if file != "" {
		to = path.Join(path.Dir(from), file)
	}
	if _, ok := tr.files[to]; !ok && !tr.hasFolder(to) {
		return to + " does not exist"
	}
	if anchor != "" && !anchors(tr.files[to])[anchor] {
		return fmt.Sprintf("%s has no heading #%s", to, anchor)
	}
	return ""
}

func (t *tree) hasFolder(dir string) bool {
	for p := range t.files {
		if strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return false
}

// prose returns the lines of a Markdown text, those of code blocks emptied.
func prose(text string) []string {
	lines := strings.Split(text, "\n")
	code := false
	for i, l := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(l), "```")
		if fence || code {
			lines[i] = ""
		}
		code = code != fence
	}
	return lines
}

// anchors returns the names that the headings of a Markdown text can be linked
// by.
func anchors(text string) map[string]bool {
	names := map[string]bool{}
	for _, l := range prose(text) {
		m := heading.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		name := strings.ReplaceAll(unsaid.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
		unique := name
		for n := 1; names[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", name, n)
		}
		names[unique] = true
	}
	return names
}
