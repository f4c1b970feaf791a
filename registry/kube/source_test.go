package kube

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/kube/kubetest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// run runs a test in a bubble.
func run(t *testing.T, opts Options, prepare func(*kubetest.Server), test func(*bed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(follow(t, opts, prepare)) })
}

func three(s *kubetest.Server) {
	s.Put(pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), pod("c", "10.0.0.3"))
}

const (
	allThree = "ns/a/8000@10.0.0.1:8000 ns/b/8000@10.0.0.2:8000 ns/c/8000@10.0.0.3:8000"
	firstTwo = "ns/a/8000@10.0.0.1:8000 ns/b/8000@10.0.0.2:8000"
)

func TestBug12DeleteWhileWatchIsCut(t *testing.T) {
	run(t, byLabel, three, func(b *bed) {
		b.want(allThree)
		b.server.Down(errors.New("gone"))
		b.server.Delete(pod("c", ""))
		b.pass(10 * time.Second)
		b.want(allThree)
		b.wantError("cannot watch pods in namespace ns", "gone")
		b.server.Down(nil)
		b.pass(30 * time.Second)
		b.want(firstTwo)
		b.wantError()
	})
}

func TestBug12DeleteWhileWatchIsCutAndHistoryIsGone(t *testing.T) {
	run(t, byLabel, three, func(b *bed) {
		b.server.Down(errors.New("gone"))
		b.server.Delete(pod("c", ""))
		b.server.Expire()
		b.server.Down(nil)
		b.pass(30 * time.Second)
		b.want(firstTwo)
		b.wantError()
	})
}

func TestBug13WatchHeldOpenInSilence(t *testing.T) {
	run(t, byLabel, three, func(b *bed) {
		b.server.Silence(true)
		b.server.Delete(pod("c", ""))
		b.server.Put(pod("b", "10.0.0.2", deleted))
		b.pass(4 * time.Minute)
		b.want(allThree)
		if s := b.number("loadplane_kube_silence_seconds"); s < 200 {
			t.Errorf("silence of %v s is shown", s)
		}
		b.pass(61 * time.Second)
		b.want(firstTwo + "!")
		b.wantError()
		if s := b.number("loadplane_kube_silence_seconds"); s > 10 {
			t.Errorf("silence of %v s is shown after a list", s)
		}
	})
}

func TestBookmarksAreNoSilence(t *testing.T) {
	run(t, byLabel, three, func(b *bed) {
		b.pass(8 * time.Minute)
		if n := b.server.Requests("list"); n != 1 {
			t.Errorf("%d lists in eight quiet minutes", n)
		}
		b.pass(20 * time.Minute)
		if n := b.server.Requests("list"); n < 3 || n > 4 {
			t.Errorf("%d lists in 28 minutes", n)
		}
		if _, lists, _ := b.specs(); lists != b.server.Requests("list") {
			t.Errorf("%d lists were delivered, %d read", lists, b.server.Requests("list"))
		}
	})
}

func TestBug14TerminatingDrains(t *testing.T) {
	t.Run("pods", func(t *testing.T) {
		run(t, byLabel, three, func(b *bed) {
			failed := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
			b.server.Put(pod("a", "10.0.0.1", deleted), pod("b", "10.0.0.2", failed), pod("c", "10.0.0.3", deleted, unready))
			b.pass(time.Second)
			b.want("ns/a/8000@10.0.0.1:8000! ns/c/8000@10.0.0.3:8000!")
			b.server.Delete(pod("a", ""))
			b.pass(time.Second)
			b.want("ns/c/8000@10.0.0.3:8000!")
		})
	})
	t.Run("slices", func(t *testing.T) {
		run(t, byService, func(s *kubetest.Server) {
			s.Put(slice("s", "llm", endpoint("a", "10.0.0.1", false, true, true), endpoint("b", "10.0.0.2", false, false, true),
				endpoint("c", "10.0.0.3", true, true, true), endpoint("d", "10.0.0.4", false, false, false)))
		}, func(b *bed) {
			b.want("ns/a/8000@10.0.0.1:8000! ns/b/8000@10.0.0.2:8000! ns/c/8000@10.0.0.3:8000!")
			b.server.Put(slice("s", "llm", endpoint("b", "10.0.0.2", false, false, true)))
			b.pass(time.Second)
			b.want("ns/b/8000@10.0.0.2:8000!")
		})
	})
}

func TestBug15NilConditionsAreReady(t *testing.T) {
	prepare := func(s *kubetest.Server) {
		s.Put(slice("s", "llm", endpoint("", "10.1.2.133"), endpoint("", "10.1.2.134", false)))
	}
	run(t, byService, prepare, func(b *bed) { b.want("ns/10.1.2.133/8000@10.1.2.133:8000") })
	run(t, Options{Services: []string{"llm"}, Port: "9000"}, prepare, func(b *bed) {
		b.want("ns/10.1.2.133/9000@10.1.2.133:9000")
	})
}

func TestBug16SameNameAndAddressWithAnotherUID(t *testing.T) {
	run(t, byLabel, three, func(b *bed) {
		b.server.Cut()
		b.server.Delete(pod("a", ""))
		b.server.Put(pod("a", "10.0.0.1", uid("another")))
		b.pass(5 * time.Second)
		b.want(allThree)
		if specs, _, _ := b.specs(); specs[0].UID != "another" || specs[1].UID != "uid-b" {
			t.Errorf("identities are %q and %q", specs[0].UID, specs[1].UID)
		}
	})
}

func TestBug24BadValuesKeepThePod(t *testing.T) {
	run(t, byLabel, func(s *kubetest.Server) {
		s.Put(pod("a", "10.0.0.1", note(prefix+"role", "decode")), pod("b", "10.0.0.2"))
	}, func(b *bed) {
		b.server.Put(pod("a", "10.0.0.1", note(prefix+"role", "nonsense"), note(prefix+"zone", "z"), note(prefix+"colour", "red")))
		b.pass(time.Second)
		b.want(firstTwo)
		if specs, _, _ := b.specs(); specs[0].Zone != "z" {
			t.Errorf("the good value beside the bad one is lost: %+v", specs[0])
		}
		if n := b.number("loadplane_kube_ignored_values_total"); n != 2 {
			t.Errorf("%v values are counted as ignored", n)
		}
		b.server.Put(pod("a", "10.0.0.1", note(prefix+"role", "nonsense"), note(prefix+"zone", "y"), note(prefix+"colour", "red")))
		b.pass(time.Second)
		if n := strings.Count(b.log.String(), "nonsense"); n != 1 {
			t.Errorf("the bad value is logged %d times", n)
		}
	})
}

func TestBug24BadLineOfWatch(t *testing.T) {
	for name, line := range map[string]string{
		"no JSON":        `{"type":"ADDED","obj`,
		"foreign object": `{"type":"ADDED","object":{"kind":"Secret","apiVersion":"v1","metadata":{"name":"x"}}}`,
		"status":         `{"type":"ADDED","object":{"kind":"Status","apiVersion":"v1"}}`,
		"no name":        `{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"7"}}}`,
		"huge":           `{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"` + strings.Repeat("x", 17<<20) + `"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			run(t, byLabel, three, func(b *bed) {
				b.server.Send(line)
				b.server.Delete(pod("c", ""))
				b.pass(20 * time.Second)
				b.want(firstTwo)
				b.wantError()
			})
		})
	}
}

func TestBug25SameNameWithAnotherAddress(t *testing.T) {
	run(t, byLabel, three, func(b *bed) {
		_, before, _ := b.specs()
		b.server.Put(pod("c", "10.0.0.9"))
		b.pass(time.Second)
		b.want(firstTwo + " ns/c/8000@10.0.0.9:8000")
		if _, lists, _ := b.specs(); lists != before+1 {
			t.Errorf("%d lists for one change", lists-before)
		}
	})
}

func TestBug49ZeroMatches(t *testing.T) {
	run(t, Options{Selector: "app=nonsense"}, three, func(b *bed) {
		b.pass(time.Minute)
		b.want("")
		for name, want := range map[string]float64{"loadplane_kube_workers": 0, "loadplane_kubeapi_objects": 0, "loadplane_kube_lists_delivered_total": 1} {
			if n := b.number(name); n != want {
				t.Errorf("%s is %v, want %v", name, n, want)
			}
		}
	})
	run(t, byLabel, func(s *kubetest.Server) { s.Put(pod("a", "10.0.0.1"), pod("b", "10.0.0.2", unready), pod("c", "")) }, func(b *bed) {
		if n := b.number("loadplane_kube_workers"); n != 1 {
			t.Errorf("%v workers are counted", n)
		}
		if n := b.number("loadplane_kube_passed_over"); n != 2 {
			t.Errorf("%v are counted as passed over", n)
		}
	})
}

func TestBug50NamespacesAndDeletionsThatNoWatchShowed(t *testing.T) {
	other := pod("a", "10.0.1.1", func(p *corev1.Pod) { p.Namespace = "other" })
	run(t, Options{Selector: "app=llm", Namespaces: []string{"other", "ns"}}, func(s *kubetest.Server) {
		three(s)
		s.Put(other)
	}, func(b *bed) {
		b.want(allThree + " other/a/8000@10.0.1.1:8000")
		b.server.Silence(true)
		b.server.Delete(pod("a", ""))
		b.server.Expire()
		b.server.Cut()
		b.server.Silence(false)
		b.pass(30 * time.Second)
		b.want("ns/b/8000@10.0.0.2:8000 ns/c/8000@10.0.0.3:8000 other/a/8000@10.0.1.1:8000")
	})
}

func TestBug51DeleteAndAddOverAndOver(t *testing.T) {
	run(t, byLabel, three, func(b *bed) {
		for i := range 1000 {
			b.server.Delete(pod("c", ""))
			b.server.Put(pod("c", "10.0.0.3", uid(fmt.Sprint(i))))
			if i%97 == 0 {
				b.server.Cut()
			}
			<-time.After(time.Millisecond)
		}
		b.pass(30 * time.Second)
		b.want(allThree)
		specs, lists, _ := b.specs()
		if specs[2].UID != "999" {
			t.Errorf("the identity is %q", specs[2].UID)
		}
		if lists > 40 {
			t.Errorf("%d lists for a second of changes", lists)
		}
	})
}

func TestBug53Slices(t *testing.T) {
	one := slice("s1", "llm", endpoint("a", "10.0.0.1"), endpoint("b", "10.0.0.2"))
	two := slice("s2", "llm", endpoint("b", "10.0.0.2"), endpoint("c", "10.0.0.3"))
	run(t, byService, func(s *kubetest.Server) { s.Put(one, two, slice("s3", "foreign", endpoint("x", "10.0.0.9"))) }, func(b *bed) {
		b.want(allThree)
		b.server.Delete(two)
		b.pass(time.Second)
		b.want(firstTwo)
		b.server.Put(slice("s1", "llm")) // endpoints: null
		b.pass(time.Second)
		b.want("")
		b.wantError()
	})
}

func TestBug53OnePodInSlicesThatDisagree(t *testing.T) {
	cases := []struct {
		name       string
		one, other []bool
		want       string
	}{
		{"unready and ready", []bool{false}, []bool{true}, "ns/a/8000@10.0.0.1:8000"},
		{"terminating and ready", []bool{false, true, true}, []bool{true}, "ns/a/8000@10.0.0.1:8000"},
		{"terminating in both", []bool{false, true, true}, []bool{false, false, true}, "ns/a/8000@10.0.0.1:8000!"},
		{"terminating and unready", []bool{false, true, true}, []bool{false}, "ns/a/8000@10.0.0.1:8000!"},
		{"unready in both", []bool{false}, []bool{false, true, false}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, names := range [][2]string{{"s1", "s2"}, {"s2", "s1"}} {
				run(t, byService, func(s *kubetest.Server) {
					s.Put(slice(names[0], "llm", endpoint("a", "10.0.0.1", c.one...)), slice(names[1], "llm", endpoint("a", "10.0.0.1", c.other...)))
				}, func(b *bed) { b.want(c.want) })
			}
		})
	}
}

func TestBug63RemovalStays(t *testing.T) {
	run(t, byLabel, three, func(b *bed) {
		b.server.Put(pod("d", "10.0.0.4"))
		b.server.Delete(pod("d", ""))
		b.pass(time.Minute)
		b.want(allThree)
	})
}

func TestBug73FirstWorkerOfNone(t *testing.T) {
	run(t, byLabel, nothing, func(b *bed) {
		if _, lists, err := b.specs(); lists != 1 || err != nil {
			t.Fatalf("%d lists of nothing, error %v", lists, err)
		}
		b.pass(5 * time.Minute)
		b.server.Put(pod("a", "10.0.0.1"))
		b.pass(time.Second)
		b.want("ns/a/8000@10.0.0.1:8000")
	})
}

func TestSameAddressWithANewPod(t *testing.T) {
	host := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	cases := []struct {
		name     string
		old, new *corev1.Pod
		want     string
	}{
		{"newer", pod("z", "10.0.0.1", made(0)), pod("a", "10.0.0.1", made(time.Minute)), "ns/a/8000@10.0.0.1:8000"},
		{"newer with the higher name", pod("a", "10.0.0.1", made(0)), pod("z", "10.0.0.1", made(time.Minute)), "ns/z/8000@10.0.0.1:8000"},
		{"newer that drains", pod("a", "10.0.0.1", made(0)), pod("z", "10.0.0.1", made(time.Minute), deleted), "ns/a/8000@10.0.0.1:8000"},
		{"newer that is not ready", pod("a", "10.0.0.1", made(0)), pod("z", "10.0.0.1", made(time.Minute), unready), "ns/a/8000@10.0.0.1:8000"},
		{"on one host", pod("a", "10.0.0.1", made(0), host), pod("z", "10.0.0.1", made(time.Minute), host), "ns/a/8000@10.0.0.1:8000 ns/z/8000@10.0.0.1:8000"},
		{"draining on one host", pod("a", "10.0.0.1", host, deleted), pod("z", "10.0.0.1", made(time.Minute), host), "ns/z/8000@10.0.0.1:8000"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			run(t, byLabel, func(s *kubetest.Server) { s.Put(c.old, c.new) }, func(b *bed) { b.want(c.want) })
		})
	}
}

// TestSameAddressWithANewEndpoint: no endpoint says when its Pod was made; the
// one that was seen later is the newer one.
func TestSameAddressWithANewEndpoint(t *testing.T) {
	a, z := endpoint("a", "10.0.0.1"), endpoint("z", "10.0.0.1")
	const onlyA, onlyZ = "ns/a/8000@10.0.0.1:8000", "ns/z/8000@10.0.0.1:8000"
	put := func(objects ...metav1.Object) func(*kubetest.Server) {
		return func(s *kubetest.Server) { s.Put(objects...) }
	}
	cases := []struct {
		name  string
		steps []func(*kubetest.Server)
		want  string
	}{
		{"with the higher name", []func(*kubetest.Server){put(slice("s", "llm", a)), put(slice("s", "llm", a, z))}, onlyZ},
		{"with the lower name", []func(*kubetest.Server){put(slice("s", "llm", z)), put(slice("s", "llm", z, a))}, onlyA},
		{"before it in the slice", []func(*kubetest.Server){put(slice("s", "llm", a)), put(slice("s", "llm", z, a))}, onlyZ},
		{"in another slice", []func(*kubetest.Server){put(slice("s2", "llm", a)), put(slice("s1", "llm", z))}, onlyZ},
		{"beside others", []func(*kubetest.Server){
			put(slice("s", "llm", endpoint("b", "10.0.0.9"), a)), put(slice("s", "llm", endpoint("b", "10.0.0.9"), a, z)),
		}, "ns/b/8000@10.0.0.9:8000 " + onlyZ},
		{"that drains", []func(*kubetest.Server){put(slice("s", "llm", a)), put(slice("s", "llm", a, endpoint("z", "10.0.0.1", false, true, true)))}, onlyA},
		{"that is ready only later", []func(*kubetest.Server){
			put(slice("s", "llm", a)), put(slice("s", "llm", a, endpoint("z", "10.0.0.1", false))), put(slice("s", "llm", a, z)),
		}, onlyZ},
		{"while the old one is unready for a moment", []func(*kubetest.Server){
			put(slice("s", "llm", a)), put(slice("s", "llm", a, z)), put(slice("s", "llm", endpoint("a", "10.0.0.1", false), z)), put(slice("s", "llm", a, z)),
		}, onlyZ},
		{"while another slice shows the old one too", []func(*kubetest.Server){
			put(slice("s2", "llm", a)), put(slice("s2", "llm", a, z)), put(slice("s1", "llm", a)),
		}, onlyZ},
		{"and a list anew", []func(*kubetest.Server){
			put(slice("s", "llm", z)), put(slice("s", "llm", a, z)), func(s *kubetest.Server) { s.Expire(); s.Cut() },
		}, onlyA},
		{"and the old one with another address before", []func(*kubetest.Server){
			put(slice("s", "llm", endpoint("a", "10.0.0.9"))), put(slice("s", "llm", endpoint("a", "10.0.0.9"), z)), put(slice("s", "llm", a, z)),
		}, onlyA},
		{"in one event", []func(*kubetest.Server){put(slice("s", "llm", a, z))}, onlyA + " " + onlyZ},
		{"without an identity", []func(*kubetest.Server){put(slice("s", "llm", a)), put(slice("s", "llm", a, endpoint("", "10.0.0.1")))}, "ns/10.0.0.1/8000@10.0.0.1:8000 " + onlyA},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			run(t, byService, nothing, func(b *bed) {
				for _, step := range c.steps {
					step(b.server)
					b.pass(10 * time.Second)
				}
				b.want(c.want)
				if n := int(b.number("loadplane_kube_passed_over")); !strings.Contains(c.want, " ") && n != 1 {
					t.Errorf("%d are counted as passed over", n)
				}
			})
		})
	}
	t.Run("both in the first list", func(t *testing.T) {
		run(t, byService, put(slice("s1", "llm", a), slice("s2", "llm", z)), func(b *bed) { b.want(onlyA + " " + onlyZ) })
	})
}

// TestRunEndsWithAPanicOfItsReader: the goroutines do not stay behind.
func TestRunEndsWithAPanicOfItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New()
		three(server)
		go server.Serve()
		defer server.Close()
		source, err := New(Options{Config: server.Config(), Selector: "app=llm", Namespaces: []string{"ns"}})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan any)
		go func() {
			defer func() { ended <- recover() }()
			source.Run(t.Context(), func(registry.Listing) { panic("as asked for") })
		}()
		select {
		case p := <-ended:
			if p != "as asked for" {
				t.Errorf("it ended with %v", p)
			}
		case <-time.After(time.Hour):
			t.Error("it did not end")
		}
	})
}

func TestEmptyListNeverWipes(t *testing.T) {
	run(t, byLabel, three, func(b *bed) {
		b.server.Empty(true)
		b.server.Expire()
		b.server.Cut()
		b.pass(30 * time.Second)
		b.want(allThree)
		b.wantError("empty where it had 3")
		if b.number("loadplane_kube_failing") != 1 {
			t.Error("no metric says so")
		}
		b.server.Empty(false)
		b.pass(45 * time.Second)
		b.want(allThree)
		b.wantError()
		if b.number("loadplane_kube_failing") != 0 {
			t.Error("a metric says that it still fails")
		}
	})
}

func TestEmptyListThatIsConfirmed(t *testing.T) {
	run(t, byLabel, three, func(b *bed) {
		b.server.Delete(pod("a", ""), pod("b", ""), pod("c", ""))
		b.server.Put() // the watch shows all of it
		b.pass(time.Second)
		b.want("")
		b.wantError()
	})
	run(t, byLabel, three, func(b *bed) {
		b.server.Silence(true)
		b.server.Delete(pod("a", ""), pod("b", ""), pod("c", ""))
		b.server.Expire()
		b.server.Cut()
		b.server.Silence(false)
		b.pass(50 * time.Second)
		b.want(allThree)
		b.pass(20 * time.Second)
		b.want("")
		b.wantError()
	})
	run(t, byLabel, three, func(b *bed) { // after silence the old version shows the deletions
		b.server.Silence(true)
		b.server.Delete(pod("a", ""), pod("b", ""), pod("c", ""))
		b.pass(5*time.Minute - 2*time.Second)
		b.want(allThree)
		b.server.Silence(false)
		b.pass(10 * time.Second)
		b.want("")
		b.wantError()
	})
}

func TestServerDownForTenMinutes(t *testing.T) {
	run(t, byLabel, three, func(b *bed) {
		_, before, _ := b.specs()
		b.server.Down(errors.New("connection refused"))
		b.server.Delete(pod("c", ""))
		b.pass(10 * time.Minute)
		b.want(allThree)
		b.wantError("cannot", "pods in namespace ns", "connection refused")
		if _, lists, _ := b.specs(); lists != before {
			t.Error("a list was delivered")
		}
		if n := len(b.listings); n > before+3 {
			t.Errorf("%d deliveries of one error", n-before)
		}
		b.server.Down(nil)
		b.pass(40 * time.Second) // the longest wait, and until a watch stands
		b.want(firstTwo)
		b.wantError()
	})
}

func TestServerDownAtStart(t *testing.T) {
	run(t, byLabel, func(s *kubetest.Server) {
		three(s)
		s.Down(errors.New("connection refused"))
	}, func(b *bed) {
		b.wantError("cannot list pods in namespace ns", "connection refused")
		if _, lists, _ := b.specs(); lists != 0 {
			t.Error("a list was delivered")
		}
		b.pass(10 * time.Minute)
		b.server.Down(nil)
		b.pass(40 * time.Second) // the longest wait, and until a watch stands
		b.want(allThree)
		b.wantError()
	})
}

func TestAnswersThatFail(t *testing.T) {
	cases := []struct {
		name     string
		fault    kubetest.Fault
		mentions []string
	}{
		{"500", kubetest.Fault{Status: http.StatusInternalServerError}, []string{"as asked for"}},
		{"429", kubetest.Fault{Status: http.StatusTooManyRequests, RetryAfter: "7"}, []string{"as asked for"}},
		{"401", kubetest.Fault{Status: http.StatusUnauthorized}, []string{"cannot"}},
		{"403", kubetest.Fault{Status: http.StatusForbidden}, []string{"forbidden", "needs list and watch on pods in namespace ns", "deploy/kubernetes/rbac.yaml"}},
		{"page of a proxy", kubetest.Fault{Body: "<html>"}, []string{"cannot list"}},
		{"slow drip", kubetest.Fault{Body: strings.Repeat(" ", 1000), Drip: true}, []string{"cannot list"}},
		{"no answer", kubetest.Fault{Hang: true}, []string{"no answer in time"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			run(t, byLabel, three, func(b *bed) {
				b.server.Fail(func(_, _ string) *kubetest.Fault { return &c.fault })
				b.server.Expire()
				b.server.Cut()
				b.pass(2 * time.Minute)
				if c.fault.Drip { // first as a watch, which is trusted for five minutes
					b.pass(4 * time.Minute)
				}
				b.want(allThree)
				b.wantError(c.mentions...)
				if n := b.server.Requests("list") + b.server.Requests("watch"); n > 40 {
					t.Errorf("%d requests in two minutes", n)
				}
				b.server.Fail(nil)
				b.server.Delete(pod("c", ""))
				b.pass(3 * time.Minute)
				b.want(firstTwo)
				b.wantError()
			})
		})
	}
}

func TestWatchDeniedStillLists(t *testing.T) {
	run(t, byLabel, func(s *kubetest.Server) {
		three(s)
		s.Fail(func(verb, _ string) *kubetest.Fault {
			if verb == "watch" {
				return &kubetest.Fault{Status: http.StatusForbidden}
			}
			return nil
		})
	}, func(b *bed) {
		b.want(allThree)
		b.wantError("cannot watch pods in namespace ns: forbidden", "list and watch")
		b.server.Delete(pod("c", ""))
		b.pass(3 * time.Minute)
		b.want(firstTwo)
		b.wantError("cannot watch")
	})
}

func changedPhase(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }

func TestOneNamespaceFails(t *testing.T) {
	run(t, Options{Selector: "app=llm", Namespaces: []string{"closed", "ns"}}, func(s *kubetest.Server) {
		three(s)
		s.Fail(func(_, namespace string) *kubetest.Fault {
			if namespace == "closed" {
				return &kubetest.Fault{Status: http.StatusForbidden}
			}
			return nil
		})
	}, func(b *bed) {
		b.want("")
		if _, lists, _ := b.specs(); lists != 0 {
			t.Error("a part was delivered as the whole at once")
		}
		b.wantError("namespace closed")
		b.pass(30 * time.Second)
		b.want(allThree)
		b.wantError("namespace closed: forbidden")
		b.server.Delete(pod("c", ""))
		b.pass(time.Second)
		b.want(firstTwo)
		b.wantError("namespace closed: forbidden")
		before := len(b.listings)
		b.server.Put(pod("d", "10.0.0.4", unready))
		b.pass(time.Second)
		b.server.Put(pod("d", "", changedPhase))
		b.pass(time.Second)
		if n := len(b.listings) - before; n != 0 {
			t.Errorf("%d deliveries of nothing new", n)
		}
		b.server.Fail(nil)
		b.pass(time.Minute)
		b.want(firstTwo)
		b.wantError()
	})
}

// TestRandomEvents holds the source to a model through random events and
// faults.
func TestRandomEvents(t *testing.T) {
	events := 10000
	if testing.Short() {
		events = 1000
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	run(t, Options{Selector: "app=llm", Namespaces: []string{"ns", "other"}}, nothing, func(b *bed) {
		began := time.Now()
		m := &model{random: rand.New(rand.NewPCG(seed, 1)), pods: map[string]*corev1.Pod{}, server: b.server}
		for range events {
			m.step()
			if m.random.IntN(4) == 0 {
				<-time.After(rand.N(40 * time.Millisecond))
			}
		}
		took := time.Since(began)
		_, lists, _ := b.specs()
		if most := int(took/settle) + 2; lists > most || lists > events/4 {
			t.Errorf("%d lists in %v, above %d or a quarter of %d events", lists, took, most, events)
		}
		m.calm()
		b.pass(20 * time.Minute)
		b.want(m.want())
		b.wantError()
		t.Logf("%d events in %v of simulated time, %d lists delivered, %d list and %d watch requests, %d pods at the end",
			events, took, lists, b.server.Requests("list"), b.server.Requests("watch"), len(m.pods))
	})
}

// model is what the API server should say.
type model struct {
	random *rand.Rand
	pods   map[string]*corev1.Pod
	server *kubetest.Server
	made   int
}

func (m *model) step() {
	key := fmt.Sprintf("%s/p%d", []string{"ns", "other"}[m.random.IntN(2)], m.random.IntN(40))
	p := m.pods[key]
	switch n := m.random.IntN(100); {
	case n < 2:
		m.disturb()
	case p == nil:
		m.made++
		namespace, name, _ := strings.Cut(key, "/")
		p = pod(name, fmt.Sprintf("10.0.0.%d", 1+m.random.IntN(60)), made(time.Duration(m.made)*time.Second), func(p *corev1.Pod) {
			p.Namespace, p.UID = namespace, types.UID(fmt.Sprint("uid-", m.made))
		})
		m.put(key, p)
	case n < 25:
		m.server.Delete(p)
		delete(m.pods, key)
	case n < 40:
		m.put(key, changed(p, deleted))
	case n < 60:
		m.put(key, changed(p, unready))
	case n < 70:
		m.put(key, changed(p, tag("app", "llm"+[]string{"", "x"}[m.random.IntN(2)])))
	default:
		m.put(key, changed(p, func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue }))
	}
}

func changed(p *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
	p = p.DeepCopy()
	change(p)
	return p
}

func (m *model) put(key string, p *corev1.Pod) {
	m.pods[key] = p
	m.server.Put(p)
}

// disturb begins or ends a fault.
func (m *model) disturb() {
	switch m.random.IntN(12) {
	case 0:
		m.server.Expire()
	case 1:
		m.server.Silence(true)
	case 2:
		m.server.Empty(true)
	case 3:
		m.server.Send(`{"type":"ADDED","object":{`)
	case 4:
		m.server.Fail(func(_, _ string) *kubetest.Fault {
			return []*kubetest.Fault{nil, {Status: http.StatusInternalServerError}, {Status: http.StatusGone}}[rand.IntN(3)]
		})
	case 5:
		m.server.Down(errors.New("down"))
	default:
		m.calm()
	}
	m.server.Cut()
}

func (m *model) calm() {
	m.server.Silence(false)
	m.server.Empty(false)
	m.server.Fail(nil)
	m.server.Down(nil)
}

// want computes the list of workers in the plainest way.
func (m *model) want() string {
	holder := map[string]*corev1.Pod{}
	listed := func(p *corev1.Pod) bool {
		return p.Labels["app"] == "llm" && (p.DeletionTimestamp != nil || p.Status.Conditions[0].Status == corev1.ConditionTrue)
	}
	better := func(p, q *corev1.Pod) bool {
		if (p.DeletionTimestamp == nil) != (q.DeletionTimestamp == nil) {
			return p.DeletionTimestamp == nil
		}
		return p.CreationTimestamp.After(q.CreationTimestamp.Time)
	}
	for _, p := range m.pods {
		if h := holder[p.Status.PodIP]; listed(p) && (h == nil || better(p, h)) {
			holder[p.Status.PodIP] = p
		}
	}
	var words []string
	for _, p := range holder {
		w := fmt.Sprintf("%s/%s/8000@%s:8000", p.Namespace, p.Name, p.Status.PodIP)
		if p.DeletionTimestamp != nil {
			w += "!"
		}
		words = append(words, w)
	}
	return sorted(words)
}

func sorted(words []string) string {
	slices.SortFunc(words, func(a, b string) int {
		a, _, _ = strings.Cut(a, "@")
		b, _, _ = strings.Cut(b, "@")
		return strings.Compare(a, b)
	})
	return strings.Join(words, " ")
}
