package loadstat

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// Bounds of a subscriber.
const (
	handshakeTimeout = 5 * time.Second
	// highWater is the number of messages that wait for a slow subscriber; more
	// are dropped.
	highWater = 8
)

// subscriber is one connection to the socket of a rank.
type subscriber struct {
	conn net.Conn
	out  chan []byte
	done chan struct{} // closes when nothing is to be sent any more

	mu     sync.Mutex
	topics map[string]int
}

// wants says whether the subscriber asked for the messages.
func (s *subscriber) wants() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic := range s.topics {
		if strings.HasPrefix(Topic, topic) {
			return true
		}
	}
	return false
}

// offer queues a message, or drops it when the queue is full.
func (s *subscriber) offer(message []byte) {
	select {
	case s.out <- message:
	default:
	}
}

// serve speaks to one subscriber of a rank until it leaves or ctx ends.
func (r *rank) serve(ctx context.Context, conn net.Conn) {
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	if _, err := zmq4.Open(conn, null.Security(), zmq4.Pub, nil, true, nil); err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	s := &subscriber{conn: conn, out: make(chan []byte, highWater), done: make(chan struct{}), topics: map[string]int{}}
	r.join(s)
	var writer sync.WaitGroup
	writer.Go(s.write)
	s.read()
	r.leave(s)
	close(s.done)
	_ = conn.Close() // ends a write
	writer.Wait()
}

func (s *subscriber) write() {
	for {
		select {
		case m := <-s.out:
			if _, err := s.conn.Write(m); err != nil {
				return
			}
		case <-s.done:
			return
		}
	}
}

// read takes subscriptions and answers pings until the connection ends.
func (s *subscriber) read() {
	in := bufio.NewReaderSize(s.conn, 256)
	for {
		flags, body, err := readFrame(in)
		if err != nil {
			return
		}
		if flags&flagCommand != 0 {
			s.command(body)
			continue
		}
		if len(body) > 0 {
			s.subscribe(string(body[1:]), body[0] == 1)
		}
	}
}

// subscribe counts how often a topic was asked for.
func (s *subscriber) subscribe(topic string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on {
		s.topics[topic]++
		return
	}
	if s.topics[topic]--; s.topics[topic] <= 0 {
		delete(s.topics, topic)
	}
}

// command answers PING with PONG and what follows its two bytes of time, and
// leaves others alone.
func (s *subscriber) command(body []byte) {
	if rest, ok := bytes.CutPrefix(body, []byte("\x04PING")); ok && len(rest) >= 2 {
		s.offer(appendFrame(nil, flagCommand, append([]byte("\x04PONG"), rest[2:]...)))
	}
}
