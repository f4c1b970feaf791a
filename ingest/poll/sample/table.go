package sample

import (
	"github.com/loadplane/loadplane/ingest/poll/sample/cells"
	"github.com/loadplane/loadplane/ingest/poll/sample/document"
	"github.com/loadplane/loadplane/ingest/poll/sample/series"
)

// The table of engines: which pages they have, and under which names their
// numbers stand there. What was read from which release is noted beside it.

// rules say how the fields of an engine are computed from its page.
type rules struct {
	// percent says that old pages have the hit rate in percent.
	percent bool
	// countersFirst says that a rate of counters goes before a gauge.
	countersFirst bool
	// usedByUsage says that used tokens are usage times capacity, where the page
	// does not say them.
	usedByUsage bool
	// queue says that the JSON form is a queue, which reading may empty.
	queue bool
}

// Prefixes and rows of expositions.
var (
	// sglangRows serve /metrics of all releases since 2024-09 and the text form
	// of /v1/loads.
	sglangRows = []cells.Row{
		// num_requests_* are of 2024-09 to 2024-11; cache_hit_rate was in percent
		// then.
		gauge(cells.Running, "num_running_reqs", oldRunning),
		// Of /v1/loads, which adds the queues itself.
		gauge(cells.Waiting, "num_waiting_reqs"),
		gauge(cells.Queued, "num_queue_reqs", "num_requests_waiting"),
		gauge(cells.WaitingTokens, "num_waiting_uncached_tokens"),
		gauge(cells.Used, "num_used_tokens", "kv_used_tokens"),
		gauge(cells.Total, "num_total_tokens"),
		gauge(cells.Capacity, "max_total_num_tokens"),
		gauge(cells.MaxRunning, "max_running_requests"),
		// Called prealloc before 0.5.16.
		gauge(cells.Bootstrap,
			"num_prefill_bootstrap_queue_reqs", "num_prefill_prealloc_queue_reqs",
			"disagg_prefill_bootstrap_queue_reqs", "disagg_prefill_prealloc_queue_reqs",
		),
		gauge(cells.Inflight, "num_prefill_inflight_queue_reqs", "disagg_prefill_inflight_queue_reqs"),
		gauge(cells.Prealloc, "num_decode_prealloc_queue_reqs", "disagg_decode_prealloc_queue_reqs"),
		gauge(cells.Transfer, "num_decode_transfer_queue_reqs", "disagg_decode_transfer_queue_reqs"),
		// num_retracted_reqs counts since the last log line and is no queue.
		gauge(cells.Retracted, "num_decode_retracted_queue_reqs", "disagg_decode_retracted_queue_reqs"),
		gauge(cells.Usage, "token_usage"),
		// Keeps its value when the engine goes idle (sglang#4244).
		gauge(cells.GenRate, "gen_throughput"),
		gauge(cells.HitRate, "cache_hit_rate"),
		gauge(cells.Utilization, "utilization"),
		gauge(cells.SampleTime, "timestamp"),
		counter(cells.Generated, "realtime_tokens_total{mode=decode}"),
		counter(cells.Finished, "generation_tokens_total"),
		counter(cells.Computed, "total_prefill_uncached_tokens", "realtime_tokens_total{mode=prefill_compute}"),
		counter(cells.Busy, "total_prefill_busy_us"),
	}
	vllmRows = []cells.Row{
		gauge(cells.Running, "num_requests_running"),
		// Not num_requests_waiting_by_reason, which is a part of it.
		gauge(cells.Waiting, "num_requests_waiting"),
		// gpu_ until 0.9.1, both until 0.10.2 and hidden until 0.11 (#18354, #29330).
		gauge(cells.Usage, "kv_cache_usage_perc", "gpu_cache_usage_perc"),
		// kv_cache_size_tokens, else block_size times num_gpu_blocks.
		info(cells.Capacity, "cache_config_info"),
		sleep("engine_sleep_state"),
		// V0 only.
		gauge(cells.GenRate, "avg_generation_throughput_toks_per_s"),
		gauge(cells.HitRate, "gpu_prefix_cache_hit_rate"),
		counter(cells.Generated, "generation_tokens_total"),
		counter(cells.Computed, "prompt_tokens_by_source_total{source=local_compute}"),
		counter(cells.Prompt, "prompt_tokens_total"),
		counter(cells.Cached, "prompt_tokens_cached_total"),
		// gpu_ until 0.10.2.
		counter(cells.Hits, "prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
		counter(cells.Queries, "prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
	}
	// trtllmRows need TensorRT-LLM 1.3.0 or so; 1.1.0rc5 had five names and no
	// load among them.
	trtllmRows = []cells.Row{
		gauge(cells.Running, "num_requests_running"),
		gauge(cells.Waiting, "num_requests_waiting"),
		gauge(cells.MaxRunning, "max_num_active_requests"),
		gauge(cells.UsedBlocks, "kv_cache_used_blocks"),
		gauge(cells.MaxBlocks, "kv_cache_max_blocks"),
		gauge(cells.BlockTokens, "kv_cache_tokens_per_block"),
		gauge(cells.Usage, "kv_cache_utilization"),
		gauge(cells.HitRate, "kv_cache_hit_rate"),
		counter(cells.Finished, "generation_tokens_total"),
		counter(cells.Prompt, "prompt_tokens_total"),
		counter(cells.Cached, "prompt_cached_tokens_total"),
	}
	// tritonRows leave {fraction} out: it is not used / max.
	tritonRows = []cells.Row{
		gauge(cells.Running, "request_metrics{request_type=active}"),
		gauge(cells.Waiting, "request_metrics{request_type=waiting}"),
		gauge(cells.MaxRunning, "request_metrics{request_type=max}"),
		gauge(cells.UsedBlocks, "kv_cache_block_metrics{kv_cache_block_type=used}"),
		gauge(cells.MaxBlocks, "kv_cache_block_metrics{kv_cache_block_type=max}"),
		gauge(cells.BlockTokens, "kv_cache_block_metrics{kv_cache_block_type=tokens_per}"),
	}
	tgiRows = []cells.Row{
		gauge(cells.Running, "batch_current_size"),
		gauge(cells.Waiting, "queue_size"),
		// What the batch may grow to: an upper bound of what is used.
		gauge(cells.Used, "batch_current_max_tokens"),
		gauge(cells.Capacity, "batch_max_total_tokens"),
		counter(cells.Finished, "request_generated_tokens_sum"),
	}
	// llamaRows have no KV cache: its gauges went in 2025 (llama.cpp#13660).
	llamaRows = []cells.Row{
		gauge(cells.Running, "requests_processing"),
		gauge(cells.Waiting, "requests_deferred"),
		counter(cells.Finished, "tokens_predicted_total"),
		counter(cells.Computed, "prompt_tokens_total"),
	}
)

// Keys of one rank in JSON.
var (
	// loadsRows serve /v1/loads with aggregate (2026-01 to 2026-05) and without.
	loadsRows = []cells.Row{
		gauge(cells.Running, "num_running_reqs"),
		gauge(cells.Waiting, "num_waiting_reqs"),
		gauge(cells.WaitingTokens, "num_waiting_uncached_tokens"),
		gauge(cells.Used, "num_used_tokens"),
		gauge(cells.Total, "num_total_tokens"),
		gauge(cells.Capacity, "max_total_num_tokens"),
		gauge(cells.MaxRunning, "max_running_requests"),
		gauge(cells.Bootstrap, "disaggregation.prefill_bootstrap_queue_reqs", "disaggregation.prefill_prealloc_queue_reqs"),
		gauge(cells.Inflight, "disaggregation.prefill_inflight_queue_reqs"),
		gauge(cells.Prealloc, "disaggregation.decode_prealloc_queue_reqs"),
		gauge(cells.Transfer, "disaggregation.decode_transfer_queue_reqs"),
		gauge(cells.Retracted, "disaggregation.decode_retracted_queue_reqs"),
		gauge(cells.Usage, "token_usage"),
		gauge(cells.GenRate, "gen_throughput"),
		gauge(cells.HitRate, "cache_hit_rate"),
		gauge(cells.Utilization, "utilization"),
		gauge(cells.SampleTime, "timestamp"),
		counter(cells.Computed, "total_prefill_uncached_tokens"),
		counter(cells.Busy, "total_prefill_busy_us"),
	}
	// getLoadRows serve the array of /get_load, 2025-10 on. Running requests are
	// num_reqs - num_waiting_reqs; used tokens num_tokens - num_pending_tokens,
	// which only the later shim has. ts_tic is the clock of the request.
	getLoadRows = []cells.Row{
		gauge(cells.Waiting, "num_waiting_reqs"),
		gauge(cells.Total, "num_tokens"),
	}
	// scalarRows serve the object of /get_load of 2025-05: one number, the used
	// tokens and the prompts of the queue, for the first rank only. Requests are
	// unknown.
	scalarRows = []cells.Row{
		gauge(cells.Total, "load"),
	}
	// iterationRows serve one iteration of trtllm-serve's JSON /metrics.
	iterationRows = []cells.Row{
		gauge(cells.Running, "numActiveRequests"),
		gauge(cells.Waiting, "numQueuedRequests"),
		gauge(cells.MaxRunning, "maxNumActiveRequests"),
		gauge(cells.UsedBlocks, "kvCacheStats.usedNumBlocks"),
		gauge(cells.MaxBlocks, "kvCacheStats.maxNumBlocks"),
		gauge(cells.BlockTokens, "kvCacheStats.tokensPerBlock"),
		gauge(cells.HitRate, "kvCacheStats.cacheHitRate"),
		counter(cells.Iteration, "iter"),
	}
)

// oldRunning is the name by which pages of SGLang are known whose hit rate is
// in percent.
const oldRunning = "num_requests_running"

// Content types to ask for.
const (
	acceptText = "text/plain;version=0.0.4"
	acceptJSON = "application/json"
)

// Expositions, by family.
var (
	sglangText = series.Compile(series.Family{
		Prefixes: []string{"sglang:", "sglang_"}, Rank: "dp_rank", Models: []string{"model_name", "name"}, Rows: sglangRows,
	})
	vllmText = series.Compile(series.Family{
		Prefixes: []string{"vllm:", "ray_vllm:"}, Rank: "engine", Models: []string{"model_name"}, Rows: vllmRows,
	})
	trtllmText = series.Compile(series.Family{
		Prefixes: []string{"trtllm_", "trtllm:", "pytrtllm:"}, Models: []string{"model_name"}, Rows: trtllmRows,
	})
	// The model of Triton is the name of its backend, and never shown.
	tritonText = series.Compile(series.Family{
		Prefixes: []string{"nv_trt_llm_"}, Models: []string{"model"}, Backend: true, Rows: tritonRows,
	})
	tgiText   = series.Compile(series.Family{Prefixes: []string{"tgi_"}, Rows: tgiRows})
	llamaText = series.Compile(series.Family{Prefixes: []string{"llamacpp:"}, Rows: llamaRows})
)

// endpoints are in the order in which they are tried within a family.
var endpoints = []*Endpoint{
	{
		Name: "sglang /v1/loads", Family: SGLang, Path: "/v1/loads?include=core,disagg,queues", Accept: acceptJSON,
		text: sglangText, json: document.Loads(loadsRows), rules: rules{percent: true},
	},
	{Name: "sglang /metrics", Family: SGLang, Path: "/metrics", Accept: acceptText, text: sglangText, rules: rules{percent: true}},
	{Name: "sglang /get_load", Family: SGLang, Path: "/get_load", Accept: acceptJSON, json: document.GetLoad(getLoadRows, scalarRows)},
	{
		Name: "vllm /metrics", Family: VLLM, Path: "/metrics", Accept: acceptText,
		text: vllmText, rules: rules{countersFirst: true, usedByUsage: true},
	},
	{
		Name: "tensorrt-llm /prometheus/metrics", Family: TensorRTLLM, Path: "/prometheus/metrics", Accept: acceptText,
		text: trtllmText, rules: rules{usedByUsage: true},
	},
	// A list of iterations in trtllm-serve; the exposition of the row before
	// where another server has it there.
	{
		Name: "tensorrt-llm /metrics", Family: TensorRTLLM, Path: "/metrics", Accept: acceptJSON + "," + acceptText,
		text: trtllmText, json: document.Iterations(iterationRows), rules: rules{usedByUsage: true, queue: true},
	},
	{Name: "triton /metrics", Family: Triton, Path: "/metrics", Accept: acceptText, text: tritonText},
	{Name: "tgi /metrics", Family: TGI, Path: "/metrics", Accept: acceptText, text: tgiText},
	{Name: "llama.cpp /metrics", Family: LlamaCPP, Path: "/metrics", Accept: acceptText, text: llamaText},
}

func gauge(to cells.Input, names ...string) cells.Row {
	return cells.Row{To: to, Kind: cells.Gauge, Names: names}
}

func counter(to cells.Input, names ...string) cells.Row {
	return cells.Row{To: to, Kind: cells.Counter, Names: names}
}

func info(to cells.Input, names ...string) cells.Row {
	return cells.Row{To: to, Kind: cells.Info, Names: names}
}

func sleep(names ...string) cells.Row { return cells.Row{Kind: cells.Sleep, Names: names} }
