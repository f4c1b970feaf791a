package face

import (
	"net/http"
	"time"

	"github.com/loadplane/loadplane/sim/face/page"
	"github.com/loadplane/loadplane/sim/reporter"
)

// Versions that the engines name.
const (
	sglangMain     = "0.5.18"
	sglangReleased = "0.5.15"
	sglangLoadStat = "0.5.19"
	vllmVersion    = "0.26.0"
	tgiVersion     = "3.3.6"
	llamaBuild     = "b8681-sim"
	trtllmVersion  = "1.3.0"
)

// Engine is what the pages of one engine are made of. It is a plain value.
type Engine struct {
	// Model is the served model.
	Model string
	// Mode is "prefill", "decode" or "null", as SGLang names its
	// disaggregation.
	Mode string
	// Zone is empty for none.
	Zone string
	// Host and Port are where the engine listens.
	Host string
	Port int
	// Ranks is the number of DP ranks.
	Ranks int
	// Pushes says that it is an SGLang with the push load reporter, which knows
	// some load values that released ones do not.
	Pushes bool
	// ReporterPort is where a router dials the load reporter of an SGLang; 0
	// for none.
	ReporterPort int
	// LoadPort is where rank 0 of an SGLang publishes its load, the next ranks
	// follow; 0 for nowhere.
	LoadPort int
	// Sample returns the load now, with an error of package reporter where
	// there is none of now. Required.
	Sample func() (reporter.Sample, error)
}

// loaded returns a handler that needs the load of now: without it the answer
// is an internal error, as after an exception in an engine.
func (e Engine) loaded(answer func(w http.ResponseWriter, s reporter.Sample)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		s, err := e.Sample()
		if err != nil {
			http.Error(w, "Internal Server Error", http.StatusInternalServerError)
			return
		}
		answer(w, s)
	}
}

// metrics returns a handler of a page in the Prometheus text format.
func (e Engine) metrics(write func(p *page.Text, s reporter.Sample)) http.HandlerFunc {
	return e.loaded(func(w http.ResponseWriter, s reporter.Sample) {
		var p page.Text
		write(&p, s)
		p.Answer(w)
	})
}

// started returns when the process started.
func (e Engine) started() time.Time {
	s, _ := e.Sample()
	return s.Started
}

// answers returns a handler of a JSON body that is made for each request.
func answers(body func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { page.WriteJSON(w, http.StatusOK, body()) }
}

// healthy answers 200 without a body.
func healthy(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

// notFound answers in the words of the web framework of vLLM and TensorRT-LLM.
func notFound(w http.ResponseWriter, _ *http.Request) {
	page.WriteJSON(w, http.StatusNotFound, page.Object{{"detail", "Not Found"}})
}

// models is the body of /v1/models; more stands behind the common keys of the
// model.
func (e Engine) models(owner string, more ...page.Field) page.Object {
	model := page.Object{
		{"id", e.Model}, {"object", "model"}, {"created", e.started().Unix()}, {"owned_by", owner},
	}
	return page.Object{{"object", "list"}, {"data", []page.Object{append(model, more...)}}}
}

// per returns a mean, 0 without a count.
func per(sum float64, count int64) float64 {
	if count == 0 {
		return 0
	}
	return sum / float64(count)
}
