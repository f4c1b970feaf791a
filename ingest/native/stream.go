package native

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/native/frame"
	loadplanev1 "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/registry"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Words for the ends of streams that no refusal ended.
const (
	endClosed   = "closed"
	endCanceled = "canceled"
	endBroken   = "broken"

	// openTimeout is how long the first frame may take.
	openTimeout = 10 * time.Second
)

// stream is one report stream. The receiver owns frame and session; the channels lead from
// it to the handler.
type stream struct {
	service *Service
	conn    grpc.ServerStream
	peer    netip.AddrPort
	answers *answers
	frame   *frame.Frame

	// session is that of the lease, once the first frame named it, and opened
	// brings it to the handler.
	session *session
	opened  chan *session
	done    chan error
}

// crash is a panic of the receiver, on its way to the handler.
type crash struct{ text string }

func (c *crash) Error() string { return c.text }

// report handles a stream.
func (s *Service) report(conn grpc.ServerStream) error {
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	send := func(m *loadplanev1.ReportResponse) error {
		if m.GetGrant() != nil {
			s.metrics.grants.Inc()
		}
		return conn.SendMsg(m)
	}
	st := &stream{
		service: s,
		conn:    conn,
		peer:    ingest.Peer(conn.Context()),
		answers: newAnswers(send),
		frame:   frame.New(s.opts.MaxRanks),
		opened:  make(chan *session, 1),
		done:    make(chan error, 1),
	}
	defer close(st.answers.stop)
	go st.answers.run()
	go st.run()
	return s.end(st.wait())
}

// wait returns what ended the stream: a refusal, the loss of the lease or of
// the binding, answers that are not read, or an error of the transport. The
// receiver ends soon after the handler did, since that ends the stream's
// context.
func (st *stream) wait() error {
	var ss *session
	var changed, bound, ended <-chan struct{}
	var held <-chan time.Time
	late := time.NewTimer(openTimeout)
	defer late.Stop()
	for {
		select {
		case ss = <-st.opened:
			changed, held, bound = ss.changed, ss.held.C, ss.bound
			late.Stop()
		case <-late.C:
			return st.object(ingest.Refuse(ingest.ReasonMissingLease, fmt.Sprintf("no first frame came within %s", openTimeout)))
		case <-bound:
			bound, ended = nil, ss.binding.Ended()
		case <-changed:
			next, err := ss.renew()
			if err != nil {
				return err
			}
			changed = next
		case <-held:
			if refusal := ss.flush(); refusal != nil {
				return refusal
			}
		case <-ended:
			return ss.binding.Err()
		case <-st.answers.stuck:
			return st.object(ingest.Refuse(ingest.ReasonAnswersUnread, "an answer was not taken in time"))
		case err := <-st.done:
			return err
		}
	}
}

// end counts the end of a stream and returns what the peer is told.
func (s *Service) end(err error) error {
	if c := (*crash)(nil); errors.As(err, &c) {
		// The server's guard counts and logs it.
		panic(c.text)
	}
	if r := (*registry.Refusal)(nil); errors.As(err, &r) {
		count(s.metrics.ended, string(r.Reason))
		return ingest.Status(r)
	}
	if errors.Is(err, io.EOF) {
		count(s.metrics.ended, endClosed)
		return nil
	}
	reason := endBroken
	if status.Code(err) == codes.Canceled {
		reason = endCanceled
	}
	count(s.metrics.ended, reason)
	return err
}

// run is the receiver: it receives, validates and admits until the stream ends.
func (st *stream) run() {
	var ss *session
	var err error
	defer func() {
		if p := recover(); p != nil {
			err = &crash{fmt.Sprintf("%v\n%s", p, debug.Stack())}
		}
		if ss != nil {
			ss.close()
		}
		st.done <- err
	}()
	if ss, err = st.open(); err != nil {
		return
	}
	st.session = ss
	st.opened <- ss
	err = st.receive(ss)
}

// open reads the first frame and takes up its lease.
func (st *stream) open() (*session, error) {
	f := st.frame
	if err := st.read(); err != nil {
		return nil, err
	}
	switch {
	case f.Fault != nil:
		return nil, st.object(f.Fault)
	case f.Lease == "":
		return nil, st.object(ingest.Refuse(ingest.ReasonMissingLease, "the first frame has no lease_id"))
	case len(f.Lease) > maxLeaseBytes:
		return nil, st.object(ingest.Refuse(ingest.ReasonIdentityTooLong, "the lease_id is too long"))
	}
	return newSession(st, f.Lease)
}

// receive takes the report of the frame that was read, and those that follow.
func (st *stream) receive(ss *session) error {
	for {
		if refusal := ss.take(st.frame); refusal != nil {
			return refusal
		}
		if err := st.read(); err != nil {
			return err
		}
	}
}

// read receives a frame. An error of the transport becomes a refusal where the
// message was at fault; gRPC has written the status by then.
func (st *stream) read() error {
	err := st.conn.RecvMsg(st.frame)
	if err != nil {
		if reason := ingest.ReceiveReason(err); reason != "" {
			return st.unread(ingest.Refuse(reason, "the message was not read"))
		}
		return err
	}
	st.service.metrics.bytes.Add(float64(st.frame.Size))
	return nil
}

// unread counts a message that could not be read. It is one of the worker that
// the stream is bound to, if it is.
func (st *stream) unread(r *registry.Refusal) *registry.Refusal {
	if st.session == nil {
		return st.object(r)
	}
	count(st.service.metrics.refused, string(r.Reason))
	return st.session.unread(r)
}

// object counts a refusal that is not the registry's own, and tells the registry
// of it. No stream is bound.
func (st *stream) object(r *registry.Refusal) *registry.Refusal {
	count(st.service.metrics.refused, string(r.Reason))
	st.service.opts.Registry.Refuse(nil, registry.Claim{Peer: st.peer}, r)
	return r
}
