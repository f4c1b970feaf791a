package face

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/face/page"
	"github.com/loadplane/loadplane/sim/reporter"
)

// sections are the parts of /v1/loads that can be asked for beside "all".
var sections = []string{"core", "memory", "spec", "lora", "disagg", "queues"}

// SGLang returns the pages of an SGLang engine, but for those of the push load
// reporter: /v1/loads, /get_load, /metrics with --enable-metrics and per-rank
// series, /server_info, /v1/models and /health. Pages of load other than
// /metrics keep the last good sample when sampling fails, and its times.
func SGLang(e Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/loads", e.loads)
	mux.HandleFunc("GET /get_load", e.getLoad)
	mux.HandleFunc("GET /metrics", e.metrics(e.sglangMetrics))
	mux.HandleFunc("GET /server_info", answers(func() any { return e.serverInfo() }))
	mux.HandleFunc("GET /get_server_info", answers(func() any { return e.serverInfo() }))
	mux.HandleFunc("GET /v1/models", answers(func() any {
		return e.models("sglang", page.Field{"root", e.Model}, page.Field{"parent", nil}, page.Field{"max_model_len", reporter.CapacityTokens})
	}))
	mux.HandleFunc("GET /health", healthy)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		SGLangError(w, http.StatusNotFound, "Not Found")
	})
	return mux
}

// SGLangError answers with an error in SGLang's shape. The type is the code in
// digits, except that a validation error has words there.
func SGLangError(w http.ResponseWriter, code int, message string) {
	kind := strconv.Itoa(code)
	if code == http.StatusBadRequest {
		kind = "Bad Request"
	}
	page.WriteJSON(w, code, page.Object{
		{"object", "error"}, {"message", message}, {"type", kind}, {"param", nil}, {"code", code},
	})
}

// version is the first one that has what the engine has.
func (e Engine) version() string {
	switch {
	case e.LoadPort > 0:
		return sglangLoadStat
	case e.Pushes || e.ReporterPort > 0:
		return sglangMain
	}
	return sglangReleased
}

// lastSample returns the last good sample, or answers with an error.
func (e Engine) lastSample(w http.ResponseWriter) (reporter.Sample, bool) {
	s, err := e.Sample()
	if len(s.Ranks) > 0 {
		return s, true
	}
	SGLangError(w, http.StatusInternalServerError, err.Error())
	return s, false
}

// loads answers /v1/loads as since May 2026: without an aggregate.
func (e Engine) loads(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	include, ok := included(q.Get("include"))
	if !ok {
		SGLangError(w, http.StatusBadRequest, "Invalid include sections; valid are "+strings.Join(sections, ", ")+" and all")
		return
	}
	rank, err := strconv.Atoi(q.Get("dp_rank"))
	if err != nil && q.Has("dp_rank") {
		SGLangError(w, http.StatusBadRequest, "query.dp_rank: not a valid integer")
		return
	}
	s, ok := e.lastSample(w)
	if !ok {
		return
	}
	loads := []page.Object{}
	for i := range s.Ranks {
		if !q.Has("dp_rank") || i == rank {
			loads = append(loads, e.rankObject(s, i, include))
		}
	}
	if q.Get("format") == "prometheus" {
		loadsPage(loads).Answer(w)
		return
	}
	page.WriteJSON(w, http.StatusOK, page.Object{
		{"timestamp", s.At.UTC().Format("2006-01-02T15:04:05.000000+00:00")},
		{"version", e.version()},
		{"loads", loads},
	})
}

// included returns the sections that a query names, all without one.
func included(text string) ([]string, bool) {
	if text == "" {
		return sections, true
	}
	var names []string
	for name := range strings.SplitSeq(text, ",") {
		switch name = strings.TrimSpace(name); {
		case name == "all":
			names = append(names, sections...)
		case slices.Contains(sections, name):
			names = append(names, name)
		default:
			return nil, false
		}
	}
	return names, true
}

// rankObject is one rank of /v1/loads. Only main has the two cumulative keys.
func (e Engine) rankObject(s reporter.Sample, i int, include []string) page.Object {
	r, c := s.Ranks[i], s.Counters[i]
	o := page.Object{
		{"timestamp", page.Number(float64(r.SnapshotTimeUnixMs) / 1e3)},
		{"dp_rank", i},
		{"num_running_reqs", e.running(r)},
		{"num_waiting_reqs", r.NumWaitingReqs},
		{"num_waiting_uncached_tokens", r.NumWaitingUncachedTokens},
		{"num_used_tokens", r.NumUsedTokens},
		{"num_total_tokens", r.NumTotalTokens},
		{"max_total_num_tokens", r.MaxTotalNumTokens},
		{"max_running_requests", r.MaxRunningRequests},
		{"token_usage", page.Number(r.TokenUsage)},
		{"gen_throughput", page.Number(r.GenThroughput)},
		{"cache_hit_rate", page.Number(r.CacheHitRate)},
		{"utilization", page.Number(r.Utilization)},
	}
	if e.Pushes {
		o = append(o,
			page.Field{"total_prefill_uncached_tokens", c.PromptTokens - c.CachedTokens},
			page.Field{"total_prefill_busy_us", c.PrefillBusy.Microseconds()})
	}
	for _, part := range []struct {
		section string
		field   page.Field
	}{
		{"memory", page.Field{"memory", memory(r)}},
		{"disagg", page.Field{"disaggregation", e.disaggregation(r)}},
		{"queues", page.Field{"queues", page.Object{{"waiting", r.NumWaitingReqs}, {"grammar", 0}, {"paused", 0}, {"retracted", 0}}}},
	} {
		if slices.Contains(include, part.section) {
			o = append(o, part.field)
		}
	}
	return o
}

// running is 0 on a prefill engine, as its requests never enter the running
// batch; sglang#31495.
func (e Engine) running(r *pb.RankLoad) int64 {
	if e.Mode == "prefill" {
		return 0
	}
	return r.NumRunningReqs
}

func memory(r *pb.RankLoad) page.Object {
	return page.Object{{"weight_gb", page.Number(61.233)}, {"kv_cache_gb", page.Number(38.5)}, {"graph_gb", page.Number(2.741)}, {"token_capacity", r.MaxTotalNumTokens}}
}

// disaggregation has the queues of the engine's mode: what a prefill engine
// holds is on its way to a decode engine, and what waits in a decode engine is
// on its way in.
func (e Engine) disaggregation(r *pb.RankLoad) page.Object {
	inflight, transfer := e.transfers(r)
	return page.Object{
		{"mode", e.Mode},
		{"prefill_bootstrap_queue_reqs", 0},
		{"prefill_inflight_queue_reqs", inflight},
		{"decode_prealloc_queue_reqs", 0},
		{"decode_transfer_queue_reqs", transfer},
		{"decode_retracted_queue_reqs", 0},
		{"kv_transfer_speed_gb_s", page.Number(0)},
		{"kv_transfer_latency_ms", page.Number(0)},
	}
}

func (e Engine) transfers(r *pb.RankLoad) (inflight, transfer int64) {
	switch e.Mode {
	case "prefill":
		return r.NumRunningReqs, 0
	case "decode":
		return 0, r.NumWaitingReqs
	}
	return 0, 0
}

// loadsPage is the other form of /v1/loads: a gauge a key, named after its
// section, without help texts, and with the rank as its only label.
func loadsPage(loads []page.Object) *page.Text {
	var p page.Text
	if len(loads) == 0 {
		return &p
	}
	for i, f := range loads[0] {
		if nested, ok := f[1].(page.Object); ok {
			section := strings.TrimSuffix(f.Key(), "regation") // It says disagg there.
			for j, inner := range nested {
				loadsFamily(&p, section+"_"+inner.Key(), loads, func(o page.Object) any {
					part, _ := o[i][1].(page.Object)
					return part[j][1]
				})
			}
			continue
		}
		if f.Key() != "dp_rank" {
			loadsFamily(&p, f.Key(), loads, func(o page.Object) any { return o[i][1] })
		}
	}
	return &p
}

func loadsFamily(p *page.Text, key string, loads []page.Object, value func(page.Object) any) {
	if _, text := value(loads[0]).(string); text {
		return
	}
	p.Family("sglang_"+key, page.Gauge, "")
	for _, o := range loads {
		rank, _ := o[1][1].(int)
		p.WriteString("sglang_" + key + `{dp_rank="` + strconv.Itoa(rank) + `"} ` + page.Plain(value(o)) + "\n")
	}
}

// getLoad answers the deprecated /get_load: an array of one object a rank.
// ts_tic is a clock of the process at the time of the request, as in the
// engine; it says nothing of the age of the load.
func (e Engine) getLoad(w http.ResponseWriter, _ *http.Request) {
	s, ok := e.lastSample(w)
	if !ok {
		return
	}
	loads := make([]page.Object, len(s.Ranks))
	for i, r := range s.Ranks {
		loads[i] = page.Object{
			{"dp_rank", i},
			{"num_reqs", e.running(r) + r.NumWaitingReqs},
			{"num_waiting_reqs", r.NumWaitingReqs},
			{"num_tokens", r.NumTotalTokens},
			{"num_pending_tokens", r.NumTotalTokens - r.NumUsedTokens},
			{"ts_tic", page.Number(math.Round(s.At.Sub(s.Started).Seconds()*1e6)/1e6 + 1000)},
		}
	}
	page.WriteJSON(w, http.StatusOK, loads)
}

// serverInfo is the part of /server_info that tells what the engine is and
// which ways of load reporting it offers. A reporter that is off has the port
// null.
func (e Engine) serverInfo() page.Object {
	var zone, reporterPort any
	if e.Zone != "" {
		zone = e.Zone
	}
	if e.ReporterPort > 0 {
		reporterPort = e.ReporterPort
	}
	states := make([]page.Object, e.Ranks)
	for i := range states {
		states[i] = page.Object{
			{"effective_max_running_requests_per_dp", reporter.MaxRunning},
			{"memory_usage", page.Object{{"weight", page.Number(61.233)}, {"kvcache", page.Number(38.5)}, {"token_capacity", reporter.CapacityTokens}, {"graph", page.Number(2.741)}}},
		}
	}
	return page.Object{
		{"model_path", "/models/" + e.Model}, {"served_model_name", e.Model},
		{"host", e.Host}, {"port", e.Port},
		{"tp_size", e.Ranks}, {"dp_size", e.Ranks},
		{"disaggregation_mode", e.Mode},
		{"max_running_requests", reporter.MaxRunning}, {"max_total_num_tokens", reporter.CapacityTokens},
		{"load_reporter_port", reporterPort}, {"load_reporter_zone", zone},
		{"kv_events", e.kvEvents()},
		{"startup_time", page.Number(float64(e.started().UnixMilli()) / 1e3)},
		{"internal_states", states},
		{"version", e.version()},
	}
}

// kvEvents has the load_* keys where load is published on sockets.
func (e Engine) kvEvents() page.Object {
	o := page.Object{
		{"publisher", "zmq"}, {"endpoint_host", "*"}, {"endpoint_port_base", 5557},
		{"topic", "kv-events"}, {"block_size", 1}, {"dp_size", e.Ranks},
	}
	if e.LoadPort > 0 {
		o = append(o, page.Field{"load_endpoint_port_base", e.LoadPort}, page.Field{"load_topic", "load"})
	}
	return o
}

// sglangGauges are the gauges of a scheduler, one series a rank.
var sglangGauges = []struct {
	name, help string
	value      func(e Engine, r *pb.RankLoad) float64
}{
	{"num_running_reqs", "The number of running requests.", func(e Engine, r *pb.RankLoad) float64 { return float64(e.running(r)) }},
	{"num_used_tokens", "The number of used tokens.", func(_ Engine, r *pb.RankLoad) float64 { return float64(r.NumUsedTokens) }},
	{"token_usage", "The token usage.", func(_ Engine, r *pb.RankLoad) float64 { return r.TokenUsage }},
	{"gen_throughput", "The generation throughput (token/s).", func(_ Engine, r *pb.RankLoad) float64 { return r.GenThroughput }},
	{"num_queue_reqs", "The number of requests in the waiting queue.", sglangQueue},
	{"num_grammar_queue_reqs", "The number of requests in the grammar waiting queue.", nothing},
	{"num_running_reqs_offline_batch", "The number of running low-priority offline batch requests.", nothing},
	{"cache_hit_rate", "The prefix cache hit rate.", func(_ Engine, r *pb.RankLoad) float64 { return r.CacheHitRate }},
	{"max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", func(_ Engine, r *pb.RankLoad) float64 { return float64(r.MaxTotalNumTokens) }},
	{"num_retracted_reqs", "The number of retracted requests.", nothing},
	{"num_paused_reqs", "The number of paused requests by async weight sync.", nothing},
	{"num_prefill_bootstrap_queue_reqs", "The number of requests in the prefill bootstrap queue.", nothing},
	{"num_prefill_inflight_queue_reqs", "The number of requests in the prefill inflight queue.", sglangInflight},
	{"num_decode_prealloc_queue_reqs", "The number of requests in the decode prealloc queue.", nothing},
	{"num_decode_transfer_queue_reqs", "The number of requests in the decode transfer queue.", sglangTransfer},
	{"kv_transfer_speed_gb_s", "The transfer speed of the KV cache in GB/s.", nothing},
	{"kv_transfer_latency_ms", "The transfer latency of the KV cache in ms.", nothing},
	{"utilization", "The utilization.", func(_ Engine, r *pb.RankLoad) float64 { return r.Utilization }},
	{"spec_accept_length", "The average acceptance length of speculative decoding.", nothing},
}

func nothing(Engine, *pb.RankLoad) float64 { return 0 }

// sglangQueue is the waiting queue alone: what waits in a decode engine waits
// for its transfer.
func sglangQueue(e Engine, r *pb.RankLoad) float64 {
	_, transfer := e.transfers(r)
	return float64(r.NumWaitingReqs - transfer)
}

func sglangInflight(e Engine, r *pb.RankLoad) float64 {
	inflight, _ := e.transfers(r)
	return float64(inflight)
}

func sglangTransfer(e Engine, r *pb.RankLoad) float64 {
	_, transfer := e.transfers(r)
	return float64(transfer)
}

var sglangHistograms = []page.Histogram{
	{Name: "sglang:time_to_first_token_seconds", Help: "Histogram of time to first token in seconds.", Mean: 0.3, Buckets: firstTokenBuckets},
	{Name: "sglang:e2e_request_latency_seconds", Help: "Histogram of End-to-end request latency in seconds", Mean: 6, Buckets: requestBuckets},
	{Name: "sglang:inter_token_latency_seconds", Help: "Histogram of inter-token latency in seconds.", Mean: 0.025, Buckets: perTokenBuckets},
}

// sglangMetrics writes /metrics of --enable-metrics with the series of all
// schedulers. Counters and histograms of requests are the tokenizer's and know
// no ranks. The process's start is not there: SGLang collects over processes.
func (e Engine) sglangMetrics(p *page.Text, s reporter.Sample) {
	for _, g := range sglangGauges {
		p.Family("sglang:"+g.name, page.Gauge, g.help)
		for i, r := range s.Ranks {
			p.Put("sglang:"+g.name, g.value(e, r), e.scheduler(i)...)
		}
	}
	p.Family("sglang:realtime_tokens_total", page.Counter, "Total number of tokens processed, updated on each log interval.")
	for i, c := range s.Counters {
		for _, m := range []struct {
			mode   string
			tokens int64
		}{
			{"prefill_compute", c.PromptTokens - c.CachedTokens}, {"prefill_cache", c.CachedTokens}, {"decode", c.GeneratedTokens},
		} {
			p.Put("sglang:realtime_tokens_total", float64(m.tokens), page.With(e.scheduler(i), "mode", m.mode)...)
		}
	}
	e.sglangRequests(p, s)
}

// scheduler returns the labels of a rank's scheduler. Engines that only
// prefill or decode call themselves unified here too; sglang#18552.
func (e Engine) scheduler(rank int) []string {
	r := strconv.Itoa(rank)
	return []string{"dp_rank", r, "engine_type", "unified", "model_name", e.Model, "pp_rank", "0", "tp_rank", r}
}

func (e Engine) sglangRequests(p *page.Text, s reporter.Sample) {
	_, c := s.Total()
	model := []string{"model_name", e.Model}
	for _, n := range []struct {
		name, help string
		v          int64
	}{
		{"prompt_tokens_total", "Number of prefill tokens processed.", c.PromptTokens},
		{"generation_tokens_total", "Number of generation tokens processed.", c.GeneratedTokens},
		{"cached_tokens_total", "Number of cached prompt tokens.", c.CachedTokens},
		{"num_requests_total", "Number of requests processed.", c.Finished},
		{"num_aborted_requests_total", "Number of requests aborted.", 0},
	} {
		p.Family("sglang:"+n.name, page.Counter, n.help)
		p.Put("sglang:"+n.name, float64(n.v), model...)
	}
	for _, h := range sglangHistograms {
		h.Family(p)
		h.Put(p, c.Finished, model...)
	}
}
