package service

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// part is a component that records when it stops.
func part(name string, order *[]string) component {
	return component{name: name, run: func(ctx context.Context) error {
		<-ctx.Done()
		*order = append(*order, name)
		return ctx.Err()
	}}
}

func testLifecycle() lifecycle {
	return lifecycle{logger: testLogger(io.Discard), timeout: 10 * time.Second, grace: time.Second}
}

func TestLifecycleStopsLastInFirstOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var order []string
		time.AfterFunc(time.Hour, cancel)
		err := testLifecycle().run(ctx, []component{part("a", &order), part("b", &order), part("c", &order)},
			func() { order = append(order, "before") })
		if want := []string{"before", "c", "b", "a"}; err != nil || !slices.Equal(order, want) {
			t.Errorf("order %v, want %v, error %v", order, want, err)
		}
	})
}

func TestLifecycleFirstFailureStopsAll(t *testing.T) {
	boom := errors.New("boom")
	tests := []struct {
		name string
		run  func(context.Context) error
		want error
	}{
		{"an error", func(context.Context) error { return boom }, boom},
		{"an end without an error", func(context.Context) error { return nil }, errStopped},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var order []string
				err := testLifecycle().run(t.Context(), []component{part("a", &order), {name: "bad", run: test.run}, part("c", &order)}, func() {})
				if !errors.Is(err, test.want) || !strings.Contains(err.Error(), "bad: ") {
					t.Errorf("error %v", err)
				}
				if !slices.Equal(order, []string{"c", "a"}) {
					t.Errorf("order %v", order)
				}
			})
		})
	}
}

func TestLifecycleErrorWhileStoppingIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		err := testLifecycle().run(ctx, []component{{name: "bad", run: func(ctx context.Context) error {
			<-ctx.Done()
			return boom
		}}}, func() {})
		if !errors.Is(err, boom) {
			t.Errorf("error %v", err)
		}
	})
}

func TestLifecycleCutsWhatDoesNotDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cut := make(chan struct{})
		var order []string
		var killed time.Duration
		begin := time.Now()
		slow := component{
			name: "slow",
			run:  func(context.Context) error { <-cut; return nil },
			stop: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			kill: func() error { killed = time.Since(begin); close(cut); return nil },
		}
		cancel()
		err := testLifecycle().run(ctx, []component{part("a", &order), slow}, func() {})
		if err != nil || !slices.Equal(order, []string{"a"}) {
			t.Errorf("order %v, error %v", order, err)
		}
		if killed != 5*time.Second || time.Since(begin) != killed {
			t.Errorf("cut after %v, all stopped after %v", killed, time.Since(begin))
		}
	})
}

func TestLifecycleForgivesALateEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var order []string
		late := component{name: "late", run: func(ctx context.Context) error {
			<-ctx.Done()
			<-time.After(10*time.Second + 500*time.Millisecond)
			return nil
		}}
		if err := testLifecycle().run(ctx, []component{part("a", &order), late}, func() {}); err != nil {
			t.Error(err)
		}
	})
}

func TestLifecycleDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		release := make(chan struct{})
		begin := time.Now()
		err := testLifecycle().run(ctx, []component{{name: "stuck", run: func(context.Context) error { <-release; return nil }}}, func() {})
		if err == nil || !strings.Contains(err.Error(), "stuck: did not stop") {
			t.Errorf("error %v", err)
		}
		if took := time.Since(begin); took != 11*time.Second {
			t.Errorf("took %v", took)
		}
		close(release)
	})
}
