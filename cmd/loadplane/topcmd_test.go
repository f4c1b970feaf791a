package main

import (
	"strings"
	"testing"
)

func TestTopOnce(t *testing.T) {
	_, api, _ := startDemo(t, "--engines=3", "--ranks=2", "--kinds=sglang,vllm")
	awaitFresh(t, api, 3)
	code, out, err := run(t, "top", "--once", "--server="+api, "--sort=name")
	if code != exitOK || !strings.Contains(out, "3 workers: 3 fresh") || strings.Count(out, "\n127.0.0.1:") != 3 || strings.Contains(out, "\x1b") {
		t.Errorf("exit %d: %s\n%s", code, err, out)
	}
	requireWidth(t, out)
	if code, out, _ := run(t, "top", "--once", "--server="+api, "--model=another"); code != exitOK || !strings.Contains(out, "0 workers: ") {
		t.Errorf("exit %d for no worker:\n%s", code, out)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"top", "--server=" + api}, exitUsage, "is no terminal"},
		{[]string{"top", "--once", "--sort=nothing"}, exitUsage, "--sort"},
		{[]string{"top", "--once", "--server=http://127.0.0.1:1"}, exitFailure, "nothing listens at"},
	} {
		if code, _, err := run(t, c.args...); code != c.code || !strings.Contains(err, c.want) {
			t.Errorf("%v: exit %d: %s", c.args, code, err)
		}
	}
}
