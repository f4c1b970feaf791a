package main

import (
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lmittmann/tint"
)

// Bounds of texts, bytes: a value in a log line, and an error at the end.
const (
	maxLogValue  = 256
	maxErrorText = 1024
)

// newLogger returns the logger that --log-level and --log-format ask for.
func (a *app) newLogger(level slog.Level, format string) *slog.Logger {
	if format == "text" || format == "auto" && a.terminal {
		return slog.New(tint.NewTextHandler(a.err, &tint.Options{
			Level: level, ReplaceAttr: boundAttr, NoColor: !a.terminal, TimeFormat: "15:04:05.000",
		}))
	}
	return slog.New(slog.NewJSONHandler(a.err, &slog.HandlerOptions{Level: level, ReplaceAttr: boundAttr}))
}

// boundAttr keeps values from outside short and printable.
func boundAttr(groups []string, attr slog.Attr) slog.Attr {
	if len(groups) == 0 && (attr.Key == slog.TimeKey || attr.Key == slog.LevelKey) {
		return attr
	}
	switch v := attr.Value.Any().(type) {
	case string:
		return slog.String(attr.Key, printable(v, maxLogValue))
	case error:
		return slog.String(attr.Key, printable(v.Error(), maxLogValue))
	case time.Duration:
		return slog.String(attr.Key, v.String())
	case fmt.Stringer:
		return slog.String(attr.Key, printable(v.String(), maxLogValue))
	}
	return attr
}

// printable returns s without characters that a terminal or a reader may take
// for something else, cut to limit bytes.
func printable(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "..."
}
