package message

import (
	"bytes"
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/store"
	"github.com/vmihailenco/msgpack/v5"
)

func sequence(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// array is the payload of a message.
func array(values ...any) []byte {
	b, err := msgpack.Marshal(append([]any{tag}, values...))
	if err != nil {
		panic(err)
	}
	return b
}

func frames(payload []byte) [][]byte { return [][]byte{[]byte("load"), sequence(3), payload} }

// known is a shown count, -1 for unknown.
func known(r *store.Rank, f store.Field) int64 {
	if v, ok := r.Count(f); ok {
		return v
	}
	return -1
}

func TestDecode(t *testing.T) {
	ten := []any{int64(1), int64(2), int64(30), int64(100), int64(7), int64(4), int64(45), int64(8), int64(900), int64(1000)}
	with := func(place int, v any) []any {
		values := slices.Clone(ten)
		values[place-1] = v
		return values
	}
	cases := []struct {
		name   string
		values []any
		// want are the elements 1 to 4 and 6 to 10, -1 for unknown.
		want     [9]int64
		usage    float64
		negative int
	}{
		{"five elements", ten[:4], [9]int64{1, 2, 30, 100, -1, -1, -1, -1, -1}, 0.3, 0},
		{"no rank", with(atRank, nil)[:5], [9]int64{1, 2, 30, 100, -1, -1, -1, -1, -1}, 0.3, 0},
		{"seven elements", ten[:6], [9]int64{1, 2, 30, 100, 4, -1, -1, -1, -1}, 0.3, 0},
		{"all elements", ten, [9]int64{1, 2, 30, 100, 4, 45, 8, 900, 1000}, 0.3, 0},
		{"more elements", append(slices.Clone(ten), "x", []any{1, map[string]any{"a": nil}}), [9]int64{1, 2, 30, 100, 4, 45, 8, 900, 1000}, 0.3, 0},
		{"bug 70: null load", []any{nil, nil, nil, nil, nil}, [9]int64{-1, -1, -1, -1, -1, -1, -1, -1, -1}, -1, 0},
		{"one null", with(atWaiting, nil), [9]int64{1, -1, 30, 100, 4, 45, 8, 900, 1000}, 0.3, 0},
		{"bug 38: negative", with(atRunning, int64(-1)), [9]int64{-1, 2, 30, 100, 4, 45, 8, 900, 1000}, 0.3, 1},
		{"capacity 0 is unknown", with(atCapacity, int64(0)), [9]int64{1, 2, 30, -1, 4, 45, 8, 900, 1000}, -1, 0},
		{"used 0 is known", with(atUsed, int64(0)), [9]int64{1, 2, 0, 100, 4, 45, 8, 900, 1000}, 0, 0},
		{"floats without a fraction", with(atUsed, 30.0), [9]int64{1, 2, 30, 100, 4, 45, 8, 900, 1000}, 0.3, 0},
		{"unsigned", with(atTotal, uint64(1)<<40), [9]int64{1, 2, 30, 100, 4, 1 << 40, 8, 900, 1000}, 0.3, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m, refusal := NewDecoder("load", 5).Decode(frames(array(c.values...)))
			if refusal != nil {
				t.Fatal(refusal)
			}
			r := &m.Load.Rank
			got := [9]int64{-1, -1, -1, -1, -1, -1, -1, -1, -1}
			for i, f := range []store.Field{
				store.NumRunningReqs, store.NumWaitingReqs, store.NumUsedTokens, store.MaxTotalNumTokens,
				store.NumWaitingUncachedTokens, store.NumTotalTokens, store.MaxRunningRequests,
			} {
				got[i] = known(r, f)
			}
			for i, v := range []ingest.Int{m.Load.PrefillUncachedTokens, m.Load.PrefillBusyUs} {
				if v.Known {
					got[7+i] = v.Value
				}
			}
			usage, ok := r.Float(store.TokenUsage)
			if !ok {
				usage = -1
			}
			if got != c.want || usage != c.usage || m.Negative != c.negative || r.DPRank != 5 || m.Sequence != 3 {
				t.Errorf("got %v, usage %g, %d negative, rank %d\nwant %v, %g, %d", got, usage, m.Negative, r.DPRank, c.want, c.usage, c.negative)
			}
			if len(c.values) >= atRank && c.values[atRank-1] != nil && m.Claims.Value != 7 {
				t.Errorf("the message claims rank %+v", m.Claims)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	four := func(v any) []byte { return array(int64(1), v, int64(3), int64(4)) }
	good := array(int64(1), int64(2), int64(3), int64(4))
	raw := func(head ...byte) []byte { return append(head, good[1:]...) }
	cases := []struct {
		name   string
		frames [][]byte
		reason string
	}{
		{"no frames", nil, "0 frames"},
		{"two frames", [][]byte{[]byte("load"), sequence(1)}, "2 frames"},
		{"four frames", append(frames(good), nil), "4 frames"},
		{"another topic", [][]byte{[]byte("loads"), sequence(1), good}, "topic"},
		{"short sequence", [][]byte{[]byte("load"), {1}, good}, "sequence has 1 bytes"},
		{"negative sequence", [][]byte{[]byte("load"), sequence(-1), good}, "negative"},
		{"empty", frames(nil), "EOF"},
		{"bug 70: null", frames([]byte{0xc0}), "0 elements"},
		{"a map", frames([]byte{0x81, 0x01, 0x02}), "array length"},
		{"four elements", frames(array(int64(1), int64(2), int64(3))), "4 elements"},
		{"another tag", frames(append([]byte{0x95, 0xa8}, "LoadStar\x01\x02\x03\x04"...)), "tag"},
		{"no tag", frames([]byte{0x95, 0x01, 0x01, 0x02, 0x03, 0x04}), "string/bytes"},
		{"long tag", frames([]byte{0x95, 0xdb, 0xff, 0xff, 0xff, 0xff}), "tag"},
		{"a text", frames(four("2")), "element 2"},
		{"a list", frames(four([]any{1})), "element 2"},
		{"true", frames(four(true)), "element 2"},
		{"a fraction", frames(four(1.5)), "not a whole number"},
		{"no number", frames(four(math.NaN())), "not a whole number"},
		{"infinite", frames(four(math.Inf(1))), "not a whole number"},
		{"too large", frames(four(uint64(1) << 63)), "too large"},
		{"above 2^50", frames(four(int64(1)<<50 + 1)), "2^50"},
		{"fewer than announced", frames(raw(0xdd, 0xff, 0xff, 0xff, 0xff)), "element 5"},
		{"cut", frames(good[:len(good)-1]), "element 4"},
		{"used above capacity", frames(array(int64(1), int64(2), int64(30), int64(20))), "uses 30 tokens of 20"},
		{"running above the maximum", frames(array(int64(9), int64(0), int64(0), int64(0), nil, nil, nil, int64(8))), "runs 9 requests of 8"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, refusal := NewDecoder("load", 0).Decode(c.frames)
			if refusal == nil || !refusal.Drop || !strings.Contains(refusal.Message, c.reason) {
				t.Errorf("got %v, want %q", refusal, c.reason)
			}
		})
	}
}

// TestDecodeAllocatesNothingByLength announces four billion elements and bytes.
func TestDecodeAllocatesNothingByLength(t *testing.T) {
	d := NewDecoder("load", 0)
	for _, payload := range [][]byte{
		{0xdd, 0xff, 0xff, 0xff, 0xff, 0xdb, 0xff, 0xff, 0xff, 0xff},
		append([]byte{0xdd, 0xff, 0xff, 0xff, 0xff, 0xa8}, "LoadStat\xc6\xff\xff\xff\xff"...),
		bytes.Repeat([]byte{0x91}, ingest.MaxMessageBytes),
	} {
		const times = 100
		var before, now runtime.MemStats
		runtime.ReadMemStats(&before)
		for range times {
			d.Decode(frames(payload))
		}
		runtime.ReadMemStats(&now)
		if n := (now.TotalAlloc - before.TotalAlloc) / times; n > 8192 {
			t.Errorf("%d bytes are allocated for % x", n, payload[:min(len(payload), 16)])
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	d := NewDecoder("load", 0)
	f := frames(array(int64(1), int64(2), int64(30), int64(100), int64(0), int64(4), int64(45), int64(8), int64(900), int64(1000)))
	b.ReportAllocs()
	for b.Loop() {
		if _, refusal := d.Decode(f); refusal != nil {
			b.Fatal(refusal)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, p := range [][]byte{
		array(int64(1), int64(2), int64(3), int64(4)),
		array(int64(1), nil, 3.0, int64(-4), nil, int64(4), int64(45), int64(8), int64(900), int64(1000), "x"),
		{0xdd, 0xff, 0xff, 0xff, 0xff, 0xa8}, {0xc0}, {0x81},
	} {
		f.Add(int64(1), p)
	}
	f.Fuzz(func(t *testing.T, n int64, payload []byte) {
		m, refusal := NewDecoder("load", 1).Decode([][]byte{[]byte("load"), sequence(n), payload})
		if refusal != nil {
			if refusal.Reason == "" || refusal.Message == "" {
				t.Errorf("the refusal says nothing: %+v", refusal)
			}
			return
		}
		if m.Sequence < 0 || m.Load.Rank.DPRank != 1 {
			t.Errorf("got %+v", m)
		}
		for f := range store.TokenUsage {
			if v, ok := m.Load.Rank.Count(f); ok && (v < 0 || v > ingest.MaxCount) {
				t.Errorf("%s is %d", store.Fields[f].Name, v)
			}
		}
		if v, ok := m.Load.Rank.Float(store.TokenUsage); ok && !(v >= 0 && v <= 1) {
			t.Errorf("the usage is %g", v)
		}
	})
}
