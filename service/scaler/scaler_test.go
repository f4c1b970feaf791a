package scaler

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/loadplane/loadplane/proto/externalscaler"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// Every metric is the pool's sum or share over two workers of one rank each.
func TestValuesArePoolValues(t *testing.T) {
	want := map[string]float64{
		"waiting_requests":        5,
		"running_requests":        12,
		"total_requests":          17,
		"waiting_uncached_tokens": 1200,
		"total_tokens":            1600,
		"token_usage":             0.3,
		"max_rank_token_usage":    0.4,
		"request_utilization":     12.0 / 32,
		"queue_pressure":          6,
		"prefill_wait_seconds":    2,
	}
	run(t, nil, func(p *plane) {
		engines := p.add("a:1", "b:1")
		engines[0].report(load{running: 4, waiting: 5})
		engines[1].report(load{running: 8, waiting: 0})
		for metric := range measures {
			got, err := p.value(of(metric))
			if err != nil {
				t.Errorf("%s: %v", metric, err)
				continue
			}
			if w, ok := want[metric]; !ok || got.GetMetricValueFloat() != w {
				t.Errorf("%s: %v, want %v", metric, got.GetMetricValueFloat(), w)
			}
			if n := got.GetMetricValue(); float64(n) < want[metric] || float64(n) >= want[metric]+1 {
				t.Errorf("%s: whole number %d of %v", metric, n, want[metric])
			}
		}
	})
}

func TestSpecification(t *testing.T) {
	run(t, nil, func(p *plane) {
		got, err := p.GetMetricSpec(p.Context(), ref(of("token_usage", "target", "0.75")))
		if err != nil {
			t.Fatal(err)
		}
		spec := got.GetMetricSpecs()[0]
		if len(got.GetMetricSpecs()) != 1 || spec.GetMetricName() != "loadplane-token-usage" || spec.GetTargetSizeFloat() != 0.75 || spec.GetTargetSize() != 1 {
			t.Errorf("got %v", got)
		}
		if p.counted("loadplane_scaler_requests_total", methodGetMetricSpec) != 1 {
			t.Error("the request was not counted")
		}
	})
}

// A number that one fresh worker does not tell is not known of the pool.
func TestUnknownIsNotZero(t *testing.T) {
	run(t, nil, func(p *plane) {
		engines := p.add("a:1", "b:1")
		engines[0].report(load{running: 4, waiting: 5})
		engines[1].report(load{running: 1, waiting: -1})
		if v, err := p.value(of("waiting_requests")); status.Code(err) != codes.Unavailable {
			t.Errorf("waiting requests: %v, %v", v, err)
		}
		if v, err := p.value(of("running_requests")); err != nil || v.GetMetricValueFloat() != 5 {
			t.Errorf("running requests: %v, %v", v, err)
		}
		if got := answer(p.IsActive(p.Context(), ref(of("running_requests")))); got != "Unavailable" {
			t.Errorf("IsActive: %s", got)
		}
	})
}

// A prefill worker generates nothing, which says nothing of its queue.
func TestQueueWithoutThroughputIsUnknown(t *testing.T) {
	run(t, nil, func(p *plane) {
		e := p.add("a:1")[0]
		e.reportAt(load{1, 3}, 0)
		if v, err := p.value(of("queue_pressure")); status.Code(err) != codes.Unavailable {
			t.Errorf("queue pressure: %v, %v", v, err)
		}
		if v, err := p.value(of("prefill_wait_seconds")); err != nil || v.GetMetricValueFloat() != 2 {
			t.Errorf("prefill wait: %v, %v", v, err)
		}
	})
}

func TestActivity(t *testing.T) {
	idle, busy := load{0, 0}, load{2, 1}
	tests := []struct {
		name string
		// loads are those of the fresh workers, of all that are listed.
		loads    []load
		listed   int
		metadata []string
		want     string
	}{
		{"idle", []load{idle, idle}, 2, nil, "inactive"},
		{"one works", []load{idle, busy}, 2, nil, "active"},
		{"nothing waits and something runs", []load{{1, 0}}, 1, nil, "active"},
		{"up to the activation", []load{busy}, 1, []string{"activation", "3"}, "inactive"},
		{"above the activation", []load{busy}, 1, []string{"activation", "2.9"}, "active"},
		{"idle as far as known", []load{idle}, 2, nil, "active"},
		{"idle, and too little known", []load{idle}, 3, nil, "Unavailable"},
		{"busy, and too little known", []load{busy}, 3, nil, "Unavailable"},
		{"too little known, and that counts as demand", []load{idle}, 3, []string{"unknown", "active"}, "active"},
		{"less is asked for", []load{idle}, 3, []string{"minCoverage", "0.3"}, "active"},
		{"more is asked for", []load{busy}, 2, []string{"minCoverage", "1"}, "Unavailable"},
		{"nothing known", nil, 2, nil, "Unavailable"},
		{"other pool", []load{busy}, 1, []string{"model", "other"}, "NotFound"},
		{"other role", []load{busy}, 1, []string{"role", "prefill"}, "NotFound"},
		{"other pool, and that counts as demand", []load{busy}, 1, []string{"model", "other", "unknown", "active"}, "active"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run(t, nil, func(p *plane) {
				engines := p.add([]string{"a:1", "b:1", "c:1"}[:tt.listed]...)
				p.warm()
				for i, l := range tt.loads {
					engines[i].report(l)
				}
				m := of("waiting_requests", tt.metadata...)
				if got := answer(p.IsActive(p.Context(), ref(m))); got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
			})
		})
	}
}

// Every reason is provoked, with its code on the wire and its count.
func TestRefusals(t *testing.T) {
	metadata := func(m map[string]string) func(*plane) error {
		return func(p *plane) error { _, err := p.value(m); return err }
	}
	tests := []struct {
		reason store.Reason
		text   string // part of the answer
		ask    func(p *plane) error
	}{
		{ReasonUnknownKey, `"threshold"`, metadata(of("total_requests", "threshold", "5"))},
		{ReasonMissingKey, "metric", metadata(map[string]string{"target": "5"})},
		{ReasonMissingKey, "target", metadata(map[string]string{"metric": "total_requests"})},
		{ReasonBadValue, "target", metadata(of("total_requests", "target", "many"))},
		{ReasonOtherMetric, `"s0-loadplane"`, func(p *plane) error {
			_, err := p.GetMetrics(p.Context(), &pb.GetMetricsRequest{ScaledObjectRef: ref(of("total_requests")), MetricName: "s0-loadplane"})
			return err
		}},
		{ReasonNoPool, `"other"`, func(p *plane) error {
			p.add("a:1")
			p.warm()
			_, err := p.value(of("total_requests", "model", "other"))
			return err
		}},
		{ReasonViewWarming, "started", func(p *plane) error {
			p.add("a:1")
			_, err := p.value(of("total_requests"))
			return err
		}},
		{ReasonLowCoverage, "0 of 1", func(p *plane) error {
			p.add("a:1")[0].report(load{1, 1})
			p.after(staleAfter)
			_, err := p.value(of("total_requests"))
			return err
		}},
		{ReasonValueUnknown, "waiting_requests", func(p *plane) error {
			p.add("a:1")[0].report(load{1, -1})
			_, err := p.value(of("waiting_requests"))
			return err
		}},
		{ReasonTooManyScalers, "1 streams", func(p *plane) error {
			first, err := p.StreamMetricSpec(p.Context(), ref(of("total_requests")))
			if err == nil {
				_, err = first.Recv()
			}
			if err != nil {
				p.Fatal(err)
			}
			second, err := p.StreamIsActive(p.Context(), ref(of("total_requests")))
			if err == nil {
				_, err = second.Recv()
			}
			return err
		}},
	}
	provoked := map[store.Reason]bool{}
	for _, tt := range tests {
		t.Run(string(tt.reason), func(t *testing.T) {
			run(t, func(o *Options) { o.MaxStreams = 1 }, func(p *plane) {
				err := tt.ask(p)
				if status.Code(err) != refusalCodes[tt.reason] || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("error %v, want %s with %s", err, refusalCodes[tt.reason], tt.text)
				}
				if n := p.counted("loadplane_scaler_refused_total", string(tt.reason)); n != 1 {
					t.Errorf("counted %v times", n)
				}
				provoked[tt.reason] = true
			})
		})
	}
	for reason := range refusalCodes {
		if !provoked[reason] {
			t.Errorf("%s was not provoked", reason)
		}
	}
}

// The stream tells the first answer at once and changes alone.
func TestStreamTellsChanges(t *testing.T) {
	run(t, nil, func(p *plane) {
		e := p.add("a:1")[0]
		stream, err := p.StreamIsActive(p.Context(), ref(of("waiting_requests")))
		if err != nil {
			t.Fatal(err)
		}
		answers := make(chan string, 100)
		ended := make(chan error, 1)
		go func() {
			for {
				r, err := stream.Recv()
				if err != nil {
					ended <- err
					return
				}
				answers <- answer(r, nil)
			}
		}()
		expect := func(what, want string) {
			t.Helper()
			p.after(2 * minPush)
			got := ""
			for len(answers) > 0 {
				got += <-answers
			}
			if got != want {
				t.Errorf("%s: told %q, want %q", what, got, want)
			}
		}
		expect("not known yet", "")
		e.report(load{0, 0})
		expect("idle", "inactive")
		e.report(load{0, 0})
		expect("still idle", "")
		e.report(load{0, 4})
		expect("work came", "active")
		p.after(staleAfter)
		expect("silent", "")
		e.report(load{0, 4})
		expect("back, and the same", "")
		e.report(load{0, 0})
		expect("idle again", "inactive")
		if n := p.counted("loadplane_scaler_streams", ""); n != 1 {
			t.Errorf("%v streams", n)
		}
		p.drain()
		if err := <-ended; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "shutting down") {
			t.Errorf("the end: %v", err)
		}
		if n := p.counted("loadplane_scaler_streams", ""); n != 0 {
			t.Errorf("%v streams after the end", n)
		}
	})
}

// A view that changes all the time is looked at once a second for a stream.
func TestStreamIsNotFlooded(t *testing.T) {
	run(t, nil, func(p *plane) {
		e := p.add("a:1")[0]
		ctx, cancel := context.WithCancel(p.Context())
		defer cancel()
		stream, err := p.StreamIsActive(ctx, ref(of("waiting_requests")))
		if err != nil {
			t.Fatal(err)
		}
		told := make(chan int)
		go func() {
			n := 0
			for {
				if _, err := stream.Recv(); err != nil {
					told <- n
					return
				}
				n++
			}
		}()
		began := time.Now()
		for i := range 1000 {
			e.report(load{int64(i % 2), 0})
			p.after(5 * time.Millisecond)
		}
		limit := int(time.Since(began)/minPush) + 1
		cancel()
		if n := <-told; n < 2 || n > limit {
			t.Errorf("%d answers in %v", n, time.Since(began))
		}
	})
}

func TestStreamOfSpecificationsStaysOpen(t *testing.T) {
	run(t, nil, func(p *plane) {
		stream, err := p.StreamMetricSpec(p.Context(), ref(of("waiting_requests", "target", "2.5")))
		if err != nil {
			t.Fatal(err)
		}
		first, err := stream.Recv()
		if err != nil || first.GetMetricSpecs()[0].GetTargetSizeFloat() != 2.5 {
			t.Fatalf("got %v, %v", first, err)
		}
		next := make(chan error, 1)
		go func() { _, err := stream.Recv(); next <- err }()
		p.after(time.Hour)
		select {
		case err := <-next:
			t.Fatalf("it moved: %v", err)
		default:
		}
		p.drain()
		if err := <-next; status.Code(err) != codes.Unavailable {
			t.Errorf("the end: %v", err)
		}
	})
}

// A stream that was refused, and one that ended, leave their places.
func TestPlacesOfStreamsAreGivenBack(t *testing.T) {
	run(t, func(o *Options) { o.MaxStreams = 1 }, func(p *plane) {
		try := func(want codes.Code) (end func()) {
			t.Helper()
			ctx, cancel := context.WithCancel(p.Context())
			stream, err := p.StreamMetricSpec(ctx, ref(of("waiting_requests")))
			if err == nil {
				_, err = stream.Recv()
			}
			if status.Code(err) != want {
				t.Errorf("a stream: %v, want %v", err, want)
			}
			return func() { cancel(); synctest.Wait() }
		}
		for range 3 {
			end := try(codes.OK)
			try(codes.ResourceExhausted)()
			end()
		}
	})
}

// Requests are counted by method, and a flood of refusals is few lines.
func TestRequestsAreCountedAndRefusalsSampled(t *testing.T) {
	var out bytes.Buffer
	run(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&out, nil)) }, func(p *plane) {
		p.add("a:1")[0].report(load{1, 0})
		if _, err := p.value(of("total_requests")); err != nil {
			t.Fatal(err)
		}
		const flood = 100
		for range flood {
			if got := answer(p.IsActive(p.Context(), ref(of("none")))); got != "InvalidArgument" {
				t.Fatal(got)
			}
		}
		for method, want := range map[string]float64{methodGetMetrics: 1, methodGetMetricSpec: 1, methodIsActive: flood} {
			if got := p.counted("loadplane_scaler_requests_total", method); got != want {
				t.Errorf("%s is counted %v times, want %v", method, got, want)
			}
		}
		p.drain()
		if n := strings.Count(out.String(), "\n"); n < 1 || n > 20 {
			t.Errorf("%d lines of %d refusals", n, flood)
		}
	})
}

func TestStreamEndsWithItsClient(t *testing.T) {
	run(t, nil, func(p *plane) {
		ctx, cancel := context.WithCancel(p.Context())
		stream, err := p.StreamMetricSpec(ctx, ref(of("waiting_requests")))
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		if n := p.counted("loadplane_scaler_streams", ""); n != 0 {
			t.Errorf("%v streams", n)
		}
	})
}

func TestAuthorizeIsAskedFirst(t *testing.T) {
	refused := status.Error(codes.Unauthenticated, "who are you")
	run(t, func(o *Options) { o.Authorize = func(context.Context) error { return refused } }, func(p *plane) {
		if got := answer(p.IsActive(p.Context(), ref(of("no such metric")))); got != "Unauthenticated" {
			t.Errorf("a call: %s", got)
		}
		stream, err := p.StreamIsActive(p.Context(), ref(of("no such metric")))
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("a stream: %v", err)
		}
	})
}

func TestPanicEndsOneRequest(t *testing.T) {
	asked := 0
	run(t, func(o *Options) {
		o.Authorize = func(context.Context) error {
			if asked++; asked == 1 {
				panic("at the door")
			}
			return nil
		}
	}, func(p *plane) {
		p.add("a:1")[0].report(load{1, 0})
		if got := answer(p.IsActive(p.Context(), ref(of("total_requests")))); got != "Internal" {
			t.Errorf("the panic: %s", got)
		}
		if got := answer(p.IsActive(p.Context(), ref(of("total_requests")))); got != "active" {
			t.Errorf("after it: %s", got)
		}
		if p.counted("loadplane_scaler_panics_total", "") != 1 {
			t.Error("the panic was not counted")
		}
	})
}

func TestLargeRequestIsRefused(t *testing.T) {
	run(t, nil, func(p *plane) {
		m := of("total_requests", strings.Repeat("k", maxRequestBytes), "v")
		if got := answer(p.IsActive(p.Context(), ref(m))); got != "ResourceExhausted" {
			t.Errorf("got %s", got)
		}
	})
}

func TestNewChecksOptions(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("a server without views")
	}
	run(t, nil, func(p *plane) {
		if _, err := New(Options{Snapshots: p.server.opts.Snapshots, MaxStreams: streamsPerConnection}); err == nil {
			t.Error("more streams than a connection has")
		}
		if _, err := New(Options{Snapshots: p.server.opts.Snapshots, MaxStreams: streamsPerConnection - 1}); err != nil {
			t.Error(err)
		}
		if _, err := New(Options{Snapshots: p.server.opts.Snapshots, Registerer: p.reg}); err == nil {
			t.Error("two servers with one registry")
		}
	})
}

// A server that is told to stop before it began ends without an error.
func TestStopBeforeTheBegin(t *testing.T) {
	run(t, nil, func(p *plane) {
		for range 100 {
			s, err := New(Options{Snapshots: p.server.opts.Snapshots})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(p.Context())
			cancel()
			if err := s.Run(ctx, bufconn.Listen(1)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A listener that fails ends the server with an error.
func TestServeFails(t *testing.T) {
	run(t, nil, func(p *plane) {
		s, err := New(Options{Snapshots: p.server.opts.Snapshots})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Run(p.Context(), broken{}); err == nil || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("error %v", err)
		}
	})
}
