package egress

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestLineKeepsTheOrder has ten wait for one after the other.
func TestLineKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLine()
		leave, err := l.Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		order := make(chan int, 10)
		for i := range 10 {
			go func() {
				leave, err := l.Join(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				order <- i
				<-time.After(time.Second)
				leave()
			}()
			synctest.Wait()
		}
		if len(order) != 0 {
			t.Error("one did not wait")
		}
		began := time.Now()
		leave()
		for want := range 10 {
			if got := <-order; got != want || time.Since(began) != time.Duration(want)*time.Second {
				t.Errorf("%d came after %s, want %d", got, time.Since(began), want)
			}
		}
		<-time.After(time.Minute)
	})
}

func TestLineEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLine()
		leave, err := l.Join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if _, err := l.Join(ctx); err == nil {
			t.Error("joined while another is there")
		}
		leave()
		if _, err := l.Join(ctx); err == nil {
			t.Error("joined after the context ended")
		}
		if _, err := l.Join(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestNoLine(t *testing.T) {
	var l *Line
	for range 2 {
		if _, err := l.Join(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
