package picks

import (
	"net/url"
	"strconv"

	apiquery "github.com/loadplane/loadplane/api/query"
	"github.com/loadplane/loadplane/client/pick"
)

const (
	// maxPicks bounds the picks of one request.
	maxPicks = 64
	// maxTokens bounds the prompt tokens of one request.
	maxTokens = 1 << 30
	// maxModel bounds the name of a model, as discovery does, bytes.
	maxModel = 256
)

// query is what a request asks for.
type query struct {
	// model is empty for any.
	model string
	// role is RoleAny where the pool decides.
	role pick.Role
	way
	number int
	credit bool
	// tokens is 0 where they are not told.
	tokens int64
}

func badValue(format string, args ...any) error {
	return apiquery.Errorf(apiquery.ErrValue, format, args...)
}

// parse reads the query of a URL. Picks are per DP rank unless it says
// otherwise: a rank is what has a queue of its own, so that workers of
// different sizes compare, and the answer names it.
func parse(raw string) (query, error) {
	q := query{way: way{pick.PowerOfK, true}, number: 1, credit: true}
	all, err := url.ParseQuery(raw)
	if err != nil {
		return q, badValue("the query cannot be parsed")
	}
	for key, values := range all {
		if len(values) != 1 {
			return q, badValue("%s can be there once only", apiquery.Echo(key))
		}
		if err := q.set(key, values[0]); err != nil {
			return q, err
		}
	}
	return q, nil
}

func (q *query) set(key, v string) (err error) {
	switch key {
	case "model":
		q.model, err = model(v)
	case "role":
		q.role, err = word(key, v, map[string]pick.Role{"plain": pick.RolePlain, "prefill": pick.RolePrefill, "decode": pick.RoleDecode})
	case "policy":
		if q.policy, err = pick.ParsePolicy(v); err != nil {
			err = badValue("policy %q does not exist", apiquery.Echo(v))
		}
	case "per":
		q.perRank, err = word(key, v, map[string]bool{"worker": false, "rank": true})
	case "n":
		var n int64
		n, err = number(key, v, maxPicks)
		q.number = int(n)
	case "credit":
		q.credit, err = word(key, v, map[string]bool{"0": false, "1": true})
	case "prompt_tokens":
		q.tokens, err = number(key, v, maxTokens)
	default:
		err = apiquery.Unknown(key)
	}
	return err
}

func model(v string) (string, error) {
	if v == "" || len(v) > maxModel {
		return "", badValue("model has %d bytes, 1 to %d are allowed", len(v), maxModel)
	}
	return v, nil
}

func word[T any](key, v string, words map[string]T) (T, error) {
	t, ok := words[v]
	if !ok {
		return t, badValue("%s %q does not exist", key, apiquery.Echo(v))
	}
	return t, nil
}

func number(key, v string, most int64) (int64, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 1 || n > most {
		return 0, badValue("%s must be 1 to %d, and is %q", key, most, apiquery.Echo(v))
	}
	return n, nil
}
