package main

import (
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/lmittmann/tint"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
)

// maxLogValue bounds a text in a log line, bytes.
const maxLogValue = 256

// newLogger returns the logger that --log-level and --log-format ask for.
func (a *app) newLogger(level, format string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}
	text := format == "text" || format == "auto" && a.terminal
	return slog.New(newHandler(a.err, l, text, a.terminal))
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
	case string:
		return slog.String(attr.Key, logText(v))
	case error:
		return slog.String(attr.Key, logText(v.Error()))
	case time.Duration:
		return slog.String(attr.Key, v.String())
	case fmt.Stringer:
		return slog.String(attr.Key, logText(v.String()))
	}
	return attr
}

func logText(s string) string { return table.Printable(redactURL(s), maxLogValue) }
