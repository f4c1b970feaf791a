package main

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/lmittmann/tint"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
	"github.com/loadplane/loadplane/cmd/logqueue"
)

// Bounds in a log line, bytes: of a text, and of the stack of a panic.
const (
	maxLogValue = 256
	maxLogStack = 4096
)

// stackKey is the key of the stack of a panic.
const stackKey = "stack"

// logging runs a command with a logger that never waits for the reader of the
// log: a pipe that is full must not hold up the plane, nor its end.
func (a *app) logging(level, format string, command func(*slog.Logger) error) error {
	return logqueue.Through(a.err, func(w io.Writer) *slog.Logger { return a.newLogger(w, level, format) }, command)
}

// newLogger returns the logger that --log-level and --log-format ask for, which
// writes to w.
func (a *app) newLogger(w io.Writer, level, format string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}
	text := format == "text" || format == "auto" && a.terminal
	return slog.New(newHandler(w, l, text, a.terminal))
}

func newHandler(w io.Writer, level slog.Level, text, color bool) slog.Handler {
	if text {
		return tint.NewTextHandler(w, &tint.Options{
			Level: level, ReplaceAttr: boundAttr, NoColor: !color, TimeFormat: "15:04:05.000",
		})
	}
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: boundAttr})
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
		return slog.String(attr.Key, logText(v))
	case time.Duration:
		return slog.String(attr.Key, v.String())
	default: // Errors, addresses, lists.
		return slog.String(attr.Key, logText(fmt.Sprint(v)))
	}
}

// stackText makes one line of a stack.
func stackText(s string) string {
	return table.Printable(strings.NewReplacer("\n\t", " ", "\n", "; ").Replace(s), maxLogStack)
}

func logText(s string) string { return table.Printable(redactURL(s), maxLogValue) }
