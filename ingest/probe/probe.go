package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/loadplane/loadplane/ingest/poll"
	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/ingest/poll/survey"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/registry/egress"
	"github.com/loadplane/loadplane/store"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// maxDocumentBytes bounds a document about an engine. SGLang's can be long.
const maxDocumentBytes = 1 << 20

// Paths of the questions.
const (
	serverInfoPath    = "/server_info"
	oldServerInfoPath = "/get_server_info"
	modelsPath        = "/v1/models"
	versionPath       = "/version"
	infoPath          = "/info"
	propsPath         = "/props"
	pushPath          = "/v1/start_reporting"
)

// Options configure a Prober.
type Options struct {
	// Clock is the store's clock. Required.
	Clock *store.Clock
	// Timeout bounds each request; 0 for poll.DefaultTimeout.
	Timeout time.Duration
	// Dial connects to engines; nil for egress.DefaultDial.
	Dial egress.Dial
	// Registerer takes the metrics; nil registers none.
	Registerer prometheus.Registerer
	// Logger is nil for the default one.
	Logger *slog.Logger
}

// Prober asks engines. It implements registry.Prober and is safe for
// concurrent use.
type Prober struct {
	opts    Options
	metrics *metrics
	// panicked bounds the lines about panics.
	panicked rate.Sometimes
}

// New checks the options. It starts nothing.
func New(opts Options) (*Prober, error) {
	switch {
	case opts.Clock == nil:
		return nil, errors.New("probe: Clock is missing")
	case opts.Timeout < 0:
		return nil, fmt.Errorf("probe: Timeout %s is negative", opts.Timeout)
	}
	if opts.Timeout == 0 {
		opts.Timeout = poll.DefaultTimeout
	}
	if opts.Dial == nil {
		opts.Dial = egress.DefaultDial
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	return &Prober{opts: opts, metrics: m, panicked: rate.Sometimes{Interval: time.Minute}}, nil
}

// Facts asks what the engine is. The finding has no offers.
func (p *Prober) Facts(ctx context.Context, t registry.Target) registry.Finding {
	s := p.open(t)
	defer s.client.Close()
	s.safely(func() { s.learn(ctx) })
	return registry.Finding{Facts: s.facts, Complete: !s.open, Behind: t.Behind}
}

// Probe asks what the engine is and which dialects it offers, in the order of
// preference: monitor, push, loadstat, poll. Beside a dialect in use, only those
// preferred to it are asked about, and no facts but those that say which are
// offered.
func (p *Prober) Probe(ctx context.Context, t registry.Target) registry.Finding {
	s := p.open(t)
	defer s.client.Close()
	s.safely(func() { s.probe(ctx) })
	f := registry.Finding{Facts: s.facts, Complete: !s.open, Offers: s.offers, Behind: t.Behind}
	if s.survey != nil {
		f.Behind = s.survey.Behind
	}
	return f
}

// safely asks questions. A panic leaves open what was not answered by then.
func (s *session) safely(ask func()) {
	defer func() {
		if v := recover(); v != nil {
			s.open = true
			s.prober.crashed(&s.target, survey.NewPanic(v))
		}
	}()
	ask()
}

// crashed tells of a panic of what reads answers.
func (p *Prober) crashed(t *registry.Target, why *survey.Panic) {
	p.metrics.panics.Inc()
	p.panicked.Do(func() {
		p.opts.Logger.Error("probe reader panicked", slog.String("worker", t.ID),
			slog.String("panic", why.Value), slog.String("stack", why.Stack))
	})
}

// session is a round of questions to one engine. It is for one goroutine.
type session struct {
	prober *Prober
	client *egress.Client
	target registry.Target

	asked  []Asked
	facts  registry.Facts
	offers []registry.Offer
	survey *survey.Finding
	// info is the last question for /server_info, and informed says that the
	// answer was an SGLang's.
	info     Asked
	informed bool
	// reporter is the port that takes connections for monitor; 0 for none.
	reporter int
	// open says that a question about the facts had no definite answer.
	open bool
	// busy says that a question about the facts timed out.
	busy bool
	// away is why the engine cannot be reached at all; empty while it can.
	away Asked
}

func (p *Prober) open(t registry.Target) *session {
	return &session{
		prober: p, target: t,
		client: egress.New(egress.Options{Dial: p.opts.Dial, TokenFile: t.TokenFile, CAFile: t.CAFile}),
	}
}

// get asks for a document. The body is nil unless the status is 200.
func (s *session) get(ctx context.Context, path string) (Asked, []byte) {
	if s.away.Reason != "" {
		return s.away, nil
	}
	leave, err := s.target.Line.Join(ctx)
	if err != nil {
		s.away = Asked{Path: path, Reason: registry.ReasonConnectFailed, Detail: err.Error()}
		s.asked = append(s.asked, s.away)
		return s.away, nil
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	began := time.Now()
	answer, err := s.client.Get(ctx, egress.Request{URL: s.target.URL + path, MaxBytes: maxDocumentBytes})
	a := Asked{Path: path, Took: time.Since(began)}
	var body []byte
	if answer != nil {
		a.Status, a.Bytes, body = answer.Status, len(answer.Body), answer.Body
	}
	if a.Reason, err = survey.Judge(answer, err); err != nil {
		a.Detail, body = err.Error(), nil
	}
	s.asked = append(s.asked, a)
	if survey.Unreached(a.Reason) {
		s.away = a
	}
	return a, body
}

// timeout bounds a request.
func (s *session) timeout() time.Duration {
	if p := s.target.Patience; p > 0 {
		return min(p, s.prober.opts.Timeout)
	}
	return s.prober.opts.Timeout
}

// document is a page about an engine and the way to read it.
type document struct {
	path  string
	parse func([]byte) (registry.Facts, bool)
}

// read asks for a document and reads it. ok says that it is one; a question
// without a definite answer leaves the facts open. Where one timed out, no
// further one is asked: some engines are long busy with themselves.
func (s *session) read(ctx context.Context, d document) (f registry.Facts, ok bool) {
	if s.busy {
		return f, false
	}
	a, body := s.get(ctx, d.path)
	s.busy = a.Reason == survey.ReasonTimeout
	if body == nil {
		// A credential can be set later.
		if survey.Passing(a.Reason) || a.Reason == registry.ReasonAuth {
			s.open = true
		}
		return f, false
	}
	s.safely(func() { f, ok = d.parse(body) })
	return f, ok
}

// inform asks an SGLang what it is; false where the engine is none, or did not
// say.
func (s *session) inform(ctx context.Context) bool {
	f, found := s.read(ctx, document{serverInfoPath, parseServerInfo})
	if s.info = s.last(); !found && survey.Absent(s.info.Status) {
		f, found = s.read(ctx, document{oldServerInfoPath, parseServerInfo})
		if !survey.Absent(s.last().Status) {
			s.info = s.last()
		}
	}
	if s.informed = found; found {
		s.facts = f
	}
	return found
}

// learn asks what the engine is.
func (s *session) learn(ctx context.Context) {
	if s.inform(ctx) {
		return
	}
	s.facts, _ = s.read(ctx, document{modelsPath, parseModels})
	for _, d := range s.details() {
		if f, ok := s.read(ctx, d); ok {
			s.merge(f)
			return
		}
	}
}

// last returns the last question.
func (s *session) last() Asked { return s.asked[len(s.asked)-1] }

// details are the documents that may say more of an engine, by what is known.
func (s *session) details() []document {
	tgi, llama, other := document{infoPath, parseInfo}, document{propsPath, parseProps}, document{versionPath, parseVersion}
	switch s.facts.Family {
	case "":
		return []document{tgi, llama, other}
	case string(sample.LlamaCPP):
		return []document{llama}
	}
	return []document{other}
}

// merge adds what another document says. What served models are called by
// /v1/models is what requests name.
func (s *session) merge(f registry.Facts) {
	if len(s.facts.Models) > 0 {
		f.Models = s.facts.Models
	}
	if f.Family == "" {
		f.Family = s.facts.Family
	}
	s.facts = f
}
