package main

import (
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/cmd/logqueue"
)

func TestLogThatNobodyReadsHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		defer r.Close()
		a := &app{err: w}
		want, began := errors.New("the end"), time.Now()
		got := a.logging(&config{level: slog.LevelInfo, settings: settings{logFormat: "json"}}, func(l *slog.Logger) error {
			for range 2 * logqueue.Lines {
				l.Info("line")
			}
			return want
		})
		if took := time.Since(began); !errors.Is(got, want) || took != logqueue.Grace {
			t.Errorf("%v after %v, want %v after %v", got, took, want, logqueue.Grace)
		}
	})
}
