package picks

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"

	apiquery "github.com/loadplane/loadplane/api/query"
	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/store/snapshot"
)

// answer is one pick as JSON. What is not known is null.
type answer struct {
	WorkerID string `json:"worker_id"`
	URL      string `json:"url"`
	// DPRank is nil where the worker was picked as a whole.
	DPRank *int32 `json:"dp_rank"`
	Policy string `json:"policy"`
	// Field is what was compared, Score its value before this pick.
	Field string   `json:"field"`
	Score *float64 `json:"score"`
	// Reason says why local load decided, where Fallback says that it did.
	Reason   *pick.Reason `json:"reason"`
	Fallback bool         `json:"fallback"`
	Lineage  string       `json:"lineage"`
	Epoch    uint64       `json:"epoch"`
	Version  uint64       `json:"version"`
	// AgeMs is the age of the worker's report.
	AgeMs *int64 `json:"age_ms"`
}

// several are the picks of a request for more than one.
type several struct {
	Picks []answer `json:"picks"`
}

func (p *Picks) answer(s *shot, c pick.Choice) answer {
	a := answer{
		WorkerID: c.WorkerID, URL: c.URL, Policy: c.Policy.String(), Field: c.Field.String(), Fallback: c.Fallback,
		Lineage: s.view.Lineage, Epoch: s.view.Epoch, Version: s.view.Version,
	}
	if c.Rank != pick.NoRank {
		a.DPRank = &c.Rank
	}
	if v := c.Score; !math.IsInf(v, 0) && !math.IsNaN(v) { // as with next to no throughput
		a.Score = &c.Score
	}
	if c.Reason != "" {
		a.Reason = &c.Reason
	}
	if r := receiptOf(s.view, c.WorkerID); r != nil {
		age := max(0, p.clock.Now().Sub(r.Received).Milliseconds())
		a.AgeMs = &age
	}
	return a
}

// receiptOf returns the receipt of a worker; nil where it was never heard.
func receiptOf(v *snapshot.View, id string) *snapshot.Receipt {
	i, ok := slices.BinarySearchFunc(v.Workers, id, func(w *snapshot.Worker, id string) int { return cmp.Compare(w.Worker.ID, id) })
	if !ok {
		return nil
	}
	return v.Receipts[i]
}

// wireError is why there is no pick, in the form of all errors of the API.
type wireError struct {
	Code    string `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// refuse answers why there is no pick.
func (p *Picks) refuse(w http.ResponseWriter, err error) {
	var none *pick.Error
	status, e := http.StatusBadRequest, wireError{"invalid_argument", string(p.opts.BadParameter), err.Error()}
	switch {
	case errors.Is(err, apiquery.ErrUnknown):
		e.Reason = string(p.opts.UnknownParameter)
	case errors.As(err, &none):
		status, e.Code, e.Reason = http.StatusServiceUnavailable, "unavailable", string(none.Reason)
		w.Header().Set("Retry-After", "1")
	}
	p.metrics.count(e.Reason)
	write(w, status, e)
}

func write(w http.ResponseWriter, status int, v any) {
	// Strings and finite numbers can always be encoded.
	body, _ := json.Marshal(v)
	body = append(body, '\n')
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
