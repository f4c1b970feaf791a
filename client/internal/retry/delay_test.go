package retry

import (
	"math"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// FuzzDelay reads what may be a RetryInfo. Where the message is one, the
// delay is that of the generated code, within bounds.
func FuzzDelay(f *testing.F) {
	for _, d := range []*durationpb.Duration{
		nil, {}, {Seconds: 1}, {Nanos: 5}, {Seconds: 7, Nanos: 500_000_000}, {Seconds: -1, Nanos: -1},
		{Seconds: math.MaxInt64, Nanos: math.MaxInt32}, {Seconds: 59, Nanos: 999_999_999}, {Seconds: 60, Nanos: 1},
	} {
		b, err := proto.Marshal(&errdetails.RetryInfo{RetryDelay: d})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0x0a})
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add([]byte{0x10, 0x01, 0x0a, 0x02, 0x08, 0x03})
	f.Add([]byte{0x0a, 0x02, 0x0a, 0x00})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := Delay(b)
		if got < 0 || got > LongestWait || !ok && got != 0 {
			t.Fatalf("%x is %v, %t", b, got, ok)
		}
		var m errdetails.RetryInfo
		if !plain(b) || proto.Unmarshal(b, &m) != nil || m.RetryDelay == nil {
			return
		}
		seconds, nanos := m.GetRetryDelay().GetSeconds(), m.GetRetryDelay().GetNanos()
		if nanos < 0 || nanos > 999_999_999 {
			return // no valid Duration
		}
		want := min(time.Duration(min(max(seconds, 0), 60))*time.Second+time.Duration(nanos), LongestWait)
		if !ok || got != want {
			t.Fatalf("%x is %v, %t, want %v", b, got, ok, want)
		}
	})
}

// plain says that a message and its one field 1 have the wire types varint and
// bytes only, and that the fields of a Duration are varints of their range.
func plain(b []byte) bool {
	ones := 0
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 || kind != protowire.VarintType && kind != protowire.BytesType || number == 1 && kind != protowire.BytesType {
			return false
		}
		b = b[n:]
		if kind == protowire.VarintType {
			_, n = protowire.ConsumeVarint(b)
		} else {
			var inner []byte
			inner, n = protowire.ConsumeBytes(b)
			if number == 1 {
				if ones++; ones > 1 || !plainDuration(inner) {
					return false
				}
			}
		}
		if n < 0 {
			return false
		}
		b = b[n:]
	}
	return true
}

func plainDuration(b []byte) bool {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 || kind != protowire.VarintType {
			return false
		}
		v, m := protowire.ConsumeVarint(b[n:])
		if m < 0 || number == 2 && v > math.MaxInt32 {
			return false
		}
		b = b[n+m:]
	}
	return true
}
