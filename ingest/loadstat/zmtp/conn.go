package zmtp

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"github.com/prometheus/client_golang/prometheus"
)

// Errors of a connection.
var (
	// ErrBroken: the connection ended, or took too long; os.ErrDeadlineExceeded
	// is in the same error then.
	ErrBroken = errors.New("the connection broke")
	// ErrTooLarge: the peer announced a frame or a message that is too large.
	ErrTooLarge = errors.New("too much is announced")
	// ErrProtocol: the peer does not speak as a publisher does.
	ErrProtocol = errors.New("no ZMQ publisher")
)

// Options configure a connection. It is a plain value.
type Options struct {
	// Topic is what is subscribed to, every topic that it begins.
	Topic string
	// Deadline is when the handshake has to be over; zero for never.
	Deadline time.Time
	// MaxBytes bounds a message; no part of a larger one is read. Required.
	MaxBytes int
	// Received counts what is read. Required.
	Received prometheus.Counter
}

// Conn is a connection that is subscribed. It is for one goroutine, and the
// connection below it may be closed by any.
type Conn struct {
	guard *guard
	conn  *zmq4.Conn
}

// Subscribe shakes hands with a publisher and subscribes. The error wraps one of
// the package's; the connection is the caller's to close.
func Subscribe(raw net.Conn, opts Options) (c *Conn, err error) {
	c = &Conn{guard: newGuard(raw, &opts)}
	if err := raw.SetDeadline(opts.Deadline); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	if err := c.subscribe(opts.Topic); err != nil {
		return nil, c.guard.classify(err)
	}
	return c, nil
}

// subscribe is where the library's code for the properties of a peer panics, at
// some that do not hold together.
func (c *Conn) subscribe(topic string) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the properties of the peer cannot be read: %v", v)
		}
	}()
	c.conn, err = zmq4.Open(c.guard, null.Security(), zmq4.Sub, nil, false, nil)
	if err != nil {
		return err
	}
	// A subscription is a message of a byte 1 and the topic.
	return c.conn.SendMsg(zmq4.NewMsg([]byte("\x01" + topic)))
}

// Receive returns the frames of the next message. It answers pings. The error
// wraps one of the package's.
func (c *Conn) Receive() ([][]byte, error) {
	for {
		msg, err := c.conn.RecvMsg()
		if err != nil {
			return nil, c.guard.classify(err)
		}
		if msg.Type != zmq4.CmdMsg {
			return msg.Frames, nil
		}
	}
}

// SetDeadline bounds receiving.
func (c *Conn) SetDeadline(at time.Time) error {
	if err := c.guard.SetDeadline(at); err != nil {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return nil
}
