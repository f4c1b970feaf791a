package zmtp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/prometheus/client_golang/prometheus"
)

// Bounds of what a peer may send.
const (
	maxFrames  = 8
	readBuffer = 512
)

// greetingBytes is the length of a greeting (ZMTP 3.0, "greeting").
const greetingBytes = 64

// Flags of a frame (ZMTP 3.0, "framing").
const (
	flagMore = 1 << iota
	flagLong
)

// guard is a connection on which no frame and no message is larger than
// allowed. Reading fails with ErrTooLarge before the announced bytes can be
// asked for, and keeps failing. It is for one goroutine; Close is safe for
// concurrent use.
type guard struct {
	net.Conn
	in       *bufio.Reader
	received prometheus.Counter
	stream   follower
	// broken is the first error of the connection, size that of its content.
	broken error
	size   error
}

func newGuard(c net.Conn, opts *Options) *guard {
	return &guard{
		Conn: c, in: bufio.NewReaderSize(c, readBuffer), received: opts.Received,
		stream: follower{limit: uint64(opts.MaxBytes), skip: greetingBytes},
	}
}

// Read reads what was checked.
func (g *guard) Read(p []byte) (int, error) {
	if g.size != nil {
		return 0, g.size
	}
	n, err := g.in.Read(p)
	g.received.Add(float64(n))
	if g.size = g.stream.follow(p[:n]); g.size != nil {
		return 0, g.size
	}
	g.failed(err)
	return n, err
}

// Write writes through.
func (g *guard) Write(p []byte) (int, error) {
	n, err := g.Conn.Write(p)
	g.failed(err)
	return n, err
}

func (g *guard) failed(err error) {
	if g.broken == nil {
		g.broken = err
	}
}

// classify makes an error of the library one of the package's.
func (g *guard) classify(err error) error {
	switch {
	case g.size != nil:
		return g.size
	case errors.Is(g.broken, io.EOF):
		return fmt.Errorf("%w: the peer closed it", ErrBroken)
	case g.broken != nil:
		return fmt.Errorf("%w: %w", ErrBroken, g.broken)
	}
	return fmt.Errorf("%w: %w", ErrProtocol, err)
}

// follower follows the bytes of a peer: the greeting, then frames, each a byte
// of flags, one or eight bytes of size, and the body. It is for one goroutine.
type follower struct {
	// limit bounds the bytes of a message.
	limit uint64
	// skip are the bytes still to come of the greeting or of a body.
	skip   uint64
	header [9]byte
	have   int
	// frames and bytes are those of the message so far.
	frames int
	bytes  uint64
}

// follow takes the next bytes. It returns ErrTooLarge at the last byte of the
// size of a frame that is too large.
func (f *follower) follow(p []byte) error {
	for len(p) > 0 {
		if f.skip > 0 {
			n := min(f.skip, uint64(len(p)))
			f.skip -= n
			p = p[n:]
			continue
		}
		f.header[f.have] = p[0]
		f.have++
		p = p[1:]
		if err := f.begin(); err != nil {
			return err
		}
	}
	return nil
}

// begin begins a frame, once its header is complete.
func (f *follower) begin() error {
	size := uint64(f.header[1])
	long := f.header[0]&flagLong != 0
	switch {
	case !long && f.have < 2, long && f.have < len(f.header):
		return nil
	case long:
		size = binary.BigEndian.Uint64(f.header[1:])
	}
	f.have, f.header[1] = 0, 0
	f.frames++
	if size > f.limit || f.bytes+size > f.limit {
		return fmt.Errorf("%w: a message of more than %d bytes", ErrTooLarge, f.limit)
	}
	if f.frames > maxFrames {
		return fmt.Errorf("%w: a message of more than %d frames", ErrTooLarge, maxFrames)
	}
	f.skip = size
	f.bytes += size
	if f.header[0]&flagMore == 0 {
		f.frames, f.bytes = 0, 0
	}
	return nil
}
