package sample

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/store"
)

// declared returns the words of reason.go and those of the readers that stand
// there as well.
func declared(t *testing.T) []store.Reason {
	t.Helper()
	var words []store.Reason
	for _, dir := range []string{".", "cells", "document", "series"} {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, "reason.go"), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && spec.Type != nil {
				word, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				words = append(words, store.Reason(word))
			}
			return true
		})
	}
	slices.Sort(words)
	return words
}

// manyModels names more models than are told apart.
func manyModels() string {
	page := ""
	for i := range 65 {
		page += fmt.Sprintf("vllm:num_requests_running{engine=\"%d\",model_name=\"m%d\"} 1\n", i, i)
	}
	return page
}

// refused are pages that cannot be read.
var refused = []struct {
	name, endpoint, page string
	want                 store.Reason
}{
	{"empty", "vllm /metrics", " \n", ReasonNoData},
	{"headers only", "vllm /metrics", "# TYPE vllm:a gauge\n", ReasonNoData},
	{"no rank listed", "sglang /v1/loads", `{"loads": []}`, ReasonNoData},
	{"no engine", "vllm /metrics", "go_goroutines 1\n", ReasonNotRecognised},
	{"another engine", "vllm /metrics", "tgi_queue_size 1\n", ReasonNotRecognised},
	{"plain text", "vllm /metrics", "Not Found", ReasonNotRecognised},
	{"no gauge of load", "vllm /metrics", "vllm:request_success_total 1\n", ReasonNoLoad},
	{"a counter only", "vllm /metrics", "vllm:generation_tokens_total 1\n", ReasonNoLoad},
	{"all unusable", "vllm /metrics", "vllm:num_requests_running NaN\n", ReasonNoLoad},
	{"iteration without keys", "tensorrt-llm /metrics", `[{"iter": 1, "kvCacheStats": {}}]`, ReasonNoLoad},
	{"ranks without numbers", "sglang /v1/loads", `{"loads": [{"dp_rank": -1}, {"dp_rank": "x"}]}`, ingest.ReasonBadRank},
	{"HTML", "sglang /v1/loads", "<!DOCTYPE html><html></html>", ReasonHTMLPage},
	{"JSON as text", "vllm /metrics", `{"detail": "Not Found"}`, ReasonJSONPage},
	{"text as JSON", "sglang /get_load", "load 1\n", ReasonTextPage},
	{"cut JSON", "sglang /v1/loads", `{"loads": [`, ReasonBadJSON},
	{"two values", "tensorrt-llm /metrics", `[] []`, ReasonBadJSON},
	{"no loads", "sglang /v1/loads", `{"detail": "Not Found"}`, ReasonUnsupportedSchema},
	{"array for object", "sglang /v1/loads", `[{"dp_rank": 0}]`, ReasonUnsupportedSchema},
	{"object for array", "tensorrt-llm /metrics", `{"iter": 1}`, ReasonUnsupportedSchema},
	{"loads of another type", "sglang /v1/loads", `{"loads": "many"}`, ReasonUnsupportedSchema},
	{"ranks of another type", "sglang /v1/loads", `{"loads": [1, 2]}`, ReasonUnsupportedSchema},
	{"two models", "vllm /metrics", "vllm:num_requests_running{model_name=\"a\"} 1\nvllm:num_requests_running{model_name=\"b\"} 1\n", ReasonSeveralModels},
	{"many models", "vllm /metrics", manyModels(), ReasonSeveralModels},
	{"many series", "vllm /metrics", strings.Repeat("vllm:num_requests_running 1\n", 1<<16+2), ReasonTooManySeries},
	{"a rank twice", "sglang /v1/loads", `{"loads": [{"dp_rank": 0}, {"dp_rank": 0}]}`, ingest.ReasonDuplicateRank},
	{"rank label", "vllm /metrics", "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"x\"} 50\n", ingest.ReasonBadRank},
	{"rank in JSON", "sglang /v1/loads", `{"loads": [{"dp_rank": 0, "num_running_reqs": 1}, {"dp_rank": 1.5, "num_running_reqs": 50}]}`, ingest.ReasonBadRank},
	{"too many ranks", "sglang /get_load", "[{}" + strings.Repeat(",{}", ingest.HardMaxRanks) + "]", ingest.ReasonTooManyRanks},
}

// odd are values that are not used on a page that is.
var odd = []struct {
	name, endpoint, page string
	want                 store.Reason
}{
	{"NaN", "vllm /metrics", "vllm:num_requests_running 1\nvllm:num_requests_waiting NaN\n", ReasonNotFinite},
	{"infinite", "vllm /metrics", "vllm:num_requests_running 1\nvllm:num_requests_waiting -Inf\n", ReasonNotFinite},
	{"negative", "vllm /metrics", "vllm:num_requests_running 1\nvllm:num_requests_waiting -1\n", ReasonNegative},
	{"fraction", "vllm /metrics", "vllm:num_requests_running 1\nvllm:num_requests_waiting 1.5\n", ReasonNotWhole},
	{"count", "vllm /metrics", "vllm:num_requests_running 1\nvllm:num_requests_waiting 1e16\n", ReasonAboveLimit},
	{"ratio", "vllm /metrics", "vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 4.5\n", ReasonAboveLimit},
	{"float", "sglang /metrics", "sglang:num_running_reqs 1\nsglang:gen_throughput 1e13\n", ReasonAboveLimit},
	{"text in JSON", "sglang /v1/loads", `{"loads": [{"dp_rank": 0, "num_running_reqs": 1, "num_waiting_reqs": "2"}]}`, ReasonNotANumber},
	{"text in a difference", "sglang /get_load", `[{"dp_rank": 0, "num_reqs": {}, "num_waiting_reqs": 2}]`, ReasonNotANumber},
	{"two series", "vllm /metrics", "vllm:num_requests_running 1\nvllm:num_requests_waiting{a=\"1\"} 1\nvllm:num_requests_waiting{a=\"2\"} 1\n", ReasonAmbiguous},
	{"blocks", "tensorrt-llm /prometheus/metrics", "trtllm_num_requests_running 1\ntrtllm_kv_cache_max_blocks 1e14\ntrtllm_kv_cache_tokens_per_block 64\n", ReasonAboveLimit},
	{"percent or not", "sglang /metrics", "sglang:num_requests_running 1\nsglang:cache_hit_rate 0.5\n", ReasonUnclearUnit},
	{"bound", "tgi /metrics", "tgi_batch_current_max_tokens 2\ntgi_batch_max_total_tokens 1\n", ReasonOverBound},
	{"broken line", "vllm /metrics", "vllm:num_requests_running 1\nvllm:num_requests_waiting{ 1\n", ReasonBadLine},
	{"repeated TYPE", "vllm /metrics", "# TYPE a gauge\n# TYPE a gauge\nvllm:num_requests_running 1\n", ReasonRepeatedType},
}

func TestEveryReasonIsProvoked(t *testing.T) {
	provoked := map[store.Reason]bool{}
	for _, c := range refused {
		t.Run(c.name, func(t *testing.T) {
			r, refusal := newFeed(t, c.endpoint).read(c.page)
			if refusal == nil || refusal.Reason != c.want {
				t.Errorf("read as %s, want %s", transcript(r, refusal), c.want)
				return
			}
			provoked[c.want] = true
		})
	}
	for _, c := range odd {
		t.Run("value: "+c.name, func(t *testing.T) {
			r, refusal := newFeed(t, c.endpoint).read(c.page)
			if refusal != nil || !maps.Equal(r.Unusable, map[store.Reason]int{c.want: 1}) {
				t.Errorf("read as %s, want one %s", transcript(r, refusal), c.want)
				return
			}
			provoked[c.want] = true
		})
	}
	for _, other := range []store.Reason{ingest.ReasonDuplicateRank, ingest.ReasonTooManyRanks, ingest.ReasonBadRank} {
		delete(provoked, other)
	}
	if got, want := slices.Sorted(maps.Keys(provoked)), declared(t); !slices.Equal(got, want) {
		t.Errorf("provoked %v\ndeclared %v", got, want)
	}
}
