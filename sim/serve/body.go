package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/loadplane/loadplane/sim/queue"
)

const (
	// maxBody bounds a request, bytes.
	maxBody = 4 << 20
	// defaultTokens are generated where the request names no number.
	defaultTokens = 16
	// bytesPerToken is about what tokenizers of English have.
	bytesPerToken = 4
)

// Headers of requests and answers.
const (
	// RankHeader names the DP rank that a request is for, and in an answer the
	// one that served it.
	RankHeader = "X-Data-Parallel-Rank"
	// EngineHeader in an answer names the engine as it was asked, host:port. No
	// real engine has it.
	EngineHeader = "X-Simulated-Engine"
)

// body is what counts of a request.
type body struct {
	Model    string
	Stream   bool
	Prompt   json.RawMessage
	Messages []struct {
		Content json.RawMessage
	}
	MaxTokens           *int64 `json:"max_tokens"`
	MaxCompletionTokens *int64 `json:"max_completion_tokens"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// read takes a request apart. The text of the error is for the caller.
func read(w http.ResponseWriter, r *http.Request) (b body, work queue.Work, err error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return b, work, fmt.Errorf("body: not readable within %d bytes", maxBody)
	}
	if err := json.Unmarshal(raw, &b); err != nil {
		return b, work, errors.New("body: not the JSON of a request")
	}
	work = queue.Work{Rank: queue.AnyRank, PromptTokens: b.prompt(), OutputTokens: b.output()}
	if work.OutputTokens < 1 {
		return b, work, errors.New("max_tokens: must be at least 1")
	}
	if text := r.Header.Get(RankHeader); text != "" {
		if work.Rank, err = strconv.Atoi(text); err != nil || work.Rank < 0 {
			return b, work, errors.New(RankHeader + ": not a rank")
		}
	}
	return b, work, nil
}

// prompt estimates the tokens of all text, at least 1.
func (b *body) prompt() int64 {
	n := len(b.Prompt)
	for _, m := range b.Messages {
		n += len(m.Content)
	}
	return max(1, int64(n/bytesPerToken))
}

func (b *body) output() int64 {
	for _, n := range []*int64{b.MaxCompletionTokens, b.MaxTokens} {
		if n != nil {
			return *n
		}
	}
	return defaultTokens
}
