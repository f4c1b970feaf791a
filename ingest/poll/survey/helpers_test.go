package survey

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine answers in memory: the paths of a map, others with 404. A body may be
// "status N", "raw ..." for all bytes of an answer, or "late" for none ever.
type engine struct {
	bodies map[string]string
	// black lets connections wait for ever.
	black bool
	asked []string
}

func (e *engine) survey() *Survey {
	client := egress.New(egress.Options{Dial: e.dial})
	target := registry.Target{URL: "http://10.0.0.1:30000"}
	return &Survey{Client: client, Clock: store.NewClock(), Target: target, Timeout: time.Second}
}

func (e *engine) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if e.black {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	near, far := net.Pipe()
	go e.serve(far)
	return near, nil
}

func (e *engine) serve(c net.Conn) {
	defer c.Close()
	requests := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(requests)
		if err != nil {
			return
		}
		e.asked = append(e.asked, req.URL.RequestURI())
		body, ok := e.bodies[req.URL.Path]
		raw, whole := strings.CutPrefix(body, "raw ")
		if body == "late" || whole {
			go func() { _, _ = io.WriteString(c, raw) }()
			_, _ = io.Copy(io.Discard, requests)
			return
		}
		status := http.StatusOK
		if !ok {
			status = http.StatusNotFound
		}
		if _, err := fmt.Sscanf(body, "status %d", &status); err == nil {
			body = ""
		}
		if _, err := fmt.Fprintf(c, "HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body); err != nil {
			return
		}
	}
}

// forget returns what was asked for since it was last called.
func (e *engine) forget() []string {
	asked := e.asked
	e.asked = nil
	return asked
}

// late are pages that never come.
func late(paths ...string) map[string]string {
	bodies := map[string]string{}
	for _, p := range paths {
		bodies[p] = "late"
	}
	return bodies
}

// with adds a page to others.
func with(bodies map[string]string, path, body string) map[string]string {
	bodies[path] = body
	return bodies
}

// vllm is a page of vLLM, with so many requests running on each rank.
func vllm(running ...int) string {
	var b strings.Builder
	for i, n := range running {
		fmt.Fprintf(&b, "vllm:num_requests_running{engine=\"%d\",model_name=\"m\"} %d\n", i, n)
		fmt.Fprintf(&b, "vllm:num_requests_waiting{engine=\"%d\",model_name=\"m\"} 1\n", i)
	}
	return b.String()
}

// loads is SGLang's /v1/loads of ranks with so many requests running.
func loads(running ...int) string {
	var ranks []string
	for i, n := range running {
		ranks = append(ranks, fmt.Sprintf(`{"dp_rank":%d,"num_running_reqs":%d,"num_waiting_reqs":0}`, i, n))
	}
	return `{"timestamp":"2026-08-01T00:00:00Z","version":"0.5.19","loads":[` + strings.Join(ranks, ",") + `]}`
}

const (
	trtllm = "trtllm_num_requests_running 3\ntrtllm_num_requests_waiting 1\n"
	// iterations is TensorRT-LLM's JSON page.
	iterations = `[{"iter":7,"numActiveRequests":5,"numQueuedRequests":0,"maxNumActiveRequests":8,` +
		`"kvCacheStats":{"maxNumBlocks":10,"usedNumBlocks":1,"freeNumBlocks":9,"tokensPerBlock":64}}]`
	sglang  = "sglang:num_running_reqs{model_name=\"m\"} 4\nsglang:num_queue_reqs{model_name=\"m\"} 0\n"
	llama   = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 0\n"
	tgi     = "tgi_batch_current_size 3\ntgi_queue_size 0\n"
	html    = "<!DOCTYPE html><html><body>Not Found</body></html>"
	getLoad = `[{"dp_rank":0,"num_reqs":1,"num_waiting_reqs":0}]`
)
