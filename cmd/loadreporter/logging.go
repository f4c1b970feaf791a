package main

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lmittmann/tint"
	"github.com/loadplane/loadplane/cmd/logqueue"
)

// stackKey is the key of the stack of a panic in a log line.
const stackKey = "stack"

// Bounds of texts, bytes: a value in a log line, the stack of a panic there, and
// an error at the end.
const (
	maxLogValue  = 256
	maxLogStack  = 4096
	maxErrorText = 1024
)

// logging runs a command with a logger that never waits for the reader of the
// log.
func (a *app) logging(c *config, command func(*slog.Logger) error) error {
	return logqueue.Through(a.err, func(w io.Writer) *slog.Logger { return a.newLogger(w, c) }, command)
}

// newLogger returns the logger that --log-level and --log-format ask for, which
// writes to w.
func (a *app) newLogger(w io.Writer, c *config) *slog.Logger {
	level, format := c.level, c.logFormat
	if format == "text" || format == "auto" && a.terminal {
		return slog.New(tint.NewTextHandler(w, &tint.Options{
			Level: level, ReplaceAttr: boundAttr, NoColor: !a.terminal, TimeFormat: "15:04:05.000",
		}))
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: boundAttr}))
}

// boundAttr keeps values from outside short and printable.
func boundAttr(groups []string, attr slog.Attr) slog.Attr {
	if len(groups) == 0 && (attr.Key == slog.TimeKey || attr.Key == slog.LevelKey) {
		return attr
	}
	switch v := attr.Value.Any().(type) {
	case nil, bool, int64, uint64, float64, time.Time:
		return attr
	case string:
		if attr.Key == stackKey {
			return slog.String(attr.Key, stackText(v))
		}
		return slog.String(attr.Key, printable(v, maxLogValue))
	case time.Duration:
		return slog.String(attr.Key, v.String())
	default: // Errors, addresses, lists.
		return slog.String(attr.Key, printable(fmt.Sprint(v), maxLogValue))
	}
}

// stackText makes one line of a stack.
func stackText(s string) string {
	return printable(strings.NewReplacer("\n\t", " ", "\n", "; ").Replace(s), maxLogStack)
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
