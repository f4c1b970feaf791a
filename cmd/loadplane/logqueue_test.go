package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/cmd/logqueue"
)

// pipedApp returns an app whose log goes into a pipe, and the pipe's other end.
func pipedApp() (*app, *io.PipeReader) {
	r, w := io.Pipe()
	return &app{err: w}, r
}

func TestLogThatNobodyReadsHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, r := pipedApp()
		defer r.Close()
		want, began := errors.New("the end"), time.Now()
		got := a.logging("info", "json", func(l *slog.Logger) error {
			for range 10 * logqueue.Lines {
				l.Info("line")
			}
			return want
		})
		if took := time.Since(began); !errors.Is(got, want) || took != logqueue.Grace {
			t.Errorf("%v after %v, want %v after %v", got, took, want, logqueue.Grace)
		}
	})
}

func TestDroppedLogLinesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, r := pipedApp()
		text := make(chan string)
		err := a.logging("info", "json", func(l *slog.Logger) error {
			l.Info("line")
			synctest.Wait() // The first line is being written, the queue is empty.
			for range logqueue.Lines + 7 {
				l.Info("line")
			}
			go func() {
				b, _ := io.ReadAll(r)
				text <- string(b)
			}()
			return nil
		})
		_ = a.err.(io.Closer).Close()
		got := <-text
		if n := strings.Count(got, `"line"`); err != nil || n != logqueue.Lines+1 {
			t.Errorf("%d lines, error %v, want %d", n, err, logqueue.Lines+1)
		}
		if strings.Count(got, "log lines dropped") != 1 || !strings.Contains(got, fmt.Sprintf(`"lines":%d`, 7)) {
			t.Errorf("7 dropped lines are not told once: %.300s", got)
		}
	})
}

func TestLogLinesAreInOrderAndWhole(t *testing.T) {
	var b strings.Builder
	a := &app{err: &b}
	err := a.logging("info", "json", func(l *slog.Logger) error {
		for i := range 100 {
			l.Info("line", "n", i)
		}
		return nil
	})
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if err != nil || len(lines) != 100 {
		t.Fatalf("%d lines, error %v", len(lines), err)
	}
	for i, line := range lines {
		if !strings.Contains(line, fmt.Sprintf(`"n":%d}`, i)) {
			t.Errorf("line %d: %s", i, line)
		}
	}
}
