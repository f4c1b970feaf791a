package retry

import (
	"encoding/binary"
	"time"
)

// Delay reads the field retry_delay = 1 of an encoded
// google.rpc.RetryInfo: a google.protobuf.Duration with seconds = 1 and
// nanos = 2. The result is within 0 and LongestWait; ok is false where there is
// no delay to be read.
func Delay(b []byte) (wait time.Duration, ok bool) {
	for len(b) > 0 {
		var f field
		if f, b, ok = nextField(b); !ok {
			return 0, false
		}
		if f.number == 1 && f.bytes != nil {
			return durationOf(f.bytes)
		}
	}
	return 0, false
}

func durationOf(b []byte) (d time.Duration, ok bool) {
	var seconds, nanos int64
	for len(b) > 0 {
		var f field
		if f, b, ok = nextField(b); !ok {
			return 0, false
		}
		switch {
		case f.bytes != nil:
		case f.number == 1:
			seconds = int64(f.varint)
		case f.number == 2:
			nanos = int64(f.varint)
		}
	}
	seconds = min(max(seconds, 0), int64(LongestWait/time.Second))
	nanos = min(max(nanos, 0), int64(time.Second)-1)
	return min(time.Duration(seconds)*time.Second+time.Duration(nanos), LongestWait), true
}

// field is one of an encoded message: a number, or bytes where they are not
// nil.
type field struct {
	number uint64
	varint uint64
	bytes  []byte
}

// nextField reads a field of the wire types varint (0) and length-delimited
// (2); ok is false for another type or a cut message.
func nextField(b []byte) (f field, rest []byte, ok bool) {
	key, n := binary.Uvarint(b)
	if n <= 0 {
		return f, nil, false
	}
	v, m := binary.Uvarint(b[n:])
	if m <= 0 {
		return f, nil, false
	}
	b = b[n+m:]
	f.number, f.varint = key>>3, v
	switch key & 7 {
	case 0:
		return f, b, true
	case 2:
		if v > uint64(len(b)) {
			return f, nil, false
		}
		f.bytes = b[:v:v]
		return f, b[v:], true
	}
	return f, nil, false
}
