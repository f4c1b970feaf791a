package sample

import (
	"fmt"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/store"
)

// TestBug01RankThatCannotBeRead: what a rank without a readable number carries
// must not be missing from sums that look complete.
func TestBug01RankThatCannotBeRead(t *testing.T) {
	for name, label := range map[string]string{
		"word": "x", "sign": "-1", "plus": "+1", "fraction": "1.5", "blank": " 1", "None": "None", "NUL": "\x00", "digit and NUL": "1\x00",
		"above the limit": "4096", "endless": "11111111111111111111", "escape": `\n1`,
	} {
		t.Run("bug 1: "+name, func(t *testing.T) {
			for i, series := range []string{
				"vllm:num_requests_running{engine=\"%s\"} 50\n",
				"vllm:num_requests_running{engine=\"%s\",model_name=\"m\"} NaN\n",
				"vllm:generation_tokens_total{engine=\"%s\"} 50\n",
				"vllm:cache_config_info{engine=\"%s\",kv_cache_size_tokens=\"9\"} 1\n",
			} {
				page := "vllm:num_requests_running{engine=\"0\"} 1\n" + strings.Replace(series, "%s", label, 1)
				for seed := range uint64(2) {
					r, refusal := newFeed(t, "vllm /metrics").read(shuffled(page, seed))
					if refusal == nil || refusal.Reason != ingest.ReasonBadRank || !strings.Contains(refusal.Message, "engine") {
						t.Errorf("series %d is read as %s", i, transcript(r, refusal))
					}
				}
			}
		})
	}
}

// TestRankLabelOfOtherSeries: only series of a field say something of a rank.
func TestRankLabelOfOtherSeries(t *testing.T) {
	for name, series := range map[string]string{
		"start":              "process_start_time_seconds{dp_rank=\"x\"} 0\n",
		"not wanted":         "sglang:num_grammar_queue_reqs{dp_rank=\"x\"} 1\n",
		"another selector":   "sglang:realtime_tokens_total{dp_rank=\"x\",mode=\"other\"} 1\n",
		"priority":           "sglang:num_queue_reqs{dp_rank=\"x\",priority=\"1\"} 1\n",
		"priority, in front": "sglang:num_queue_reqs{priority=\"1\",dp_rank=\"x\"} 1\n",
	} {
		t.Run(name, func(t *testing.T) {
			newFeed(t, "sglang /metrics").want("sglang:num_running_reqs{dp_rank=\"0\"} 1\n"+series, "0: run=1")
		})
	}
	newFeed(t, "vllm /metrics").want("vllm:num_requests_running{engine=\"0\"} 1\nvllm:engine_sleep_state{engine=\"x\",sleep_state=\"discard_all\"} 1\n",
		"0: run=1\npage: asleep=discard_all")
}

func TestBug05RankNumbersInJSON(t *testing.T) {
	for number, want := range map[string]string{
		"3": "3: run=50", "3.0": "3: run=50", "3e0": "3: run=50", `"3"`: "3: run=50", `"03"`: "3: run=50", "-0.0": string(ingest.ReasonDuplicateRank),
		"-1": "", `"-1"`: "", "null": "", `"x"`: "", `""`: "", `"3.0"`: "", "1.5": "", `"\u0033"`: "", `"3\u0000"`: "", "true": "", "{}": "", "[3]": "",
		"4096": "", `"4096"`: "", "1e999": "", `"99999999999999999999"`: "",
	} {
		t.Run("bug 5: "+number, func(t *testing.T) {
			switch {
			case want == "":
				want = string(ingest.ReasonBadRank)
			case want[0] == '3':
				want = "0: run=1\n" + want
			}
			newFeed(t, "sglang /v1/loads").want(
				fmt.Sprintf(`{"loads": [{"dp_rank": 0, "num_running_reqs": 1}, {"num_running_reqs": 50, "dp_rank": %s}]}`, number), want)
			if want == string(ingest.ReasonBadRank) {
				newFeed(t, "sglang /get_load").want(fmt.Sprintf(`[{"dp_rank": %s, "num_tokens": 1}, {"dp_rank": 1, "num_tokens": 2}]`, number), want)
			}
		})
	}
}

// TestBug07FewerRanksThanTheEngineHas: the ranks that are shown are read as
// they are, with what is known of each rank.
func TestBug07FewerRanksThanTheEngineHas(t *testing.T) {
	for _, c := range []struct {
		name, endpoint, page string
		size                 int
		want                 string
	}{
		{"one of two in JSON", "sglang /v1/loads", `{"loads": [{"dp_rank": 1, "num_running_reqs": 4}]}`, 2, "1: run=4 max=16 unknown"},
		{"one of two in an array", "sglang /get_load", `[{"dp_rank": 0, "num_tokens": 4}]`, 2, "0: total=4 max=16 unknown"},
		{"one of two in text", "sglang /metrics", "sglang:num_running_reqs{dp_rank=\"0\"} 4\n", 2, "0: run=4 max=16 unknown"},
		{"one of two of vLLM", "vllm /metrics", "vllm:num_requests_running{engine=\"0\"} 4\n", 2, "0: run=4 max=16 unknown"},
		{"all", "sglang /v1/loads", `{"loads": [{"dp_rank": 0, "num_running_reqs": 4}, {"dp_rank": 1}]}`, 2, "0: run=4 max=16"},
		{"more", "sglang /v1/loads", `{"loads": [{"dp_rank": 0, "num_running_reqs": 4}, {"dp_rank": 1}]}`, 1, "0: run=4 max=16"},
		{"size not known", "sglang /v1/loads", `{"loads": [{"dp_rank": 0, "num_running_reqs": 4}]}`, 0, "0: run=4 max=16"},
		{"null for a rank", "sglang /v1/loads", `{"loads": [null, {"dp_rank": 1, "num_running_reqs": 4}]}`, 0, "1: run=4 max=16 unknown"},
	} {
		t.Run("bug 7: "+c.name, func(t *testing.T) {
			f := newFeed(t, c.endpoint)
			f.hints = Hints{DPSize: c.size, MaxRunning: 16}
			r, refusal := f.read(c.page)
			if refusal != nil {
				t.Fatal(refusal)
			}
			got := show(&r.Ranks[0])
			if r.Flags == store.FlagRanksUnknown {
				got += " unknown"
			}
			if got != c.want {
				t.Errorf("read as %s, want %s", got, c.want)
			}
		})
	}
}
