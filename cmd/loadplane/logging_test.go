package main

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestLogFormats(t *testing.T) {
	log := func(terminal bool, format string) string {
		var b bytes.Buffer
		(&app{err: &b, terminal: terminal}).newLogger("info", format).Info("fixed message", "key", "value")
		return b.String()
	}
	for _, c := range []struct {
		terminal bool
		format   string
		json     bool
	}{{false, "auto", true}, {true, "auto", false}, {true, "json", true}, {false, "text", false}} {
		got := log(c.terminal, c.format)
		if strings.HasPrefix(got, "{") != c.json || !strings.Contains(got, "fixed message") {
			t.Errorf("terminal %v, %s: %s", c.terminal, c.format, got)
		}
		if c.format == "text" && strings.Contains(got, "\x1b") {
			t.Errorf("color without a terminal: %q", got)
		}
	}
	var b bytes.Buffer
	(&app{err: &b}).newLogger("warn", "json").Info("quiet")
	if b.Len() != 0 {
		t.Errorf("below the level: %s", b.String())
	}
}

func TestLogValuesAreBounded(t *testing.T) {
	hostile := "a\nb\x1b[31m\u202e" + strings.Repeat("é", 500)
	for _, text := range []bool{false, true} {
		var b bytes.Buffer
		logger := slog.New(newHandler(&b, slog.LevelInfo, text, false))
		logger.Info("m", "text", hostile, "error", errors.New(hostile), "url", "http://u:"+canary+"@h", "took", time.Second)
		got := b.String()
		if strings.Count(got, "\n") != 1 || strings.ContainsAny(got, "\x1b\u202e") || len(got) > 1000 {
			t.Errorf("text %v: %q", text, got)
		}
		if strings.Contains(got, canary) || !strings.Contains(got, "1s") {
			t.Errorf("text %v: %s", text, got)
		}
	}
}
