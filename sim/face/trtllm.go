package face

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/loadplane/loadplane/sim/face/page"
	"github.com/loadplane/loadplane/sim/reporter"
)

// Facts of the simulated TensorRT-LLM engines.
const (
	trtBlock  = 64 // tokens of a block
	trtTokens = 8192
	trtGPU    = 56_401_920_000
	iteration = 25 * time.Millisecond
)

// TensorRTLLM returns the pages of a trtllm-serve with iteration statistics:
// Prometheus at /prometheus/metrics, JSON at /metrics, /v1/models, /version and
// /health. They know no ranks.
func TensorRTLLM(e Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /prometheus/metrics", e.metrics(e.trtMetrics))
	mux.HandleFunc("GET /metrics", e.iterations())
	mux.HandleFunc("GET /v1/models", answers(func() any { return e.models("tensorrt_llm") }))
	mux.HandleFunc("GET /version", answers(func() any { return page.Object{{"version", trtllmVersion}} }))
	mux.HandleFunc("GET /health", healthy)
	mux.HandleFunc("/", notFound)
	return mux
}

// trtMetric is a metric of the iteration or a page.Counter, without labels of its
// own.
type trtMetric struct {
	name, kind, help string
	v                float64
}

// trtBlocks returns the use of the KV cache in blocks.
func trtBlocks(used, capacity int64) (taken, free, all int64) {
	all = capacity / trtBlock
	taken = min(all, (used+trtBlock-1)/trtBlock)
	return taken, all - taken, all
}

// trtValues are the families with one series that loads can be read from.
func trtValues(s reporter.Sample) []trtMetric {
	load, c := s.Total()
	taken, free, all := trtBlocks(load.NumUsedTokens, load.MaxTotalNumTokens)
	return []trtMetric{
		{"trtllm_num_requests_running", page.Gauge, "Number of active requests", float64(load.NumRunningReqs)},
		{"trtllm_num_requests_waiting", page.Gauge, "Number of queued requests", float64(load.NumWaitingReqs)},
		{"trtllm_num_requests_completed_total", page.Counter, "Total number of completed requests across iterations", float64(c.Finished)},
		{"trtllm_max_num_active_requests", page.Gauge, "Maximum number of active requests", float64(load.MaxRunningRequests)},
		{"trtllm_kv_cache_utilization", page.Gauge, "KV cache utilization", load.TokenUsage},
		{"trtllm_kv_cache_hit_rate", page.Gauge, "KV cache hit rate", load.CacheHitRate},
		{"trtllm_kv_cache_max_blocks", page.Gauge, "Maximum number of KV cache blocks", float64(all)},
		{"trtllm_kv_cache_used_blocks", page.Gauge, "Number of used KV cache blocks", float64(taken)},
		{"trtllm_kv_cache_free_blocks", page.Gauge, "Number of free KV cache blocks", float64(free)},
		{"trtllm_kv_cache_tokens_per_block", page.Gauge, "Number of tokens per KV cache block", trtBlock},
		{"trtllm_kv_cache_reused_blocks_total", page.Counter, "Cumulative number of KV cache blocks reused (cache hits)", float64(c.CachedTokens / trtBlock)},
		{"trtllm_kv_cache_missed_blocks_total", page.Counter, "Cumulative number of KV cache blocks missed (cache misses)", float64((c.PromptTokens - c.CachedTokens) / trtBlock)},
		{"trtllm_prompt_tokens_total", page.Counter, "Cumulative number of prompt (input) tokens processed.", float64(c.PromptTokens)},
		{"trtllm_prompt_cached_tokens_total", page.Counter, "Cumulative number of prompt tokens found in the cache.", float64(c.CachedTokens)},
		{"trtllm_generation_tokens_total", page.Counter, "Cumulative number of generation (output) tokens produced.", float64(c.GeneratedTokens)},
		{"trtllm_gpu_memory_usage_bytes", page.Gauge, "GPU memory usage in bytes", trtGPU},
	}
}

var trtHistograms = []page.Histogram{
	{Name: "trtllm_time_to_first_token_seconds", Help: "Histogram of time to first token in seconds.", Mean: 0.3, Buckets: firstTokenBuckets},
	{Name: "trtllm_e2e_request_latency_seconds", Help: "Histogram of end to end request latency in seconds.", Mean: 6, Buckets: requestBuckets},
	{Name: "trtllm_time_per_output_token_seconds", Help: "Histogram of time per output token in seconds.", Mean: 0.025, Buckets: perTokenBuckets},
	{Name: "trtllm_request_queue_time_seconds", Help: "Histogram of time spent in WAITING phase for request.", Mean: 0.2, Buckets: requestBuckets},
}

// trtMetrics writes /prometheus/metrics with the names since 1.3.
func (e Engine) trtMetrics(p *page.Text, s reporter.Sample) {
	labels := []string{"model_name", e.Model, "engine_type", "trtllm"}
	for _, m := range trtValues(s) {
		p.Family(m.name, m.kind, m.help)
		p.Put(m.name, m.v, labels...)
	}
	_, c := s.Total()
	p.Family("trtllm_request_success_total", page.Counter, "Count of successfully processed requests.")
	p.Put("trtllm_request_success_total", float64(c.Finished), page.With(labels, "finished_reason", "stop")...)
	for _, h := range trtHistograms {
		h.Family(p)
		h.Put(p, c.Finished, labels...)
	}
}

// iterations answers /metrics: the statistics of the last iteration that was
// not told yet, or an empty array. Reading drains the queue behind it.
func (e Engine) iterations() http.HandlerFunc {
	var told atomic.Int64
	return e.loaded(func(w http.ResponseWriter, s reporter.Sample) {
		n := int64(s.At.Sub(s.Started)/iteration) + 1
		list := []page.Object{}
		if told.Swap(n) != n {
			list = append(list, iterationStats(s, n))
		}
		page.WriteJSON(w, http.StatusOK, list)
	})
}

func iterationStats(s reporter.Sample, n int64) page.Object {
	load, c := s.Total()
	taken, free, all := trtBlocks(load.NumUsedTokens, load.MaxTotalNumTokens)
	return page.Object{
		{"cpuMemUsage", 0}, {"gpuMemUsage", int64(trtGPU)}, {"pinnedMemUsage", 0},
		{"iter", n}, {"iterLatencyMS", page.Number(float64(iteration.Milliseconds()))},
		{"timestamp", s.At.UTC().Format("01-02-2006 15:04:05.000000")},
		{"maxBatchSizeRuntime", load.MaxRunningRequests}, {"maxBatchSizeStatic", load.MaxRunningRequests}, {"maxBatchSizeTunerRecommended", 0},
		{"maxNumActiveRequests", load.MaxRunningRequests},
		{"maxNumTokensRuntime", trtTokens}, {"maxNumTokensStatic", trtTokens}, {"maxNumTokensTunerRecommended", 0},
		{"newActiveRequestsQueueLatencyMS", page.Number(0.75)},
		{"numActiveRequests", load.NumRunningReqs}, {"numCompletedRequests", 0},
		{"numNewActiveRequests", 0}, {"numQueuedRequests", load.NumWaitingReqs},
		{"staticBatchingStats", nil},
		{"inflightBatchingStats", page.Object{
			{"numContextRequests", 0}, {"numCtxTokens", 0}, {"numGenRequests", load.NumRunningReqs},
			{"numPausedRequests", 0}, {"numScheduledRequests", load.NumRunningReqs},
		}},
		{"kvCacheStats", page.Object{
			{"allocNewBlocks", (c.PromptTokens - c.CachedTokens) / trtBlock}, {"allocTotalBlocks", c.PromptTokens / trtBlock},
			{"cacheHitRate", page.Number(load.CacheHitRate)},
			{"freeNumBlocks", free}, {"maxNumBlocks", all},
			{"missedBlocks", (c.PromptTokens - c.CachedTokens) / trtBlock}, {"reusedBlocks", c.CachedTokens / trtBlock},
			{"tokensPerBlock", trtBlock}, {"usedNumBlocks", taken},
		}},
	}
}
