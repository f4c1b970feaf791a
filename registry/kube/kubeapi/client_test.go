package kubeapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/loadplane/loadplane/store"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// TestProtobuf reads a list and a watch in the encoding that is asked for first.
func TestProtobuf(t *testing.T) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	full, raw := protobuf.NewSerializer(scheme, scheme), protobuf.NewRawSerializer(scheme, scheme)
	head := metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	one := corev1.Pod{TypeMeta: head, ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", ResourceVersion: "7"}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		accept := strings.Split(r.Header.Get("Accept"), ",")
		if accept[0] != runtime.ContentTypeProtobuf && accept[0] != runtime.ContentTypeProtobuf+";stream=watch" || !slices.Contains(accept, runtime.ContentTypeJSON) {
			t.Errorf("accepts %q", accept)
		}
		if r.URL.Query().Get("watch") == "" {
			w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
			list := &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []corev1.Pod{one}}
			if err := full.Encode(list, w); err != nil {
				t.Error(err)
			}
			return
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		var object bytes.Buffer
		if err := full.Encode(&one, &object); err != nil {
			t.Error(err)
		}
		e := &metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: object.Bytes()}}
		if err := raw.Encode(e, protobuf.LengthDelimitedFramer.NewFrameWriter(w)); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL}, Pods)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	list, err := client.list(t.Context(), "ns", &metav1.ListOptions{})
	if l, ok := list.(*corev1.PodList); err != nil || !ok || len(l.Items) != 1 || l.Items[0].Name != "a" || l.ResourceVersion != "9" {
		t.Errorf("got %v, %v", list, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	w, err := client.watch(ctx, cancel, "ns", &metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	e := <-w.ResultChan()
	if p, ok := e.Object.(*corev1.Pod); e.Type != watch.Modified || !ok || p.Name != "a" {
		t.Errorf("got %+v", e)
	}
}

// TestAnswersAreBounded: one that is longer than may be is refused, and one that
// is not is read.
func TestAnswersAreBounded(t *testing.T) {
	const head = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"}`
	const most = 4096
	for name, c := range map[string]struct {
		bytes  int
		reason store.Reason
	}{
		"as long as may be": {most - 1, ""},
		"longer":            {most + 1, ReasonBadAnswer},
		"much longer":       {100 * most, ReasonBadAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", runtime.ContentTypeJSON)
				_, _ = io.WriteString(w, head+strings.Repeat(" ", c.bytes-len(head)-1)+"}")
			}))
			defer server.Close()
			client, err := newClient(&rest.Config{Host: server.URL}, Pods, most)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			_, err = client.list(t.Context(), "ns", &metav1.ListOptions{})
			var e *Error
			if c.reason == "" && err != nil || c.reason != "" && (!errors.As(err, &e) || e.Reason != c.reason || !errors.Is(err, errTooBig)) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestRedirectsAreNotFollowed: the credential goes to no other place.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var followed atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		followed.Add(1)
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"}}`)
	}))
	defer other.Close()
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+r.URL.Path, status)
		}))
		client, err := NewClient(&rest.Config{Host: server.URL}, Pods)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		_, listed := client.list(ctx, "ns", &metav1.ListOptions{})
		_, watched := client.watch(ctx, cancel, "ns", &metav1.ListOptions{})
		for _, err := range []error{listed, watched} {
			var e *Error
			if !errors.As(err, &e) || e.Reason != ReasonRejected {
				t.Errorf("%d: got %v", status, err)
			}
		}
		cancel(nil)
		client.Close()
		server.Close()
	}
	if n := followed.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// TestRefusedTokenIsReadAnew: a token that is revoked before its time is
// replaced by that of the file at the next request.
func TestRefusedTokenIsReadAnew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var valid atomic.Value
	valid.Store("first")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+valid.Load().(string) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"}}`)
	}))
	defer server.Close()
	write("first")
	client, err := NewClient(&rest.Config{Host: server.URL, BearerToken: "stale", BearerTokenFile: file}, Pods)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ask := func() error {
		_, err := client.list(t.Context(), "ns", &metav1.ListOptions{})
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	valid.Store("second")
	write("second")
	var refused *Error
	if err := ask(); !errors.As(err, &refused) || refused.Reason != ReasonUnauthorized {
		t.Fatalf("with the old token: %v", err)
	}
	if err := ask(); err != nil {
		t.Errorf("with the new token: %v", err)
	}
}
