package kubeapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/registry/kube/kubetest"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bed is a mirror of the labels of Pods, in a bubble.
type bed struct {
	*Mirror[string]
	t       *testing.T
	server  *kubetest.Server
	metrics *Metrics
	// log is that of the goroutine of Run, to be read while that waits.
	log bytes.Buffer
}

func run(t *testing.T, prepare func(*kubetest.Server), test func(*bed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bed{t: t, server: kubetest.New()}
		prepare(b.server)
		go b.server.Serve()
		t.Cleanup(b.server.Close)
		client, err := NewClient(b.server.Config(), Pods)
		if err != nil {
			t.Fatal(err)
		}
		if b.metrics, err = NewMetrics(prometheus.NewRegistry()); err != nil {
			t.Fatal(err)
		}
		b.Mirror = NewMirror(Options[string]{
			Client: client, Namespace: "ns", Relist: 10 * time.Minute, Silence: 5 * time.Minute,
			Convert: func(o runtime.Object, old string, _ time.Time) string {
				v := o.(*corev1.Pod).Labels["v"]
				if v == "panic" {
					panic("as asked for")
				}
				if strings.HasSuffix(old, v) {
					return old
				}
				return strings.TrimPrefix(old+">", ">") + v
			},
			Equal:   func(a, b string) bool { return a == b },
			Changed: make(chan struct{}, 1), Metrics: b.metrics, Logger: slog.New(slog.NewTextHandler(&b.log, nil)),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.Run(ctx)
			client.Close()
		}()
		t.Cleanup(func() {
			cancel()
			<-done
		})
		b.pass(time.Second)
		test(b)
	})
}

func (b *bed) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (b *bed) want(want ...string) {
	b.t.Helper()
	items, _ := b.Values()
	var got []string
	for _, name := range slices.Sorted(maps.Keys(items)) {
		got = append(got, name+"="+items[name])
	}
	if !slices.Equal(got, want) {
		b.t.Errorf("got %q, want %q", got, want)
	}
}

// asked returns how many requests ended in a way; an empty reason is success.
func (b *bed) asked(verb string, reason store.Reason) float64 {
	if reason == "" {
		reason = "ok"
	}
	return testutil.ToFloat64(b.metrics.requests.WithLabelValues(verb, string(reason)))
}

func pod(name, v string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"v": v}}}
}

func some(s *kubetest.Server) { s.Put(pod("a", "1"), pod("b", "1")) }

func TestMirrorFollows(t *testing.T) {
	run(t, some, func(b *bed) {
		b.want("a=1", "b=1")
		b.server.Put(pod("a", "2"), pod("c", "1"))
		b.server.Delete(pod("b", ""))
		b.pass(time.Second)
		b.want("a=1>2", "c=1")
		if n := testutil.ToFloat64(b.metrics.objects); n != 2 {
			t.Errorf("%v objects are counted", n)
		}
		for kind, want := range map[string]float64{"ADDED": 1, "MODIFIED": 1, "DELETED": 1, "BOOKMARK": 0} {
			if n := testutil.ToFloat64(b.metrics.events.WithLabelValues(kind)); n != want {
				t.Errorf("%v events %s, want %v", n, kind, want)
			}
		}
		if s := b.State(); s.Lists != 1 || s.Err != nil || time.Since(s.Heard) != time.Second {
			t.Errorf("state is %+v", s)
		}
	})
}

func TestMirrorGoesOnFromTheLastVersion(t *testing.T) {
	run(t, some, func(b *bed) {
		b.server.Put(pod("a", "2"))
		b.pass(2 * time.Second)
		b.server.Cut()
		b.pass(2 * time.Second)
		b.server.Put(pod("a", "3"))
		b.pass(2 * time.Second)
		b.want("a=1>2>3", "b=1")
		if n := testutil.ToFloat64(b.metrics.events.WithLabelValues("MODIFIED")); n != 2 {
			t.Errorf("%v events of two changes", n)
		}
		if lists, watches := b.server.Requests("list"), b.server.Requests("watch"); lists != 1 || watches != 2 {
			t.Errorf("%d lists and %d watches", lists, watches)
		}
	})
}

// TestMirrorWatchesFromTheVersionOfItsFirstPage: what changes while the other
// pages are read is not passed over.
func TestMirrorWatchesFromTheVersionOfItsFirstPage(t *testing.T) {
	var all []metav1.Object
	for i := range 501 {
		all = append(all, pod(fmt.Sprintf("p%03d", i), "1"))
	}
	lists := 0
	run(t, func(s *kubetest.Server) {
		s.Put(all...)
		s.Fail(func(verb, _ string) *kubetest.Fault {
			if verb == "list" {
				if lists++; lists == 2 {
					s.Delete(pod("p000", ""))
				}
			}
			return nil
		})
	}, func(b *bed) {
		items, _ := b.Values()
		if _, there := items["p000"]; there || len(items) != 500 || lists != 2 {
			t.Errorf("%d objects by %d pages, the deleted one is there: %t", len(items), lists, there)
		}
	})
}

// TestMirrorTellsWhenAnObjectWasSeen: all of a list at one moment, and what a
// watch shows when it came.
func TestMirrorTellsWhenAnObjectWasSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New()
		server.Put(pod("a", "1"), pod("b", "1"))
		server.Fail(func(verb, _ string) *kubetest.Fault {
			if verb == "list" {
				<-time.After(3 * time.Second)
			}
			return nil
		})
		go server.Serve()
		defer server.Close()
		client, err := NewClient(server.Config(), Pods)
		if err != nil {
			t.Fatal(err)
		}
		metrics, err := NewMetrics(nil)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		m := NewMirror(Options[time.Duration]{
			Client: client, Namespace: "ns", Relist: time.Hour, Silence: time.Hour,
			Convert: func(_ runtime.Object, _ time.Duration, at time.Time) time.Duration { return at.Sub(began) },
			Equal:   func(a, b time.Duration) bool { return a == b },
			Changed: make(chan struct{}, 1), Metrics: metrics, Logger: slog.New(slog.DiscardHandler),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.Run(ctx)
			client.Close()
		}()
		<-time.After(10 * time.Second)
		server.Put(pod("c", "1"))
		<-time.After(time.Second)
		items, _ := m.Values()
		if want := map[string]time.Duration{"a": 0, "b": 0, "c": 10 * time.Second}; !maps.Equal(items, want) {
			t.Errorf("seen at %v", items)
		}
		cancel()
		<-done
	})
}

// TestMirrorOutlivesPanics of what takes over lists and events.
func TestMirrorOutlivesPanics(t *testing.T) {
	run(t, some, func(b *bed) {
		b.server.Put(pod("a", "panic"))
		b.pass(time.Minute)
		b.want("a=1", "b=1")
		if b.asked("watch", ReasonPanic) == 0 || b.asked("list", ReasonPanic) == 0 {
			t.Errorf("%v watches and %v lists are counted", b.asked("watch", ReasonPanic), b.asked("list", ReasonPanic))
		}
		if n := b.server.Requests("list") + b.server.Requests("watch"); n > 20 {
			t.Errorf("%d requests in a minute", n)
		}
		wantError(t, b.State().Err, "list", ReasonPanic)
		if n := strings.Count(b.log.String(), "kubernetes mirror panicked"); n != 1 {
			t.Errorf("%d lines of the log tell of it", n)
		}
		b.server.Put(pod("a", "2"))
		b.pass(time.Minute)
		b.want("a=1>2", "b=1")
		if err := b.State().Err; err != nil {
			t.Errorf("afterwards %v", err)
		}
	})
}

func TestMirrorReadsPages(t *testing.T) {
	var all []metav1.Object
	for i := range 1201 {
		all = append(all, pod(string(rune('a'+i/26/26))+string(rune('a'+i/26%26))+string(rune('a'+i%26)), "1"))
	}
	run(t, func(s *kubetest.Server) { s.Put(all...) }, func(b *bed) {
		items, _ := b.Values()
		if len(items) != 1201 || b.server.Requests("list") != 3 || b.asked("list", "") != 1 {
			t.Errorf("%d objects by %d requests", len(items), b.server.Requests("list"))
		}
	})
	t.Run("the second is gone", func(t *testing.T) {
		calls := 0
		run(t, func(s *kubetest.Server) {
			s.Put(all...)
			s.Fail(func(verb, _ string) *kubetest.Fault {
				if calls++; verb == "list" && calls == 2 {
					return &kubetest.Fault{Status: http.StatusGone}
				}
				return nil
			})
		}, func(b *bed) {
			items, state := b.Values()
			if len(items) != 1201 || b.server.Requests("list") != 3 || state.Err != nil {
				t.Errorf("%d objects by %d requests, %v", len(items), b.server.Requests("list"), state.Err)
			}
		})
	})
}

// TestReasons provokes every reason.
func TestReasons(t *testing.T) {
	status := func(code int) kubetest.Fault { return kubetest.Fault{Status: code} }
	cases := []struct {
		verb   string
		reason store.Reason
		fault  kubetest.Fault
		shown  bool
	}{
		{"list", ReasonForbidden, status(http.StatusForbidden), true},
		{"watch", ReasonForbidden, status(http.StatusForbidden), true},
		{"list", ReasonUnauthorized, status(http.StatusUnauthorized), true},
		{"list", ReasonExpired, status(http.StatusGone), true},
		{"watch", ReasonExpired, status(http.StatusGone), false},
		{"list", ReasonThrottled, status(http.StatusTooManyRequests), true},
		{"watch", ReasonThrottled, kubetest.Fault{Status: http.StatusTooManyRequests, RetryAfter: "3"}, true},
		{"list", ReasonServer, status(http.StatusInternalServerError), true},
		{"watch", ReasonServer, status(http.StatusBadGateway), true},
		{"list", ReasonRejected, status(http.StatusNotFound), true},
		{"list", ReasonRejected, status(http.StatusFound), true},
		{"list", ReasonTimeout, kubetest.Fault{Hang: true}, true},
		{"watch", ReasonTimeout, kubetest.Fault{Hang: true}, true},
		{"list", ReasonTimeout, status(http.StatusGatewayTimeout), true},
		{"list", ReasonTimeout, kubetest.Fault{Body: strings.Repeat(" ", 100), Drip: true}, true},
		{"list", ReasonBadAnswer, kubetest.Fault{Body: "<html>"}, true},
		{"list", ReasonBadAnswer, kubetest.Fault{Body: `{"kind":"PodList","apiVersion":"v1","items":null}`}, true},
		{"list", ReasonBadAnswer, kubetest.Fault{Body: `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{}]}`}, true},
		{"list", ReasonBadAnswer, kubetest.Fault{Body: `{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"1"}}`}, true},
		{"watch", ReasonBadAnswer, kubetest.Fault{Body: `{"type":"ADDED","object":{}}`}, true},
		{"watch", ReasonBadAnswer, kubetest.Fault{Body: `{"type":"REPLACED","object":{"kind":"Pod","apiVersion":"v1"}}`}, true},
		{"watch", ReasonShort, kubetest.Fault{Body: " "}, true},
	}
	for _, c := range cases {
		t.Run(c.verb+" "+string(c.reason), func(t *testing.T) {
			run(t, some, func(b *bed) {
				b.server.Fail(func(verb, _ string) *kubetest.Fault {
					if verb == c.verb {
						return &c.fault
					}
					return nil
				})
				if c.verb == "list" {
					b.server.Expire()
				}
				b.server.Cut()
				b.pass(70 * time.Second)
				b.want("a=1", "b=1")
				if c.verb == "list" || c.shown {
					wantError(t, b.State().Err, c.verb, c.reason)
				}
				if b.asked(c.verb, c.reason) == 0 {
					t.Error("not counted")
				}
				if n := b.server.Requests("list") + b.server.Requests("watch"); n > 30 {
					t.Errorf("%d requests", n)
				}
				b.server.Fail(nil)
				b.pass(2 * time.Minute)
				if err := b.State().Err; err != nil {
					t.Errorf("afterwards %v", err)
				}
			})
		})
	}
	t.Run("unreachable", func(t *testing.T) {
		run(t, some, func(b *bed) {
			b.server.Down(errors.New("no route"))
			b.pass(time.Minute)
			wantError(t, b.State().Err, "watch", ReasonUnreachable)
			b.want("a=1", "b=1")
		})
	})
	t.Run("silent", func(t *testing.T) {
		run(t, some, func(b *bed) {
			b.server.Silence(true)
			b.pass(5*time.Minute + time.Second)
			if b.asked("watch", ReasonSilent) != 1 || b.State().Lists != 2 || b.State().Err != nil {
				t.Errorf("state is %+v", b.State())
			}
		})
	})
	t.Run("emptied", func(t *testing.T) {
		run(t, some, func(b *bed) {
			b.server.Empty(true)
			b.server.Expire()
			b.server.Cut()
			b.pass(30 * time.Second)
			b.want("a=1", "b=1")
			if b.asked("list", ReasonEmptied) != 1 || b.State().Err == nil {
				t.Errorf("state is %+v", b.State())
			}
			b.pass(40 * time.Second)
			b.want()
			if err := b.State().Err; err != nil {
				t.Errorf("afterwards %v", err)
			}
		})
	})
}

func wantError(t *testing.T, err error, verb string, reason store.Reason) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Verb != verb || e.Reason != reason || e.Namespace != "ns" || e.Unwrap() == nil {
		t.Errorf("the error is %v, %+v", err, e)
		return
	}
	if !strings.HasPrefix(e.Error(), "cannot "+verb+" pods in namespace ns: ") || strings.Contains(e.Error(), "resourceVersion=") {
		t.Errorf("the error reads %q", e)
	}
}

func TestWatchGoesOnWhileListsFail(t *testing.T) {
	run(t, some, func(b *bed) {
		b.server.Fail(func(verb, _ string) *kubetest.Fault {
			if verb == "list" {
				return &kubetest.Fault{Status: http.StatusInternalServerError}
			}
			return nil
		})
		b.pass(12 * time.Minute)
		wantError(t, b.State().Err, "list", ReasonServer)
		b.server.Put(pod("a", "2"))
		b.server.Delete(pod("b", ""))
		b.pass(3 * time.Second)
		b.want("a=1>2")
		if n := b.server.Requests("list"); n > 20 {
			t.Errorf("%d lists", n)
		}
		b.server.Fail(nil)
		b.pass(31 * time.Second)
		if err := b.State().Err; err != nil {
			t.Errorf("afterwards %v", err)
		}
	})
}

func TestRetryAfterIsKept(t *testing.T) {
	run(t, some, func(b *bed) {
		b.server.Fail(func(_, _ string) *kubetest.Fault {
			return &kubetest.Fault{Status: http.StatusTooManyRequests, RetryAfter: "50", Body: "too many requests"}
		})
		b.server.Cut()
		b.pass(2 * time.Minute)
		if n := b.server.Requests("watch"); n != 4 {
			t.Errorf("%d watches in two minutes, one of them before", n)
		}
	})
}

// TestRetryAfterOfListsIsKept while there is nothing to watch from.
func TestRetryAfterOfListsIsKept(t *testing.T) {
	run(t, func(s *kubetest.Server) {
		some(s)
		s.Fail(func(_, _ string) *kubetest.Fault {
			return &kubetest.Fault{Status: http.StatusTooManyRequests, RetryAfter: "50", Body: "too many requests"}
		})
	}, func(b *bed) {
		b.pass(2 * time.Minute)
		if n := b.server.Requests("list"); n != 3 {
			t.Errorf("%d lists in two minutes", n)
		}
		b.server.Fail(nil)
		b.pass(time.Minute)
		b.want("a=1", "b=1")
	})
}

func TestBackoff(t *testing.T) {
	var b backoff
	for i := range 100 {
		base := min(minBackoff<<min(i, 20), maxBackoff)
		if d := b.next(); d < base/2 || d >= base {
			t.Errorf("wait %d is %v", i, d)
		}
	}
}

// TestLogSaysWhetherThereIsAList: what is kept cannot be told of where nothing
// was ever read.
func TestLogSaysWhetherThereIsAList(t *testing.T) {
	const none, kept, well = "there is none yet", "last one kept", "go well again"
	fails := func(string, string) *kubetest.Fault { return &kubetest.Fault{Status: http.StatusForbidden} }
	run(t, func(s *kubetest.Server) { some(s); s.Fail(fails) }, func(b *bed) {
		said := func() string {
			defer b.log.Reset()
			return b.log.String()
		}
		if got := said(); strings.Count(got, none) != 1 || strings.Contains(got, kept) {
			t.Errorf("before the first list: %s", got)
		}
		b.server.Fail(nil)
		b.pass(time.Minute)
		if got := said(); !strings.Contains(got, well) {
			t.Errorf("with a list: %s", got)
		}
		b.server.Fail(fails)
		b.pass(12 * time.Minute)
		if got := said(); !strings.Contains(got, kept) || strings.Contains(got, none) || strings.Count(got, "\n") > 10 {
			t.Errorf("after the first list: %s", got)
		}
	})
}
