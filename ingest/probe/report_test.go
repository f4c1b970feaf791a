package probe

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// countingPage is a page of vLLM with its counters at a step.
func countingPage(step int) string {
	return vllmPage + fmt.Sprintf("vllm:generation_tokens_total{engine=\"0\"} %d\nvllm:prompt_tokens_total{engine=\"0\"} %d\n"+
		"vllm:prompt_tokens_cached_total{engine=\"0\"} 0\nvllm:prefix_cache_queries_total{engine=\"0\"} %d\n"+
		"vllm:prefix_cache_hits_total{engine=\"0\"} 0\n", 100*step, 300*step, 10*step)
}

var rates = []store.Field{store.GenThroughput, store.CacheHitRate, store.PrefillThroughputWall}

// lacks says whether any rate is among the unknown fields.
func lacks(unknown []store.Field) bool {
	return slices.ContainsFunc(rates, func(f store.Field) bool { return slices.Contains(unknown, f) })
}

// TestInspectReadsTwice: rates are known of what a page counts, a second after
// the questions.
func TestInspectReadsTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{bodies: map[string]string{"/metrics": countingPage(1)}}
		go func() {
			<-time.After(between / 2)
			e.set(map[string]string{"/metrics": countingPage(2)})
		}()
		began := time.Now()
		r := newProber(t, e.dial).Inspect(t.Context(), registry.Target{URL: testURL})
		if took := time.Since(began); took != between {
			t.Errorf("took %s", took)
		}
		if lacks(r.Unknown) || !r.Rates || !slices.Contains(r.Unknown, store.NumTotalTokens) {
			t.Errorf("unknown %v", r.Unknown)
		}
		if v, ok := r.Reading.Ranks[0].Rank.Float(store.GenThroughput); !ok || v != 100 {
			t.Errorf("gen_throughput %v, %v", v, ok)
		}
		if n := len(r.Asked); r.Asked[n-1].Path != "/get_load" || r.Asked[n-2].Path != "/metrics" || r.Asked[n-3].Path == "/metrics" {
			t.Errorf("asked %+v", r.Asked)
		}
		synctest.Wait()
	})
}

// TestInspectKeepsTheFirstReading where the page is gone a second later.
func TestInspectKeepsTheFirstReading(t *testing.T) {
	for name, after := range map[string]string{"gone": "status 404", "no load": "go_goroutines 1\n"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{bodies: map[string]string{"/metrics": countingPage(1)}}
				go func() {
					<-time.After(between / 2)
					e.set(map[string]string{"/metrics": after})
				}()
				r := newProber(t, e.dial).Inspect(t.Context(), registry.Target{URL: testURL})
				if r.Reading == nil || r.Rates || !lacks(r.Unknown) || len(r.Reading.Ranks) != 1 {
					t.Errorf("got %+v", r)
				}
				synctest.Wait()
			})
		})
	}
}

// TestInspectEndsWithItsContext: it does not wait for the second reading.
func TestInspectEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{bodies: map[string]string{"/metrics": countingPage(1)}}
		ctx, cancel := context.WithTimeout(t.Context(), between/4)
		defer cancel()
		began := time.Now()
		r := newProber(t, e.dial).Inspect(ctx, registry.Target{URL: testURL})
		if took := time.Since(began); took != between/4 || r.Reading == nil || r.Rates {
			t.Errorf("%+v after %s", r, took)
		}
		synctest.Wait()
	})
}

// TestBug41QueueIsReadOnce: what reads TensorRT-LLM's queue may empty it.
func TestBug41QueueIsReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{bodies: map[string]string{"/metrics": `[{"iter": 1, "numActiveRequests": 3}]`}}
		r := newProber(t, e.dial).Inspect(t.Context(), registry.Target{URL: testURL})
		if r.Reading == nil || r.Rates || !slices.Contains(e.asked, "GET /metrics") {
			t.Fatalf("got %+v of %q", r, e.asked)
		}
		if n := len(slices.DeleteFunc(e.asked, func(a string) bool { return a != "GET /metrics" })); n != 1 {
			t.Errorf("the queue was read %d times", n)
		}
		synctest.Wait()
	})
}

// TestDerivedIsNotUnknown: the store computes prefill rates of counters that
// /v1/loads has in some releases.
func TestDerivedIsNotUnknown(t *testing.T) {
	const rank = `{"loads":[{"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":0%s}]}`
	for name, c := range map[string]struct {
		more             string
		throughput, wall bool
	}{
		"no counter":   {`,"timestamp":1.5`, true, true},
		"no busy time": {`,"timestamp":1.5,"total_prefill_uncached_tokens":4`, true, false},
		// The page is timed by its receipt.
		"no sample time":  {`,"total_prefill_uncached_tokens":4,"total_prefill_busy_us":5`, false, false},
		"all of it":       {`,"timestamp":1.5,"total_prefill_uncached_tokens":4,"total_prefill_busy_us":5`, false, false},
		"busy time alone": {`,"timestamp":1.5,"total_prefill_busy_us":5`, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{bodies: map[string]string{"/v1/loads": fmt.Sprintf(rank, c.more)}}
				r := newProber(t, e.dial).Inspect(t.Context(), registry.Target{URL: testURL})
				if got := slices.Contains(r.Unknown, store.PrefillThroughput); got != c.throughput {
					t.Errorf("prefill_throughput unknown: %v", got)
				}
				if got := slices.Contains(r.Unknown, store.PrefillThroughputWall); got != c.wall {
					t.Errorf("prefill_throughput_wall unknown: %v", got)
				}
				synctest.Wait()
			})
		})
	}
}

// TestSecondReadingHasTheHintsOfTheFirst: what is known of the engine fills the
// page, and chooses its model.
func TestSecondReadingHasTheHintsOfTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{bodies: map[string]string{
			"/info": tgiInfo, "/metrics": "tgi_queue_size 0\ntgi_batch_current_size 2\ntgi_batch_current_max_tokens 4000\n",
		}}
		r := newProber(t, e.dial).Inspect(t.Context(), registry.Target{URL: testURL})
		if v, ok := r.Reading.Ranks[0].Rank.Count(store.MaxRunningRequests); !r.Rates || !ok || v != 128 {
			t.Errorf("max_running_requests %d, %v", v, ok)
		}
		if v, ok := r.Reading.Ranks[0].Rank.Float(store.TokenUsage); !ok || v != 0.25 {
			t.Errorf("token_usage %v, %v", v, ok)
		}
		e.set(map[string]string{"/metrics": vllmPage + "vllm:num_requests_running{engine=\"0\",model_name=\"m3\"} 7\n"})
		r = newProber(t, e.dial).Inspect(t.Context(), registry.Target{URL: testURL, Models: []string{"m3"}, MaxRunning: 9})
		if v, ok := r.Reading.Ranks[0].Rank.Count(store.NumRunningReqs); !r.Rates || !ok || v != 7 {
			t.Errorf("num_running_reqs %d, %v", v, ok)
		}
		if v, ok := r.Reading.Ranks[0].Rank.Count(store.MaxRunningRequests); !ok || v != 9 {
			t.Errorf("max_running_requests %d, %v", v, ok)
		}
		synctest.Wait()
	})
}

// TestBug41ExpositionInPlaceOfTheQueue: a server has TensorRT-LLM's exposition
// under the path of the queue. It is no queue, and read twice.
func TestBug41ExpositionInPlaceOfTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{bodies: map[string]string{
			"/metrics": "trtllm:num_requests_running 3\ntrtllm:generation_tokens_total 5\n",
		}}
		r := newProber(t, e.dial).Inspect(t.Context(), registry.Target{URL: testURL})
		if r.Endpoint == nil || r.Endpoint.Name != "tensorrt-llm /metrics" || !r.Rates || slices.Contains(r.Unknown, store.GenThroughput) {
			t.Errorf("got %+v", r)
		}
		synctest.Wait()
	})
}
