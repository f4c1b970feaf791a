package face

import (
	"math"
	"net/http"

	"github.com/loadplane/loadplane/sim/face/page"
	"github.com/loadplane/loadplane/sim/reporter"
)

// TGI returns the pages of a text-generation-inference engine: /metrics, /info
// and /health. It knows no ranks and no use of the KV cache.
func TGI(e Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", e.metrics(e.tgiMetrics))
	mux.HandleFunc("GET /info", answers(func() any { return e.tgiInfo() }))
	mux.HandleFunc("GET /v1/models", answers(func() any { return e.models(e.Model) }))
	mux.HandleFunc("GET /health", healthy)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	return mux
}

func (e Engine) tgiInfo() page.Object {
	return page.Object{
		{"model_id", e.Model}, {"model_sha", nil}, {"model_pipeline_tag", "text-generation"},
		{"max_concurrent_requests", 128}, {"max_best_of", 2}, {"max_stop_sequences", 4},
		{"max_input_tokens", 16_384}, {"max_total_tokens", 18_432},
		{"validation_workers", 2}, {"max_client_batch_size", 4},
		{"router", "text-generation-router"}, {"version", tgiVersion}, {"sha", nil}, {"docker_label", nil},
	}
}

var (
	tgiRequests = []page.Histogram{
		{Name: "tgi_request_duration", Help: "", Mean: 6, Buckets: requestBuckets},
		{Name: "tgi_request_queue_duration", Help: "", Mean: 0.2, Buckets: requestBuckets},
		{Name: "tgi_request_inference_duration", Help: "", Mean: 5.8, Buckets: requestBuckets},
		{Name: "tgi_request_validation_duration", Help: "", Mean: 0.002, Buckets: firstTokenBuckets},
		{Name: "tgi_request_mean_time_per_token_duration", Help: "", Mean: 0.025, Buckets: perTokenBuckets},
		{Name: "tgi_request_max_new_tokens", Help: "", Mean: 2048, Buckets: tokenBuckets},
	}
	tgiBatches = []page.Histogram{
		{Name: "tgi_batch_inference_duration", Help: "", Mean: 0.025, Buckets: perTokenBuckets},
		{Name: "tgi_batch_forward_duration", Help: "", Mean: 0.022, Buckets: perTokenBuckets},
		{Name: "tgi_batch_decode_duration", Help: "", Mean: 0.001, Buckets: perTokenBuckets},
		{Name: "tgi_batch_filter_duration", Help: "", Mean: 0.001, Buckets: perTokenBuckets},
	}
)

// tgiMetrics writes /metrics. The tokens of the batch are an upper bound:
// prompts and all the output that was asked for. Token counters exist only as
// the sums of histograms.
func (e Engine) tgiMetrics(p *page.Text, s reporter.Sample) {
	p.Plain = true
	load, c := s.Total()
	used := float64(load.NumUsedTokens)
	if math.IsNaN(load.TokenUsage) {
		used = load.TokenUsage
	}
	p.One("tgi_queue_size", page.Gauge, "", float64(load.NumWaitingReqs))
	p.One("tgi_batch_current_size", page.Gauge, "", float64(load.NumRunningReqs))
	p.One("tgi_batch_current_max_tokens", page.Gauge, "", used)
	p.One("tgi_batch_max_total_tokens", page.Gauge, "", float64(load.MaxTotalNumTokens))
	p.One("tgi_request_count", page.Counter, "", float64(c.Finished+load.NumRunningReqs+load.NumWaitingReqs))
	p.One("tgi_request_success", page.Counter, "", float64(c.Finished))
	for _, h := range []page.Histogram{
		{Name: "tgi_request_input_length", Help: "", Mean: per(float64(c.PromptTokens), c.Finished), Buckets: tokenBuckets},
		{Name: "tgi_request_generated_tokens", Help: "", Mean: per(float64(c.GeneratedTokens), c.Finished), Buckets: tokenBuckets},
	} {
		h.Family(p)
		h.Put(p, c.Finished)
	}
	for _, h := range tgiRequests {
		h.Family(p)
		h.Put(p, c.Finished)
	}
	e.tgiBatches(p, c)
}

// tgiBatches writes what is counted for each forward pass.
func (e Engine) tgiBatches(p *page.Text, c reporter.Counters) {
	passes := []struct {
		method string
		n      int64
	}{{"prefill", c.Finished}, {"decode", int64(c.DecodeBusy.Seconds() * 40)}}
	for _, name := range []string{"tgi_batch_inference_count", "tgi_batch_inference_success"} {
		p.Family(name, page.Counter, "")
		for _, pass := range passes {
			p.Put(name, float64(pass.n), "method", pass.method)
		}
	}
	for _, h := range tgiBatches {
		h.Family(p)
		for _, pass := range passes {
			h.Put(p, pass.n, "method", pass.method)
		}
	}
}
