package jsonview

import (
	"encoding/json"
	"iter"
	"math"
	"slices"
	"strconv"
	"time"
)

// timeFormat is RFC 3339 in UTC with milliseconds.
const timeFormat = "2006-01-02T15:04:05.000Z"

func appendArray(b []byte, n int, element func(b []byte, i int) []byte) []byte {
	b = append(b, '[')
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = element(b, i)
	}
	return append(b, ']')
}

func appendEach[T any](b []byte, all iter.Seq[T], element func(b []byte, v T) []byte) []byte {
	b = append(b, '[')
	first := true
	for v := range all {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = element(b, v)
	}
	return append(b, ']')
}

// appendKey appends a key that is not the first of its object and needs no
// escapes.
func appendKey(b []byte, key string) []byte {
	return append(append(append(b, ',', '"'), key...), '"', ':')
}

// appendString appends s as a JSON string; invalid UTF-8 is replaced.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			// A string can always be encoded.
			quoted, _ := json.Marshal(s)
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// appendKnown appends s, or null where it is empty and so unknown.
func appendKnown(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendString(b, s)
}

func appendStrings(b []byte, all []string) []byte {
	return appendArray(b, len(all), func(b []byte, i int) []byte { return appendString(b, all[i]) })
}

func appendLabels(b []byte, labels map[string]string) []byte {
	keys := make([]string, 0, len(labels))
	for k := range labels {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(appendString(b, k), ':'), labels[k])
	}
	return append(b, '}')
}

// appendFrom0 appends v, or null where it is negative and so unknown.
func appendFrom0(b []byte, v int64) []byte {
	if v < 0 {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, v, 10)
}

func appendRank(b []byte, rank int32, known bool) []byte {
	if !known {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, int64(rank), 10)
}

func appendCount[K any](b []byte, count func(K) (int64, bool), key K) []byte {
	v, ok := count(key)
	if !ok {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, v, 10)
}

// appendFloat appends v so that it reads as a float everywhere: with a point
// or an exponent. What JSON cannot hold is null.
func appendFloat(b []byte, v float64, known bool) []byte {
	if !known || math.IsNaN(v) || math.IsInf(v, 0) {
		return append(b, "null"...)
	}
	if v == math.Trunc(v) && math.Abs(v) < 1e15 {
		return strconv.AppendFloat(b, v, 'f', 1, 64)
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64)
}

func appendTime(b []byte, t time.Time) []byte {
	return append(t.UTC().AppendFormat(append(b, '"'), timeFormat), '"')
}
