package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"connectrpc.com/connect"
	"github.com/loadplane/loadplane/cmd/loadplane/table"
	"github.com/spf13/pflag"
)

// maxPicked bounds an answer with picks, bytes.
const maxPicked = 1 << 20

// PickFlags say what to ask a pick for. Register fills them; they are a plain
// value.
type PickFlags struct {
	model, role, policy, per string
	number, tokens           int
	noCredit                 bool
}

// Register adds the flags to fs. What they allow is checked by the plane.
func (f *PickFlags) Register(fs *pflag.FlagSet) {
	fs.StringVar(&f.model, "model", "", "name of the model; default: any")
	fs.StringVar(&f.role, "role", "", "plain, prefill or decode; default: plain, or the only role there is")
	fs.StringVar(&f.policy, "policy", "", "power-of-k, least-load, expected-wait or free-tokens; default: power-of-k")
	fs.StringVar(&f.per, "per", "", "rank or worker; default: rank")
	fs.IntVarP(&f.number, "number", "n", 1, "picks, distinct where possible, 1 to 64")
	fs.IntVar(&f.tokens, "prompt-tokens", 0, "length of the prompt; default: 1000 are assumed")
	fs.BoolVar(&f.noCredit, "no-credit", false, "only ask: the pick does not count as load of the worker")
}

func (f PickFlags) query() string {
	q := url.Values{"n": {strconv.Itoa(f.number)}}
	for key, v := range map[string]string{"model": f.model, "role": f.role, "policy": f.policy, "per": f.per} {
		if v != "" {
			q.Set(key, v)
		}
	}
	if f.tokens != 0 {
		q.Set("prompt_tokens", strconv.Itoa(f.tokens))
	}
	if f.noCredit {
		q.Set("credit", "0")
	}
	return q.Encode()
}

// picked is one pick as the plane tells it.
type picked struct {
	WorkerID string   `json:"worker_id"`
	DPRank   *int64   `json:"dp_rank"`
	Policy   string   `json:"policy"`
	Field    string   `json:"field"`
	Score    *float64 `json:"score"`
	Reason   string   `json:"reason"`
	Fallback bool     `json:"fallback"`
	Version  uint64   `json:"version"`
	AgeMs    *uint64  `json:"age_ms"`
}

// Pick asks where the next request should go and writes the answer, in one of
// the formats table and json.
func (c *Client) Pick(ctx context.Context, w io.Writer, format string, f PickFlags) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	body, err := c.get(ctx, "/v1/pick?"+f.query())
	if err != nil {
		return c.explain(err)
	}
	if format == "json" {
		var out bytes.Buffer
		if err := json.Indent(&out, body, "", "  "); err != nil {
			return fmt.Errorf("%s: the answer is no JSON: %w", c.flags.server, err)
		}
		_, err := w.Write(out.Bytes())
		return err
	}
	picks, err := readPicks(body)
	if err != nil {
		return fmt.Errorf("%s: the answer is no pick: %w", c.flags.server, err)
	}
	return writePicks(w, picks)
}

// readPicks reads one pick, or the list of several.
func readPicks(body []byte) ([]picked, error) {
	var answer struct {
		picked
		Picks []picked `json:"picks"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	if len(answer.Picks) > 0 {
		return answer.Picks, nil
	}
	if answer.WorkerID == "" {
		return nil, errors.New("it names no worker")
	}
	return []picked{answer.picked}, nil
}

// writePicks writes at least one pick for people.
func writePicks(w io.Writer, picks []picked) error {
	head := fmt.Sprintf("version %d, policy %s", picks[0].Version, table.Printable(picks[0].Policy, 24))
	if picks[0].Fallback {
		head += ", local load decides: " + table.Printable(picks[0].Reason, 24)
	}
	if _, err := fmt.Fprintln(w, head); err != nil {
		return err
	}
	columns := []table.Column{table.Left("WORKER", 30), table.Right("RANK", 5), table.Left("FIELD", 23), table.Right("SCORE", 10), table.Right("AGE", 6)}
	rows := make([][]string, len(picks))
	for i, p := range picks {
		age := ""
		if p.AgeMs != nil {
			age = Age(*p.AgeMs)
		}
		rows[i] = []string{p.WorkerID, optional(p.DPRank, "%d"), p.Field, optional(p.Score, "%.4g"), age}
	}
	return table.Write(w, columns, rows)
}

// get returns the answer to a GET. An error has the code of its kind.
func (c *Client) get(ctx context.Context, target string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+target, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, coded(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxPicked+1))
	switch {
	case err != nil:
		return nil, coded(err)
	case len(body) > maxPicked:
		return nil, fmt.Errorf("the answer is above %d bytes", maxPicked)
	case res.StatusCode != http.StatusOK:
		return nil, refused(res.StatusCode, body)
	}
	return body, nil
}

func coded(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return connect.NewError(connect.CodeDeadlineExceeded, err)
	}
	return err
}

// refused returns what an answer other than 200 says. A request that the plane
// cannot read is a fault of the flags.
func refused(status int, body []byte) error {
	var told struct{ Reason, Message string }
	text := fmt.Errorf("status %d", status)
	if json.Unmarshal(body, &told) == nil && told.Reason != "" {
		text = fmt.Errorf("%s: %s", table.Printable(told.Reason, 64), table.Printable(told.Message, maxText))
	}
	switch status {
	case http.StatusBadRequest:
		return &UsageError{text}
	case http.StatusUnauthorized:
		return connect.NewError(connect.CodeUnauthenticated, text)
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return connect.NewError(connect.CodeUnimplemented, text)
	}
	return text
}
