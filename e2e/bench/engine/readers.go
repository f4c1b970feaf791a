package engine

import (
	"context"
	"encoding/binary"
	"errors"

	"golang.org/x/sync/errgroup"
)

// Readers are watches whose messages are read and thrown away. Its methods
// are for one goroutine.
type Readers struct{ conns []*conn }

// Connect opens n watches of an API, each on a connection of its own.
func (r *Readers) Connect(ctx context.Context, address string, n int) error {
	r.conns = make([]*conn, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(dials)
	for i := range n {
		group.Go(func() error {
			c, err := dial(ctx, call{
				address: address, path: "/loadplane.v1.SnapshotService/WatchSnapshots",
				content: "application/connect+proto", buffer: 32 << 10,
			})
			if err != nil {
				return err
			}
			r.conns[i] = c
			return c.ask(nil)
		})
	}
	return group.Wait()
}

// ask sends the request message of a call and ends the request.
func (c *conn) ask(message []byte) error {
	b := make([]byte, frameHead+messageHead, frameHead+messageHead+len(message))
	dataHead(b, messageHead+len(message))
	b[4] = 1 // the end of the stream
	binary.BigEndian.PutUint32(b[frameHead+1:], uint32(len(message)))
	_, err := c.Write(append(b, message...))
	return err
}

// Received returns the bytes that all watches got, and an error where one
// ended.
func (r *Readers) Received() (uint64, error) {
	var sum uint64
	var errs []error
	for _, c := range r.conns {
		sum += uint64(c.received.Load())
		errs = append(errs, c.failure())
	}
	return sum, errors.Join(errs...)
}

// Disconnect ends all watches.
func (r *Readers) Disconnect() {
	for _, c := range r.conns {
		if c != nil {
			c.close()
		}
	}
	r.conns = nil
}
