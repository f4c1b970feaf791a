package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/loadplane/loadplane/ingest/poll"
	"github.com/loadplane/loadplane/ingest/poll/survey"
	"github.com/loadplane/loadplane/registry/egress"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// atOnce bounds the polls that a bare poller has open, so that one that is
// saturated does not time out.
const atOnce = 16

// openPolls opens a poller of all engines that does with a page what its kind
// says. Each engine has a goroutine and a kept connection, as in the plane.
func openPolls(p *Process, spec Spec) {
	var reports atomic.Uint64
	p.count = reports.Load
	turns := make(chan struct{}, atOnce)
	for _, url := range spec.URLs {
		read, closing := newReader(spec.Kind, url+"/metrics")
		each := func(ctx context.Context) {
			turns <- struct{}{}
			err := read(ctx)
			<-turns
			if err == nil {
				reports.Add(1)
			} else if ctx.Err() == nil {
				text := err.Error()
				p.failure.CompareAndSwap(nil, &text)
				p.failed.Add(1)
			}
		}
		p.start(func(ctx context.Context) error {
			defer closing()
			repeat(ctx, spec.Interval, each)
			return nil
		})
	}
}

// repeat calls fn at an interval, or again at once where that is 0, until ctx
// ends.
func repeat(ctx context.Context, interval time.Duration, fn func(context.Context)) {
	due := time.Now().Add(rand.N(max(interval, 1)))
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		fn(ctx)
		due = due.Add(interval)
		timer.Reset(time.Until(due))
	}
}

// newReader returns what reads a page once, and what ends its connection.
func newReader(kind Kind, url string) (read func(context.Context) error, closing func()) {
	if kind == Transfer {
		c := egress.New(egress.Options{})
		t := &transfer{client: c, url: url}
		return t.read, c.Close
	}
	transport := &http.Transport{DisableCompression: true}
	e := &parsed{client: &http.Client{Transport: transport, Timeout: poll.DefaultTimeout}, url: url}
	return e.read, transport.CloseIdleConnections
}

// transfer gets a page as the plane does and drops it. It is for one
// goroutine.
type transfer struct {
	client *egress.Client
	url    string
	buffer []byte
}

func (t *transfer) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, poll.DefaultTimeout)
	defer cancel()
	a, err := t.client.Get(ctx, egress.Request{URL: t.url, MaxBytes: survey.MaxPageBytes, Buffer: t.buffer})
	if err != nil {
		return err
	}
	t.buffer = a.Body
	return statusError(a.Status)
}

func statusError(status int) error {
	if status != http.StatusOK {
		return fmt.Errorf("status %d", status)
	}
	return nil
}

// parsed gets a page by net/http, has prometheus/common parse it, and reads
// the values of load, as one would write it first. It is for one goroutine.
type parsed struct {
	client *http.Client
	url    string
	body   bytes.Buffer
	// load is what the last page said, by rank and metric.
	load map[rankMetric]float64
}

type rankMetric struct{ rank, metric string }

// wanted are the metrics of load.
var wanted = []string{
	"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries_total",
	"vllm:prefix_cache_hits_total", "vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total", "vllm:generation_tokens_total",
}

func (e *parsed) read(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url, nil)
	if err != nil {
		return err
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	e.body.Reset()
	_, err = io.Copy(&e.body, resp.Body)
	if err := errors.Join(err, resp.Body.Close(), statusError(resp.StatusCode)); err != nil {
		return err
	}
	return e.parse(&e.body)
}

func (e *parsed) parse(page io.Reader) error {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(page)
	if err != nil {
		return err
	}
	e.load = make(map[rankMetric]float64, len(e.load))
	for _, name := range wanted {
		for _, m := range families[name].GetMetric() {
			e.load[rankMetric{rankOf(m), strings.TrimPrefix(name, "vllm:")}] = valueOf(m)
		}
	}
	if len(e.load) == 0 {
		return errors.New("no metric of load")
	}
	return nil
}

func rankOf(m *dto.Metric) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == "engine" {
			return l.GetValue()
		}
	}
	return ""
}

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	}
	return m.GetUntyped().GetValue()
}
