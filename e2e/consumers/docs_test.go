package consumers

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// blocks returns the code blocks of docs/routers.md in a language.
func blocks(t *testing.T, language string) (code []string) {
	t.Helper()
	page, err := os.ReadFile(root + "/docs/routers.md")
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range strings.Split(string(page), "```") {
		if text, ok := strings.CutPrefix(part, language+"\n"); ok && i%2 == 1 {
			code = append(code, text)
		}
	}
	if len(code) == 0 {
		t.Fatalf("no block of %s", language)
	}
	return code
}

// busyPlane starts a plane that has heard its two engines, and returns the
// address of its API.
func busyPlane(t *testing.T) string {
	t.Helper()
	_, urls := fleet(t, "--engines=2", "--ranks=2")
	_, api := serve(t, "--report-interval=200ms", "--api-listen=127.0.0.1:0", "--ingest-listen=127.0.0.1:0",
		"--worker="+urls[0], "--worker="+urls[1])
	startGo(t, api).until("both engines", func(l line) bool { return l.valid() == 2 })
	return api
}

// TestCurlOfTheDocs runs every curl line of the page: it succeeds, and what it
// prints begins with a JSON value.
func TestCurlOfTheDocs(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		need(t, missing("no curl"))
	}
	api, dir := busyPlane(t), t.TempDir()
	for _, block := range blocks(t, "sh") {
		for command := range strings.Lines(block) {
			if strings.HasPrefix(command, "curl ") {
				t.Run(strings.TrimSpace(command), func(t *testing.T) { runCurl(t, dir, onPlane(command, api)) })
			}
		}
	}
}

// onPlane makes a command of the page one for a plane, which fails where the
// answer is an error.
func onPlane(command, api string) string {
	command = strings.ReplaceAll(command, "127.0.0.1:7400", api)
	return "exec " + strings.Replace(command, "curl ", "curl --fail-with-body --max-time 25 ", 1)
}

func runCurl(t *testing.T, dir, command string) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var value map[string]any
	failed := json.NewDecoder(out).Decode(&value)
	quiet := strings.Contains(command, " -o ")
	if !quiet && (failed != nil || len(value) == 0) {
		t.Errorf("the answer is %v (%v)", value, failed)
	}
	if strings.Contains(command, "-sN ") {
		cancel() // it goes on for ever
	}
	if err := cmd.Wait(); err != nil && ctx.Err() == nil {
		t.Errorf("%s: %v", command, err)
	}
	if quiet {
		checkSaved(t, dir)
	}
}

// checkSaved checks the files that the commands with an entity tag write.
func checkSaved(t *testing.T, dir string) {
	t.Helper()
	tag, err := os.ReadFile(filepath.Join(dir, "tag"))
	if err != nil || !bytes.HasPrefix(tag, []byte("W/")) {
		t.Errorf("the tag is %q, %v", tag, err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "view.json"))
	if err != nil || !json.Valid(page) {
		t.Errorf("the view is %q, %v", page, err)
	}
}

// TestGoOfTheDocs builds the Go program of the page and lets it pick.
func TestGoOfTheDocs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(blocks(t, "go")[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	router := filepath.Join(filepath.Dir(file), "router")
	build := exec.Command("go", "build", "-o", router, file)
	build.Dir = root // imports are those of the module
	if err := run(build); err != nil {
		t.Fatal(err)
	}
	api := busyPlane(t)
	p := start(t, router, "http://"+api)
	picked := p.next(p.out, func(string) bool { return true })
	if words := strings.Fields(picked); len(words) != 4 || !strings.HasPrefix(words[0], "http://127.0.0.1:") || words[1] != "power-of-k" {
		t.Errorf("the program picked %q", picked)
	}
}
