package face

import (
	"math"
	"net/http"
	"strconv"

	"github.com/loadplane/loadplane/sim/face/page"
	"github.com/loadplane/loadplane/sim/reporter"
)

// LlamaCPP returns the pages of a llama.cpp server with --metrics and --slots:
// /metrics, /props, /slots, /health and /v1/models. Each request has a slot;
// there is no page that tells the use of the KV cache.
func LlamaCPP(e Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", e.loaded(func(w http.ResponseWriter, s reporter.Sample) {
		w.Header().Set("Process-Start-Time-Unix", strconv.FormatInt(s.Started.UnixMicro(), 10))
		llamaMetrics(s).Answer(w)
	}))
	mux.HandleFunc("GET /props", answers(func() any { return e.llamaProps() }))
	mux.HandleFunc("GET /slots", e.loaded(llamaSlots))
	mux.HandleFunc("GET /v1/models", answers(func() any {
		return e.models("llamacpp", page.Field{"meta", page.Object{{"n_ctx_train", reporter.CapacityTokens}, {"n_vocab", 128_256}}})
	}))
	mux.HandleFunc("GET /health", answers(func() any { return page.Object{{"status", "ok"}} }))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		page.WriteJSON(w, http.StatusNotFound, page.Object{{"error", page.Object{
			{"code", http.StatusNotFound}, {"message", "File Not Found"}, {"type", "not_found_error"},
		}}})
	})
	return mux
}

// slotContext is the number of tokens of a slot.
const slotContext = reporter.CapacityTokens / reporter.MaxRunning

func (e Engine) llamaProps() page.Object {
	return page.Object{
		{"default_generation_settings", page.Object{{"n_ctx", slotContext}, {"params", page.Object{{"n_predict", -1}, {"temperature", page.Number(0.8)}}}}},
		{"total_slots", reporter.MaxRunning},
		{"model_alias", e.Model},
		{"model_path", "/models/" + e.Model + ".gguf"},
		{"modalities", page.Object{{"vision", false}, {"audio", false}}},
		{"build_info", llamaBuild},
		{"is_sleeping", false},
	}
}

// llamaSlots answers /slots; requests fill the first ones. Without capacity
// there are none.
func llamaSlots(w http.ResponseWriter, s reporter.Sample) {
	load, _ := s.Total()
	slots := make([]page.Object, load.MaxRunningRequests)
	for i := range slots {
		busy := int64(i) < load.NumRunningReqs
		decoded := int64(0)
		if busy {
			decoded = load.NumUsedTokens / load.NumRunningReqs
		}
		slots[i] = page.Object{
			{"id", i}, {"n_ctx", slotContext}, {"speculative", false}, {"is_processing", busy},
			{"next_token", []page.Object{{{"has_next_token", busy}, {"n_remain", -1}, {"n_decoded", decoded}}}},
		}
	}
	page.WriteJSON(w, http.StatusOK, slots)
}

// llamaMetrics writes /metrics, as it is since the gauges of the KV cache are
// gone. Prompt tokens are those that were computed.
func llamaMetrics(s reporter.Sample) *page.Text {
	p := &page.Text{Plain: true}
	load, c := s.Total()
	computed, predicted := float64(c.PromptTokens-c.CachedTokens), float64(c.GeneratedTokens)
	promptTime, predictTime := milli(c.PrefillBusy.Seconds()), milli(c.DecodeBusy.Seconds())
	passes := math.Floor(predictTime * 40)
	rate := milli(load.GenThroughput)
	if math.IsNaN(load.TokenUsage) {
		rate = load.TokenUsage
	}
	p.One("llamacpp:prompt_tokens_total", page.Counter, "Number of prompt tokens processed.", computed)
	p.One("llamacpp:prompt_seconds_total", page.Counter, "Prompt process time", promptTime)
	p.One("llamacpp:tokens_predicted_total", page.Counter, "Number of generation tokens processed.", predicted)
	p.One("llamacpp:tokens_predicted_seconds_total", page.Counter, "Predict process time", predictTime)
	p.One("llamacpp:n_decode_total", page.Counter, "Total number of llama_decode() calls", passes)
	p.One("llamacpp:n_tokens_max", page.Counter, "Largest observed n_tokens.", float64(slotContext))
	p.One("llamacpp:n_busy_slots_per_decode", page.Counter, "Average number of busy slots per llama_decode() call", milli(per(predicted, int64(passes))))
	p.One("llamacpp:prompt_tokens_seconds", page.Gauge, "Average prompt throughput in tokens/s.", milli(load.PrefillThroughput))
	p.One("llamacpp:predicted_tokens_seconds", page.Gauge, "Average generation throughput in tokens/s.", rate)
	p.One("llamacpp:requests_processing", page.Gauge, "Number of requests processing.", float64(load.NumRunningReqs))
	p.One("llamacpp:requests_deferred", page.Gauge, "Number of requests deferred.", float64(load.NumWaitingReqs))
	return p
}

func milli(v float64) float64 { return math.Round(v*1e3) / 1e3 }
