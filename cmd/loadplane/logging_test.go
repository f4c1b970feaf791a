package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

func TestLogFormats(t *testing.T) {
	log := func(terminal bool, format string) string {
		var b bytes.Buffer
		(&app{terminal: terminal}).newLogger(&b, "info", format).Info("fixed message", "key", "value")
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
	(&app{}).newLogger(&b, "warn", "json").Info("quiet")
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

// hostiles are n texts that try to leave their line, or to look like another.
func hostiles(n int) []string {
	bad := []string{
		"\n", "\r\n", "\x1b[2J", "\u202e", "\u2066", "\u2028", "\u0085", "\v", "\x00", "\xff\xfe", "\ufeff", "\u200b",
		`","level":"ERROR","msg":"forged`, "\nlevel=ERROR msg=forged", "</script>", `\`, `"`, "\U000e0041",
	}
	texts := make([]string, n)
	for i := range texts {
		texts[i] = strings.Repeat(bad[i%len(bad)]+bad[i/len(bad)%len(bad)], 1+i%97)
	}
	texts[0] = strings.Repeat("x\n", 1<<19)
	return texts
}

// valuer is a text behind a slog.LogValuer.
type valuer string

func (v valuer) LogValue() slog.Value { return slog.StringValue(string(v)) }

// nothing is an error that cannot be asked.
type nothing struct{ text string }

func (n *nothing) Error() string { return n.text }

func TestHostileTextStaysOneLine(t *testing.T) {
	texts := hostiles(10_000)
	for name, text := range map[string]bool{"json": false, "text": true} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			logger := slog.New(newHandler(&b, slog.LevelInfo, text, false))
			for i, s := range texts {
				b.Reset()
				switch i % 6 {
				case 0:
					logger.Warn("worker stale", "worker", s, "reason", s)
				case 1:
					logger.Warn("worker stale", "error", errors.New(s), "stack", s)
				case 2:
					logger.Warn("worker stale", "sources", []string{s, s}, "panic", struct{ A string }{s})
				case 3:
					logger.WithGroup("g").With("bound", s).Warn("worker stale", slog.Group("h", "a", s), "v", valuer(s))
				case 4:
					record := slog.NewRecord(time.Now(), slog.LevelWarn, s, 0)
					record.Add("bytes", []byte(s), "any", map[string]string{s: s})
					_ = logger.Handler().Handle(t.Context(), record)
				case 5:
					logger.Warn("worker stale", "nil", (*nothing)(nil), "none", nil, "text", s)
				}
				got := b.String()
				if strings.Count(got, "\n") != 1 || strings.ContainsAny(got[:len(got)-1], "\r\v\x00\x1b\u202e\u2066\u2028\u0085\ufeff\u200b\U000e0041") ||
					len(got) > 10_000 {
					t.Fatalf("text %d %.80q: %q", i, s, got)
				}
				line := make(map[string]any)
				if err := json.Unmarshal(b.Bytes(), &line); !text && (err != nil || line["level"] != "WARN") {
					t.Fatalf("text %d %.80q: not one object: %q", i, s, got)
				}
			}
		})
	}
}

func TestStacksAreReadable(t *testing.T) {
	for _, text := range []bool{false, true} {
		var b bytes.Buffer
		slog.New(newHandler(&b, slog.LevelInfo, text, false)).Error("panicked", "stack", string(debug.Stack()))
		if got := b.String(); !strings.Contains(got, "logging_test.go:") || strings.Count(got, "\n") != 1 || len(got) > maxLogStack+500 {
			t.Errorf("text %v: %s", text, got)
		}
	}
}
