package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const samplePage = `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 7.0
vllm:num_requests_running{engine="1",model_name="m"} 9.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="1",model_name="m"} 1.5e+06
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf"} 3.0
vllm:e2e_request_latency_seconds_count{engine="0"} 3.0
vllm:e2e_request_latency_seconds_sum{engine="0"} 2.0
`

// The baseline does the work that it stands for: it has each value of load.
func TestParsedValues(t *testing.T) {
	var e parsed
	if err := e.parse(strings.NewReader(samplePage)); err != nil {
		t.Fatal(err)
	}
	want := map[rankMetric]float64{
		{"0", "num_requests_running"}: 7, {"1", "num_requests_running"}: 9, {"1", "generation_tokens_total"}: 1.5e6,
		{"0", "kv_cache_usage_perc"}: 0.25,
	}
	if len(e.load) != len(want) {
		t.Errorf("got %v, want %v", e.load, want)
	}
	for k, v := range want {
		if e.load[k] != v {
			t.Errorf("%v is %v, want %v", k, e.load[k], v)
		}
	}
	for name, page := range map[string]string{"no load": "up 1\n", "no metrics page": "<html>\n"} {
		if err := e.parse(strings.NewReader(page)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A bare poller counts the polls that succeed and those that do not.
func TestPolls(t *testing.T) {
	for _, c := range []struct {
		name   string
		kind   Kind
		status int
		fails  bool
	}{
		{"parsed", Parsed, 200, false},
		{"transfer", Transfer, 200, false},
		{"parsed, not found", Parsed, 404, true},
		{"transfer, not found", Transfer, 404, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The first two polls are answered well.
			var polls atomic.Int64
			asked := make(chan struct{}, 1000)
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if polls.Add(1) > 2 {
					w.WriteHeader(c.status)
				}
				_, _ = w.Write([]byte(samplePage))
				select {
				case asked <- struct{}{}:
				default:
				}
			}))
			defer srv.Close()
			p, err := Open(Spec{Kind: c.kind, URLs: []string{srv.URL}, Interval: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := p.Await(ctx, 0, 2); err != nil {
				t.Fatal(err)
			}
			for range 5 {
				<-asked // so the fourth is done with
			}
			u := p.Usage()
			if c.fails != (u.Refused > 0) || c.fails != (u.Reports == 2) || c.fails != strings.Contains(u.Failure, "status 404") {
				t.Errorf("%d polls succeeded, %d failed: %q", u.Reports, u.Refused, u.Failure)
			}
			if u.Goroutines == 0 || u.Sockets == 0 {
				t.Errorf("%d goroutines, %d sockets", u.Goroutines, u.Sockets)
			}
		})
	}
}

func TestRepeat(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	n := 0
	repeat(ctx, 0, func(context.Context) {
		if n++; n == 3 {
			stop()
		}
	})
	if n < 3 {
		t.Errorf("called %d times", n)
	}
}
