package face

import (
	"net/http"
	"strconv"

	"github.com/loadplane/loadplane/sim/face/page"
	"github.com/loadplane/loadplane/sim/reporter"
)

// blockSize is the number of tokens in a block of the KV cache.
const blockSize = 16

// VLLM returns the pages of a vLLM engine: /metrics, /v1/models, /version and
// /health.
func VLLM(e Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", e.metrics(e.vllmMetrics))
	mux.HandleFunc("GET /v1/models", answers(func() any {
		return e.models("vllm", page.Field{"root", "/models/" + e.Model}, page.Field{"parent", nil},
			page.Field{"max_model_len", reporter.CapacityTokens}, page.Field{"permission", []page.Object{}})
	}))
	mux.HandleFunc("GET /version", answers(func() any { return page.Object{{"version", vllmVersion}} }))
	mux.HandleFunc("GET /health", healthy)
	mux.HandleFunc("/", notFound)
	return mux
}

// vllmSeries is a gauge or a counter of an engine core, with a label of its
// own where it has several series.
type vllmSeries struct {
	name, kind, help string
	label            string
	values           func(s reporter.Sample, rank int) []labelled
}

// labelled is a value and its own label; the label is empty without one.
type labelled struct {
	label string
	v     float64
}

// alone is the value of a family without a label of its own.
func alone(v float64) []labelled { return []labelled{{"", v}} }

func whole(value func(c reporter.Counters) int64) func(reporter.Sample, int) []labelled {
	return func(s reporter.Sample, rank int) []labelled { return alone(float64(value(s.Counters[rank]))) }
}

func none(reporter.Sample, int) []labelled { return alone(0) }

// vllmFamilies are those of vLLM 0.26 but for the histograms and the start of
// the process. The counters of FLOPs and bytes are there with its default
// flags.
var vllmFamilies = []vllmSeries{
	{"vllm:num_requests_running", page.Gauge, "Number of requests in model execution batches.", "", func(s reporter.Sample, i int) []labelled { return alone(float64(s.Ranks[i].NumRunningReqs)) }},
	{"vllm:num_requests_waiting", page.Gauge, "Number of requests waiting to be processed.", "", func(s reporter.Sample, i int) []labelled { return alone(float64(s.Ranks[i].NumWaitingReqs)) }},
	{"vllm:num_requests_waiting_by_reason", page.Gauge, "Number of requests waiting to be processed by reason.", "reason", func(s reporter.Sample, i int) []labelled {
		return []labelled{{"capacity", float64(s.Ranks[i].NumWaitingReqs)}, {"deferred", 0}}
	}},
	{"vllm:engine_sleep_state", page.Gauge, "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake.", "sleep_state", func(reporter.Sample, int) []labelled {
		return []labelled{{"awake", 1}, {"weights_offloaded", 0}, {"discard_all", 0}}
	}},
	{"vllm:kv_cache_usage_perc", page.Gauge, "KV-cache usage. 1 means 100 percent usage.", "", func(s reporter.Sample, i int) []labelled { return alone(s.Ranks[i].TokenUsage) }},
	{"vllm:prefix_cache_queries_total", page.Counter, "Prefix cache queries, in terms of number of queried tokens.", "", whole(func(c reporter.Counters) int64 { return c.PromptTokens })},
	{"vllm:prefix_cache_hits_total", page.Counter, "Prefix cache hits, in terms of number of cached tokens.", "", whole(func(c reporter.Counters) int64 { return c.CachedTokens })},
	{"vllm:external_prefix_cache_queries_total", page.Counter, "External prefix cache queries from KV connector cross-instance cache sharing.", "", none},
	{"vllm:external_prefix_cache_hits_total", page.Counter, "External prefix cache hits from KV connector cross-instance cache sharing.", "", none},
	{"vllm:mm_cache_queries_total", page.Counter, "Multi-modal cache queries, in terms of number of queried items.", "", none},
	{"vllm:mm_cache_hits_total", page.Counter, "Multi-modal cache hits, in terms of number of cached items.", "", none},
	{"vllm:num_preemptions_total", page.Counter, "Cumulative number of preemption from the engine.", "", none},
	{"vllm:prompt_tokens_total", page.Counter, "Number of prefill tokens processed.", "", whole(func(c reporter.Counters) int64 { return c.PromptTokens })},
	{"vllm:prompt_tokens_by_source_total", page.Counter, "Number of prompt tokens by source.", "source", func(s reporter.Sample, i int) []labelled {
		c := s.Counters[i]
		return []labelled{{"local_compute", float64(c.PromptTokens - c.CachedTokens)}, {"local_cache_hit", float64(c.CachedTokens)}, {"external_kv_transfer", 0}}
	}},
	{"vllm:prompt_tokens_cached_total", page.Counter, "Number of cached prompt tokens.", "", whole(func(c reporter.Counters) int64 { return c.CachedTokens })},
	{"vllm:generation_tokens_total", page.Counter, "Number of generation tokens processed.", "", whole(func(c reporter.Counters) int64 { return c.GeneratedTokens })},
	{"vllm:request_success_total", page.Counter, "Count of successfully processed requests.", "finished_reason", func(s reporter.Sample, i int) []labelled {
		n := s.Counters[i].Finished
		return []labelled{{"stop", float64(n - n/16)}, {"length", float64(n / 16)}, {"abort", 0}, {"error", 0}}
	}},
	{"vllm:estimated_flops_per_gpu_total", page.Counter, "Estimated number of floating point operations per GPU.", "", none},
	{"vllm:estimated_read_bytes_per_gpu_total", page.Counter, "Estimated number of bytes read from memory per GPU.", "", none},
	{"vllm:estimated_write_bytes_per_gpu_total", page.Counter, "Estimated number of bytes written to memory per GPU.", "", none},
}

var vllmHistograms = []page.Histogram{
	{Name: "vllm:iteration_tokens_total", Help: "Histogram of number of tokens per engine_step.", Mean: 300, Buckets: []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}},
	{Name: "vllm:request_params_n", Help: "Histogram of the n request parameter.", Mean: 1, Buckets: []float64{1, 2, 5, 10, 20}},
	{Name: "vllm:request_params_max_tokens", Help: "Histogram of the max_tokens request parameter.", Mean: 2048, Buckets: tokenBuckets},
	{Name: "vllm:request_prompt_tokens", Help: "Number of prefill tokens processed.", Mean: 1464, Buckets: tokenBuckets},
	{Name: "vllm:request_generation_tokens", Help: "Number of generation tokens processed.", Mean: 246, Buckets: tokenBuckets},
	{Name: "vllm:request_max_num_generation_tokens", Help: "Histogram of maximum number of requested generation tokens.", Mean: 246, Buckets: tokenBuckets},
	{Name: "vllm:request_prefill_kv_computed_tokens", Help: "Histogram of new KV tokens computed during prefill.", Mean: 878, Buckets: tokenBuckets},
	{Name: "vllm:time_to_first_token_seconds", Help: "Histogram of time to first token in seconds.", Mean: 0.3, Buckets: firstTokenBuckets},
	{Name: "vllm:inter_token_latency_seconds", Help: "Histogram of inter-token latency in seconds.", Mean: 0.025, Buckets: perTokenBuckets},
	{Name: "vllm:request_time_per_output_token_seconds", Help: "Histogram of time_per_output_token_seconds per request.", Mean: 0.025, Buckets: perTokenBuckets},
	{Name: "vllm:e2e_request_latency_seconds", Help: "Histogram of e2e request latency in seconds.", Mean: 6, Buckets: requestBuckets},
	{Name: "vllm:request_queue_time_seconds", Help: "Histogram of time spent in WAITING phase for request.", Mean: 0.2, Buckets: requestBuckets},
	{Name: "vllm:request_prefill_time_seconds", Help: "Histogram of time spent in PREFILL phase for request.", Mean: 0.1, Buckets: requestBuckets},
	{Name: "vllm:request_decode_time_seconds", Help: "Histogram of time spent in DECODE phase for request.", Mean: 5.7, Buckets: requestBuckets},
	{Name: "vllm:request_inference_time_seconds", Help: "Histogram of time spent in RUNNING phase for request.", Mean: 5.8, Buckets: requestBuckets},
}

// vllmMetrics writes /metrics as vLLM 0.26 does, with the label engine for
// each DP rank.
func (e Engine) vllmMetrics(p *page.Text, s reporter.Sample) {
	process(p, s)
	for _, f := range vllmFamilies {
		p.Family(f.name, f.kind, f.help)
		for i := range s.Ranks {
			for _, v := range f.values(s, i) {
				labels := e.core(i)
				if f.label != "" {
					labels = append(labels, f.label, v.label)
				}
				p.Put(f.name, v.v, labels...)
			}
		}
	}
	p.Family("vllm:cache_config_info", page.Gauge, "Information of the LLMEngine CacheConfig")
	for i, r := range s.Ranks {
		p.Put("vllm:cache_config_info", 1, cacheConfig(i, r.MaxTotalNumTokens)...)
	}
	for _, h := range vllmHistograms {
		h.Family(p)
		for i, c := range s.Counters {
			h.Put(p, c.Finished, e.core(i)...)
		}
	}
}

// core returns the labels of a rank.
func (e Engine) core(rank int) []string {
	return []string{"engine", strconv.Itoa(rank), "model_name", e.Model}
}

// cacheConfig returns the labels of cache_config_info, which has no model.
func cacheConfig(rank int, capacity int64) []string {
	return []string{
		"engine", strconv.Itoa(rank),
		"block_size", strconv.Itoa(blockSize),
		"cache_dtype", "auto",
		"calculate_kv_scales", "False",
		"enable_prefix_caching", "True",
		"gpu_memory_utilization", "0.9",
		"kv_cache_size_tokens", strconv.FormatInt(capacity, 10),
		"num_cpu_blocks", "None",
		"num_gpu_blocks", strconv.FormatInt(capacity/blockSize, 10),
		"num_gpu_blocks_override", "None",
		"prefix_caching_hash_algo", "sha256",
		"sliding_window", "None",
	}
}

// process writes the families that the Python client adds.
func process(p *page.Text, s reporter.Sample) {
	p.Family("python_info", page.Gauge, "Python platform information")
	p.Put("python_info", 1, "implementation", "CPython", "major", "3", "minor", "12", "patchlevel", "11", "version", "3.12.11")
	p.One("process_resident_memory_bytes", page.Gauge, "Resident memory size in bytes.", 8.1e9)
	p.One("process_start_time_seconds", page.Gauge, "Start time of the process since unix epoch in seconds.", float64(s.Started.UnixMilli())/1e3)
	p.One("process_open_fds", page.Gauge, "Number of open file descriptors.", 71)
}
