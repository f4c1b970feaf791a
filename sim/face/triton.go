package face

import (
	"net/http"

	"github.com/loadplane/loadplane/sim/face/page"
	"github.com/loadplane/loadplane/sim/reporter"
)

// Triton returns the pages of a Triton server with the TensorRT-LLM backend:
// /metrics, which the real one has on a port of its own, and /v2/health/ready.
// They know no ranks.
func Triton(e Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", e.metrics(e.tritonMetrics))
	mux.HandleFunc("GET /v2/health/ready", healthy)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	return mux
}

// tritonFamily is a family whose values are told apart by one label.
type tritonFamily struct {
	name, kind, help, label string
	values                  []labelled
}

// tritonMetrics writes /metrics as the backend's documentation shows it.
func (e Engine) tritonMetrics(p *page.Text, s reporter.Sample) {
	p.Plain = true
	for _, f := range tritonFamilies(s) {
		p.Family(f.name, f.kind, f.help)
		for _, v := range f.values {
			p.Put(f.name, v.v, "model", e.Model, f.label, v.label, "version", "1")
		}
	}
}

// tritonFamilies are the values now. The fraction is the use of the blocks.
func tritonFamilies(s reporter.Sample) []tritonFamily {
	load, c := s.Total()
	taken, free, all := trtBlocks(load.NumUsedTokens, load.MaxTotalNumTokens)
	running, waiting := float64(load.NumRunningReqs), float64(load.NumWaitingReqs)
	return []tritonFamily{
		{"nv_trt_llm_request_metrics", page.Gauge, "TRT LLM request metrics", "request_type", []labelled{
			{"waiting", waiting}, {"context", 0}, {"scheduled", running}, {"max", float64(load.MaxRunningRequests)}, {"active", running},
		}},
		{"nv_trt_llm_runtime_memory_metrics", page.Gauge, "TRT LLM runtime memory metrics", "memory_type", []labelled{
			{"pinned", 0}, {"gpu", 1_610_236}, {"cpu", 0},
		}},
		{"nv_trt_llm_kv_cache_block_metrics", page.Gauge, "TRT LLM KV cache block metrics", "kv_cache_block_type", []labelled{
			{"fraction", load.TokenUsage}, {"tokens_per", trtBlock}, {"used", float64(taken)}, {"free", float64(free)}, {"max", float64(all)},
		}},
		{"nv_trt_llm_inflight_batcher_metrics", page.Gauge, "TRT LLM inflight_batcher-specific metrics", "inflight_batcher_specific_metric", []labelled{
			{"micro_batch_id", 0}, {"generation_requests", running}, {"total_context_tokens", 0},
		}},
		{"nv_trt_llm_general_metrics", page.Gauge, "General TRT LLM metrics", "general_type", []labelled{
			{"iteration_counter", float64(c.DecodeBusy / iteration)}, {"timestamp", float64(s.At.Unix())},
		}},
		{"nv_trt_llm_disaggregated_serving_metrics", page.Counter, "TRT LLM disaggregated serving metrics", "disaggregated_serving_type", []labelled{
			{"kv_cache_transfer_ms", 0}, {"request_count", 0},
		}},
	}
}
