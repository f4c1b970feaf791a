package page

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
)

// Field is a key of a JSON object, which is a string, and its value. It is a
// plain value.
type Field [2]any

// Key returns the key.
func (f Field) Key() string {
	key, _ := f[0].(string)
	return key
}

// Object is a JSON object that keeps the order of its keys, as Python does. It
// is a plain value.
type Object []Field

// MarshalJSON writes the keys in order.
func (o Object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(f.Key())
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(f[1])
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Number is a float that is never written without a fraction, and as null
// where JSON has no form for it. It is a plain value.
type Number float64

// MarshalJSON writes the number.
func (n Number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return []byte(Decimal(float64(n))), nil
}

// Decimal is the shortest text of a float with a fraction.
func Decimal(v float64) string {
	text := strconv.FormatFloat(v, 'f', -1, 64)
	if v == math.Trunc(v) && !math.IsInf(v, 0) {
		text += ".0"
	}
	return text
}

// Plain writes integers without and numbers with a fraction, not-a-number as nan,
// and 0 for anything else.
func Plain(v any) string {
	switch n := v.(type) {
	case Number:
		if math.IsNaN(float64(n)) {
			return "nan"
		}
		return Decimal(float64(n))
	case int64:
		return strconv.FormatInt(n, 10)
	case int:
		return strconv.Itoa(n)
	}
	return "0"
}

// WriteJSON answers with a body that can be encoded.
func WriteJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the caller has left
}
