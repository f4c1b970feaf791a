package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/loadplane/loadplane/sim/face/page"
	"github.com/loadplane/loadplane/sim/queue"
	"github.com/loadplane/loadplane/sim/reporter"
)

// word is the text of every token.
const word = "word "

// OpenAI returns the paths /v1/chat/completions and /v1/completions of an
// engine that serves a model. process returns the present life of the engine;
// the end of a life cuts its answers. Answers name the rank in RankHeader, and
// the host that was asked in EngineHeader.
func OpenAI(model string, process func() *reporter.Process) http.Handler {
	mux := http.NewServeMux()
	for path, object := range map[string]string{"/v1/chat/completions": "chat.completion", "/v1/completions": "text_completion"} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			b, work, err := read(w, r)
			if err != nil {
				refuse(w, http.StatusBadRequest, err)
				return
			}
			if b.Model != "" && b.Model != model {
				refuse(w, http.StatusNotFound, fmt.Errorf("the model %q does not exist", b.Model))
				return
			}
			a := &answer{w: w, host: r.Host, model: model, object: object, body: b, work: work, created: time.Now().Unix()}
			a.serve(r.Context(), process())
		})
	}
	return mux
}

// refuse answers with an error in OpenAI's shape.
func refuse(w http.ResponseWriter, code int, err error) {
	page.WriteJSON(w, code, page.Object{{"error", page.Object{
		{"message", err.Error()}, {"type", http.StatusText(code)}, {"param", nil}, {"code", code},
	}}})
}

// answer is one request that is served.
type answer struct {
	w                   http.ResponseWriter
	host, model, object string
	body                body
	work                queue.Work
	created             int64
	// tokens are those generated; begun says that there was one.
	tokens int64
	begun  bool
}

// serve answers once it has something to say: an engine that ends before cuts
// the connection.
func (a *answer) serve(ctx context.Context, p *reporter.Process) {
	err := p.Do(ctx, a.work, a.emit)
	switch {
	case err == nil && a.body.Stream:
		a.finishStream()
	case err == nil:
		page.WriteJSON(a.w, http.StatusOK, a.envelope(a.object, a.choice(), page.Field{"usage", a.usage()}))
	case errors.Is(err, queue.ErrFull):
		refuse(a.w, http.StatusServiceUnavailable, err)
	case errors.Is(err, queue.ErrNoRank), errors.Is(err, queue.ErrTooLong):
		refuse(a.w, http.StatusBadRequest, err)
	default:
		panic(http.ErrAbortHandler)
	}
}

// emit sends the tokens that are new where they are streamed.
func (a *answer) emit(rank int, tokens int64) error {
	more := tokens - a.tokens
	a.tokens = tokens
	if !a.begun {
		a.begun = true
		a.w.Header().Set(RankHeader, strconv.Itoa(rank))
		a.w.Header().Set(EngineHeader, a.host)
	}
	if !a.body.Stream {
		return nil
	}
	a.w.Header().Set("Content-Type", "text/event-stream")
	return a.event(a.chunk(strings.Repeat(word, int(more)), nil))
}

func (a *answer) finishStream() {
	err := a.event(a.chunk("", "length"))
	if err == nil && a.body.StreamOptions.IncludeUsage {
		err = a.event(a.envelope(a.streamed(), []page.Object{}, page.Field{"usage", a.usage()}))
	}
	if err == nil {
		_, _ = a.w.Write([]byte("data: [DONE]\n\n")) // The caller may be gone.
	}
}

// event sends one server-sent event.
func (a *answer) event(o page.Object) error {
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(a.w, "data: %s\n\n", data); err != nil {
		return err
	}
	return http.NewResponseController(a.w).Flush()
}

// streamed is the object's name in a stream.
func (a *answer) streamed() string {
	if a.chat() {
		return a.object + ".chunk"
	}
	return a.object
}

func (a *answer) chat() bool { return a.object == "chat.completion" }

func (a *answer) chunk(text string, finish any) page.Object {
	choice := page.Object{{"index", 0}, {"text", text}, {"finish_reason", finish}}
	if a.chat() {
		choice[1] = page.Field{"delta", page.Object{{"role", "assistant"}, {"content", text}}}
	}
	return a.envelope(a.streamed(), []page.Object{choice})
}

// choice is the whole of what was generated.
func (a *answer) choice() []page.Object {
	text := strings.Repeat(word, int(a.tokens))
	choice := page.Object{{"index", 0}, {"text", text}, {"finish_reason", "length"}}
	if a.chat() {
		choice[1] = page.Field{"message", page.Object{{"role", "assistant"}, {"content", text}}}
	}
	return []page.Object{choice}
}

func (a *answer) envelope(object string, choices []page.Object, more ...page.Field) page.Object {
	return append(page.Object{
		{"id", "sim"}, {"object", object}, {"created", a.created}, {"model", a.model}, {"choices", choices},
	}, more...)
}

func (a *answer) usage() page.Object {
	prompt, output := a.work.PromptTokens, a.tokens
	return page.Object{{"prompt_tokens", prompt}, {"completion_tokens", output}, {"total_tokens", prompt + output}}
}
