package flood

import (
	"context"
	"encoding/binary"
	"io"
	"net"
)

// Flags of a ZMTP 3.0 frame; rfc.zeromq.org/spec/23.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// greetingBytes is the length of a greeting; what stands where is in the same
// specification.
const greetingBytes = 64

// chunk is what a giant frame is sent in, bytes.
const chunk = 64 << 10

// serveLoadstat serves the socket of the engine that publishes its load.
func (p *Peers) serveLoadstat(ctx context.Context) {
	if p.kind == Deaf {
		hold(ctx, p.loadstat, &p.metLoadstat)
		return
	}
	accept(ctx, p.loadstat, &p.metLoadstat, func(c net.Conn) {
		if shakeHands(c) != nil {
			return
		}
		ctx, end := context.WithCancel(ctx)
		defer end()
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, c)
			end()
		}()
		p.publish(ctx, c)
		_ = c.Close()
		<-read
	})
}

// publish sends until it fails or ctx ends.
func (p *Peers) publish(ctx context.Context, c net.Conn) {
	send := func(b []byte) error {
		p.sentLoadstat.Add(1)
		_, err := c.Write(b)
		return err
	}
	if p.kind == Frequent {
		sequence := uint64(0)
		_ = pace(ctx, frequent, func() error {
			sequence++
			return send(loadMessage(sequence))
		})
		return
	}
	head := binary.BigEndian.AppendUint64([]byte{flagLong}, 1<<40)
	if send(head) != nil {
		return
	}
	part := make([]byte, chunk)
	_ = pace(ctx, seldom, func() error { return send(part) })
}

// shakeHands speaks as a publisher up to the end of the handshake.
func shakeHands(c net.Conn) error {
	greeting := make([]byte, greetingBytes)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	ready := append([]byte{5}, "READY"...)
	ready = append(append(ready, byte(len("Socket-Type"))), "Socket-Type"...)
	ready = append(binary.BigEndian.AppendUint32(ready, uint32(len("PUB"))), "PUB"...)
	if _, err := c.Write(greeting); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, greetingBytes)); err != nil {
		return err
	}
	_, err := c.Write(frame(nil, flagCommand, ready))
	return err
}

// frame appends a frame of at most 255 bytes.
func frame(b []byte, flags byte, body []byte) []byte {
	return append(append(b, flags, byte(len(body))), body...)
}

// loadMessage is a topic, a sequence, and a msgpack array that begins with a tag.
func loadMessage(sequence uint64) []byte {
	b := frame(nil, flagMore, []byte("load"))
	b = frame(b, flagMore, binary.BigEndian.AppendUint64(nil, sequence))
	values := []uint32{uint32(sequence % 100), 3, 210_000, 500_000, 0, 5120, 215_120, 256, 1_000_000, 60_000_000}
	load := append([]byte{0x90 | byte(1+len(values)), 0xa8}, "LoadStat"...)
	for _, v := range values {
		load = binary.BigEndian.AppendUint32(append(load, 0xce), v)
	}
	return frame(b, 0, load)
}
