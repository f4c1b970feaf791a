package kube

import (
	"context"
	"fmt"
	"net/http/httptest"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/kube/kubetest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// big returns a Pod with as much around it as in a cluster, about 7 KiB.
func big(i int) *corev1.Pod {
	return pod(fmt.Sprintf("engine-%d", i), fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255), func(p *corev1.Pod) {
		p.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:status":{` + strings.Repeat(`"f:conditions":{".":{}},`, 180) + `"f:phase":{}}}`),
		}}
		for n := range 40 {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", n), Value: strings.Repeat("x", 20)})
		}
	}, note(prefix+"model", "org/model"), note(prefix+"role", "decode"))
}

// TestFiveThousandPods tells what a start with many Pods takes: time to the
// first list, memory and processor time, the server's part included.
func TestFiveThousandPods(t *testing.T) {
	const pods = 5000
	server := kubetest.New()
	for i := range pods {
		server.Put(big(i))
	}
	listen := httptest.NewServer(server)
	defer listen.Close()
	source, err := New(Options{Config: &rest.Config{Host: listen.URL}, Namespaces: []string{"ns"}, Selector: "app=llm"})
	if err != nil {
		t.Fatal(err)
	}
	before, cpu, began := heap(), processorTime(t), time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	listings := make(chan registry.Listing, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		source.Run(ctx, func(l registry.Listing) { listings <- l })
	}()
	first := <-listings
	took, used := time.Since(began), processorTime(t)-cpu
	if first.Err != nil || len(first.Specs) != pods {
		t.Errorf("got %d workers, %v", len(first.Specs), first.Err)
	}
	t.Logf("first list of %d Pods after %v (100 ms of it settling), %v of processor time, %d KiB of heap kept",
		pods, took.Round(time.Millisecond), used.Round(time.Millisecond), (heap()-before)>>10)
	cpu, began = processorTime(t), time.Now()
	server.Put(pod("engine-0", "10.255.0.1"))
	for l := range listings {
		if l.Err == nil && l.Specs[0].Origin == "10.255.0.1:8000" {
			break
		}
	}
	t.Logf("one change among %d Pods: delivered after %v, %v of processor time", pods, time.Since(began).Round(time.Millisecond), processorTime(t)-cpu)
	cancel()
	<-done
	runtime.KeepAlive(source)
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
