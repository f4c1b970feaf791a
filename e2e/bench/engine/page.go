package engine

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/face"
	"github.com/loadplane/loadplane/sim/reporter"
)

const (
	// runningBase and maxPatched keep the number of running requests at one
	// width.
	runningBase  = 100
	runningWidth = 3
	maxPatched   = 100
)

// page is an answer with a metrics page of vLLM in it, patched for each
// sending. It is for one goroutine.
type page struct {
	answer []byte
	// size is the length of the page itself.
	size int
	// running are the places of the numbers of running requests.
	running []int
	next    int
}

// newPage makes the page of an engine with a number of ranks.
func newPage(ranks int) (*page, error) {
	w := httptest.NewRecorder()
	engine := face.Engine{
		Model: "bench-model", Mode: "null", Ranks: ranks,
		Sample: func() (reporter.Sample, error) { return sampleOf(ranks), nil },
	}
	face.VLLM(engine).ServeHTTP(w, httptest.NewRequest(http.MethodGet, metricsPath, nil))
	body := w.Body.Bytes()
	p := &page{answer: answer(200, w.Header().Get("Content-Type"), body), size: len(body)}
	head := len(p.answer) - len(body)
	for i := range ranks {
		series := fmt.Appendf(nil, "vllm:num_requests_running{engine=\"%d\",model_name=\"bench-model\"} %d.", i, runningBase)
		at := bytes.Index(body, series)
		if at < 0 {
			return nil, fmt.Errorf("the page has no running requests of rank %d", i)
		}
		p.running = append(p.running, head+at+len(series)-1-runningWidth)
	}
	return p, nil
}

// clone returns a page of another connection.
func (p *page) clone() *page {
	return &page{answer: bytes.Clone(p.answer), size: p.size, running: p.running}
}

// patched returns the next answer, with other values than the last. It is
// valid until the next call.
func (p *page) patched() []byte {
	p.next++
	running := strconv.Itoa(runningBase + p.next%maxPatched)
	for _, at := range p.running {
		copy(p.answer[at:], running)
	}
	return p.answer
}

// answer returns an HTTP answer.
func answer(status int, content string, body []byte) []byte {
	head := fmt.Appendf(nil, "HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", status, content, len(body))
	return append(head, body...)
}

// sampleOf is the load of a busy engine.
func sampleOf(ranks int) reporter.Sample {
	s := reporter.Sample{Started: time.UnixMilli(1_789_990_000_000), At: time.UnixMilli(1_790_000_000_000)}
	for i := range ranks {
		s.Ranks = append(s.Ranks, &pb.RankLoad{
			DpRank: int32(i), SnapshotTimeUnixMs: s.At.UnixMilli(), NumRunningReqs: runningBase, NumWaitingReqs: 3,
			NumWaitingUncachedTokens: 5120, NumUsedTokens: 210_000, NumTotalTokens: 215_120, MaxTotalNumTokens: 500_000,
			MaxRunningRequests: 256, TokenUsage: 0.42,
		})
		s.Counters = append(s.Counters, reporter.Counters{
			PromptTokens: 146_400_123, CachedTokens: 58_600_456, GeneratedTokens: 24_600_789, Finished: 100_003,
			PrefillBusy: time.Hour, DecodeBusy: 2 * time.Hour,
		})
	}
	return s
}
