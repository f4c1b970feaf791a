package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"testing"
	"testing/iotest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

const maxBytes = 64 << 10

func counter() prometheus.Counter { return prometheus.NewCounter(prometheus.CounterOpts{}) }

func greeting(mechanism string) []byte {
	b := make([]byte, greetingBytes)
	b[0], b[9], b[10] = 0xff, 0x7f, 3
	copy(b[12:], mechanism)
	return b
}

// short and long are frames with a body of zeros.
func short(flags byte, size int) []byte {
	return append([]byte{flags, byte(size)}, make([]byte, size)...)
}

func long(flags byte, size uint64, body int) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{flags | flagLong}, size), make([]byte, body)...)
}

func times(n int, frame []byte) []byte { return bytes.Repeat(frame, n) }

// source is a connection that brings some bytes.
type source struct {
	net.Conn
	io.Reader
}

func (s source) Read(p []byte) (int, error)  { return s.Reader.Read(p) }
func (s source) Write(p []byte) (int, error) { return len(p), nil }
func (s source) SetDeadline(time.Time) error { return nil }

func TestGuard(t *testing.T) {
	greeting := make([]byte, greetingBytes)
	cases := []struct {
		name   string
		frames []byte
		// passes is how many of the bytes are read; -1 for all.
		passes int
	}{
		{"nothing", nil, -1},
		{"messages", times(100, append(short(flagMore, 4), append(short(flagMore, 8), short(0, 200)...)...)), -1},
		{"empty frames", times(100, short(0, 0)), -1},
		{"a command", append(short(4, 40), long(4, 300, 300)...), -1},
		{"the largest frame", long(0, maxBytes, maxBytes), -1},
		{"eight frames", times(10, append(times(7, short(flagMore, 1)), short(0, 1)...)), -1},
		{"a frame too large", long(0, maxBytes+1, 0), 8},
		{"a giant frame", long(0, 1<<62, 0), 8},
		{"the largest number", long(flagMore, 1<<64-1, 0), 8},
		{"nine frames", times(9, short(flagMore, 1)), 8*3 + 1},
		{"a message too large", times(2, long(flagMore, maxBytes/2+1, maxBytes/2+1)), 9 + maxBytes/2 + 1 + 8},
		{"a cut header", []byte{flagLong, 0, 0}, -1},
	}
	for _, c := range cases {
		for name, chunk := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader,
		} {
			t.Run(c.name+", "+name, func(t *testing.T) {
				data := append(bytes.Clone(greeting), c.frames...)
				received := counter()
				g := newGuard(source{Reader: chunk(bytes.NewReader(data))}, &Options{MaxBytes: maxBytes, Received: received})
				// The library reads byte by byte up to a size, and the body whole.
				got, err := io.ReadAll(iotest.OneByteReader(g))
				switch {
				case c.passes < 0 && (err != nil || !bytes.Equal(got, data)):
					t.Errorf("read %d of %d bytes, %v", len(got), len(data), err)
				case c.passes >= 0 && (!errors.Is(err, ErrTooLarge) || len(got) != greetingBytes+c.passes):
					t.Errorf("read %d bytes of frames, %v, want %d", len(got)-greetingBytes, err, c.passes)
				}
				if _, again := g.Read(make([]byte, 1)); c.passes >= 0 && !errors.Is(again, ErrTooLarge) {
					t.Errorf("reads on: %v", again)
				}
				if n := int(testutil.ToFloat64(received)); n < len(got) || n > len(data) {
					t.Errorf("%d bytes are counted of %d", n, len(data))
				}
			})
		}
	}
}

// TestGiantFrameAllocatesNothing has the library read a frame of 2^62 bytes.
func TestGiantFrameAllocatesNothing(t *testing.T) {
	ready := append([]byte{4, 26, 5}, "READY\x0bSocket-Type\x00\x00\x00\x03PUB"...)
	ready[1] = byte(len(ready) - 2)
	data := slices.Concat(greeting("NULL"), ready, long(0, 1<<62, 0))
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	c, err := Subscribe(source{Reader: bytes.NewReader(data)}, Options{Topic: "load", MaxBytes: maxBytes, Received: counter()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Receive()
	runtime.ReadMemStats(&now)
	if !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	if n := now.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes were allocated", n)
	}
}

// FuzzGuard holds that how bytes are cut into reads does not matter, and that
// what passes has no frame above the bounds.
func FuzzGuard(f *testing.F) {
	f.Add(append(short(flagMore, 4), short(0, 3)...), uint8(1))
	f.Add(long(0, 1<<40, 0), uint8(3))
	f.Add(times(9, short(flagMore, 1)), uint8(2))
	f.Fuzz(func(t *testing.T, frames []byte, step uint8) {
		whole := follower{limit: maxBytes}
		wantErr := whole.follow(frames)
		parts := follower{limit: maxBytes}
		var gotErr error
		for p := frames; len(p) > 0 && gotErr == nil; {
			n := min(len(p), int(step)+1)
			gotErr = parts.follow(p[:n])
			p = p[n:]
		}
		if (wantErr == nil) != (gotErr == nil) {
			t.Fatalf("whole %v, in parts %v", wantErr, gotErr)
		}
		if wantErr == nil && (whole != parts || whole.skip > maxBytes || whole.frames > maxFrames || whole.bytes > maxBytes) {
			t.Errorf("whole %+v, in parts %+v", whole, parts)
		}
	})
}
