package engine

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	streamID      = 1
	initialWindow = 65535
	// readerWindow lets a server write without waiting for a reader's credit.
	readerWindow = 1 << 29
)

// call is a stream to open.
type call struct {
	// local is the near address; the zero Addr leaves it to the system.
	local   netip.Addr
	address string
	path    string
	// content is the content type.
	content string
	// buffer is the size of the read buffer.
	buffer int
}

// conn is a connection with one stream. It is safe for concurrent use.
type conn struct {
	net.Conn
	framer *http2.Framer
	input  *bufio.Reader
	done   chan struct{}

	received atomic.Int64

	mu sync.Mutex
	// moved says that one of the fields below changed.
	moved *sync.Cond
	// whole and stream are the windows left; initial is the server's setting.
	whole, stream, initial int64
	halted                 bool
	err                    error
}

// dial opens the connection and the stream. Its goroutine ends with Close.
func dial(ctx context.Context, to call) (*conn, error) {
	var d net.Dialer
	if to.local.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(to.local, 0))
	}
	nc, err := d.DialContext(ctx, "tcp", to.address)
	if err != nil {
		return nil, err
	}
	c := &conn{
		Conn: nc, input: bufio.NewReaderSize(nc, to.buffer), done: make(chan struct{}),
		whole: initialWindow, stream: initialWindow, initial: initialWindow,
	}
	c.moved = sync.NewCond(&c.mu)
	c.framer = http2.NewFramer(nc, c.input)
	c.framer.SetReuseFrames()
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := c.open(to); err != nil {
		_ = nc.Close()
		return nil, err
	}
	go c.read()
	return c, nil
}

// open writes the preface, the settings and the request in one go.
func (c *conn) open(to call) error {
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&out, nil)
	err := errors.Join(
		f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: readerWindow}),
		f.WriteWindowUpdate(0, readerWindow),
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: streamID, BlockFragment: headers(to), EndHeaders: true}),
	)
	if err != nil {
		return err
	}
	_, err = c.Write(out.Bytes())
	return err
}

func headers(to call) []byte {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, h := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":authority", to.address}, {":path", to.path},
		{"content-type", to.content}, {"te", "trailers"},
	} {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // A buffer takes all.
	}
	return block.Bytes()
}

// read handles what the server sends until the connection ends.
func (c *conn) read() {
	defer close(c.done)
	used := int64(0)
	for {
		f, err := c.framer.ReadFrame()
		if err == nil {
			err = c.handle(f)
		}
		if err != nil {
			c.change(func() { c.err = orElse(c.err, err) })
			return
		}
		if d, ok := f.(*http2.DataFrame); ok {
			c.received.Add(int64(d.Length))
			used = c.credit(used + int64(d.Length))
		}
	}
}

// credit gives the server back what was read, in large steps.
func (c *conn) credit(used int64) int64 {
	if used < readerWindow/2 {
		return used
	}
	_ = c.framer.WriteWindowUpdate(0, uint32(used)) // A lost connection shows in the next read.
	_ = c.framer.WriteWindowUpdate(streamID, uint32(used))
	return 0
}

func (c *conn) handle(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.framer.WritePing(true, f.Data)
		}
	case *http2.WindowUpdateFrame:
		c.change(func() {
			if f.StreamID == 0 {
				c.whole += int64(f.Increment)
			} else {
				c.stream += int64(f.Increment)
			}
		})
	case *http2.MetaHeadersFrame:
		return refused(f)
	case *http2.RSTStreamFrame:
		return fmt.Errorf("the server reset the stream: %v", f.ErrCode)
	case *http2.GoAwayFrame:
		return fmt.Errorf("the server goes away: %v %s", f.ErrCode, f.DebugData())
	}
	return nil
}

// refused returns an error for headers that end the stream.
func refused(f *http2.MetaHeadersFrame) error {
	if !f.StreamEnded() {
		return nil
	}
	var text string
	for _, h := range f.Fields {
		text += h.Name + ": " + h.Value + "; "
	}
	return fmt.Errorf("the server ended the stream: %s", text)
}

func (c *conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
		c.change(func() {
			c.stream += int64(v) - c.initial
			c.initial = int64(v)
		})
	}
	return c.framer.WriteSettingsAck()
}

func (c *conn) change(fn func()) {
	c.mu.Lock()
	fn()
	c.mu.Unlock()
	c.moved.Broadcast()
}

// reserve waits until the windows admit a message of a size, and takes room
// for as many as they do, at most most of them. 0 says that it was halted.
func (c *conn) reserve(size, most int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && !c.halted && min(c.whole, c.stream) < int64(size) {
		c.moved.Wait()
	}
	if c.err != nil || c.halted {
		return 0, c.err
	}
	n := min(int64(most), min(c.whole, c.stream)/int64(size))
	c.whole -= n * int64(size)
	c.stream -= n * int64(size)
	return int(n), nil
}

// halt makes reserve return at once, or lets it wait again.
func (c *conn) halt(v bool) { c.change(func() { c.halted = v }) }

// failure returns what ended the connection, nil while it lasts.
func (c *conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// close ends the connection and waits for its reader.
func (c *conn) close() {
	_ = c.Close()
	<-c.done
}
