package kubeapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/loadplane/loadplane/store"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"
)

// Limits of one request.
const (
	// maxAnswerBytes bounds an answer that is no watch. A page has 500 objects,
	// and etcd holds none above 1.5 MiB.
	maxAnswerBytes = 256 << 20
	maxErrorBytes  = 512
	pageTimeout    = 30 * time.Second
	openTimeout    = 30 * time.Second
	// maxRetryAfter bounds what the server may ask for.
	maxRetryAfter = time.Minute
)

// Kind is a kind of objects.
type Kind uint8

// The kinds.
const (
	Pods Kind = iota
	EndpointSlices
)

// String returns the resource of the kind, as the API names it.
func (k Kind) String() string {
	if k == Pods {
		return "pods"
	}
	return "endpointslices"
}

func (k Kind) version() schema.GroupVersion {
	if k == Pods {
		return corev1.SchemeGroupVersion
	}
	return discoveryv1.SchemeGroupVersion
}

func (k Kind) newList() runtime.Object {
	if k == Pods {
		return &corev1.PodList{}
	}
	return &discoveryv1.EndpointSliceList{}
}

func (k Kind) newObject() runtime.Object {
	if k == Pods {
		return &corev1.Pod{}
	}
	return &discoveryv1.EndpointSlice{}
}

// object returns the metadata of an object of the kind, and nil for others.
func (k Kind) object(o runtime.Object) metav1.Object {
	switch o := o.(type) {
	case *corev1.Pod:
		if k == Pods && o != nil {
			return o
		}
	case *discoveryv1.EndpointSlice:
		if k == EndpointSlices && o != nil {
			return o
		}
	}
	return nil
}

// Client reads objects of one kind. It is safe for concurrent use.
type Client struct {
	kind   Kind
	rest   *rest.RESTClient
	params runtime.ParameterCodec
}

// NewClient returns a client of the API server of cfg, which is not changed. It
// starts nothing. Requests are neither repeated nor redirected nor held back:
// that is the business of a Mirror.
func NewClient(cfg *rest.Config, kind Kind) (*Client, error) {
	return newClient(cfg, kind, maxAnswerBytes)
}

// newClient bounds the answers that are no watches by most bytes.
func newClient(cfg *rest.Config, kind Kind, most int64) (*Client, error) {
	scheme, version := runtime.NewScheme(), kind.version()
	scheme.AddKnownTypes(version, kind.newObject(), kind.newList())
	metav1.AddToGroupVersion(scheme, version)

	c := rest.CopyConfig(cfg)
	c.GroupVersion, c.APIPath = &version, "/apis"
	if version.Group == "" {
		c.APIPath = "/api"
	}
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	c.UserAgent = cmp.Or(c.UserAgent, "loadplane")
	c.QPS, c.Timeout, c.WarningHandler = -1, 0, rest.NoWarnings{}
	if file := c.BearerTokenFile; file != "" {
		// By itself client-go reads the file once a minute, whatever the server
		// says of the token. Wrapped so, a refused token is read anew.
		c.BearerToken, c.BearerTokenFile = "", ""
		c.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(file)))
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return &bounded{next, most} })
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, err
	}
	client.Client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{kind: kind, rest: client, params: runtime.NewParameterCodec(scheme)}, nil
}

// Close ends the connections that are not in use.
func (c *Client) Close() { utilnet.CloseIdleConnectionsFor(c.rest.Client.Transport) }

func (c *Client) request(namespace string, opts *metav1.ListOptions) *rest.Request {
	return c.rest.Get().Namespace(namespace).Resource(c.kind.String()).VersionedParams(opts, c.params).MaxRetries(0)
}

// list reads one page.
func (c *Client) list(ctx context.Context, namespace string, opts *metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pageTimeout, errTimeout)
	defer cancel()
	list := c.kind.newList()
	ctx = quiet(ctx)
	if err := c.request(namespace, opts).Do(ctx).Into(list); err != nil {
		return nil, c.failure(ctx, "list", namespace, err)
	}
	return list, nil
}

// watch opens a watch, which ends with ctx.
func (c *Client) watch(ctx context.Context, cancel context.CancelCauseFunc, namespace string, opts *metav1.ListOptions) (watch.Interface, error) {
	opening := time.AfterFunc(openTimeout, func() { cancel(errTimeout) })
	defer opening.Stop()
	opts.Watch = true
	w, err := c.request(namespace, opts).Watch(quiet(ctx))
	if err != nil {
		return nil, c.failure(ctx, "watch", namespace, err)
	}
	return w, nil
}

// quiet keeps the client library from writing a log of its own: what it would
// say is in its errors.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }

// Error is a list or a watch that failed. It is a plain value.
type Error struct {
	// Verb is list or watch; Kind and Namespace say of what.
	Verb      string
	Kind      Kind
	Namespace string
	Reason    store.Reason
	// Err is the cause.
	Err error
	// after is how long the server wants to be left alone.
	after time.Duration
}

// failure tells what failed and why, without the parameters of the request.
func (c *Client) failure(ctx context.Context, verb, namespace string, err error) *Error {
	if cause := context.Cause(ctx); errors.Is(cause, errTimeout) {
		err = cause
	}
	e := &Error{Verb: verb, Kind: c.kind, Namespace: namespace, Reason: reasonOf(err), Err: err}
	var request *url.Error
	if errors.As(err, &request) {
		e.Err = request.Err
	}
	if s, ok := apierrors.SuggestsClientDelay(err); ok {
		e.after = min(time.Duration(s)*time.Second, maxRetryAfter)
	}
	return e
}

// Error says what failed, and which rights are needed where that is it.
func (e *Error) Error() string {
	if e.Reason == ReasonForbidden {
		return fmt.Sprintf("cannot %s %s in namespace %s: forbidden: needs list and watch on %s in namespace %s: see deploy/kubernetes/rbac.yaml",
			e.Verb, e.Kind, e.Namespace, e.Kind, e.Namespace)
	}
	text := e.Err.Error()
	if len(text) > maxErrorBytes {
		text = text[:maxErrorBytes]
	}
	return fmt.Sprintf("cannot %s %s in namespace %s: %s", e.Verb, e.Kind, e.Namespace, text)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// bounded ends answers that are too long. Watches have no end, and a bound for
// each event of their own.
type bounded struct {
	next http.RoundTripper
	most int64
}

// RoundTrip makes a request.
func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.next.RoundTrip(r)
	if err == nil && r.URL.Query().Get("watch") == "" {
		answer.Body = &boundedBody{answer.Body, b.most}
	}
	return answer, err
}

// WrappedRoundTripper returns what makes the requests.
func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

type boundedBody struct {
	io.ReadCloser
	left int64
}

// Read reads up to the bound.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooBig
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
