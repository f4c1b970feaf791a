package push

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/loadreport"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Words for the ends of streams that no refusal ended.
const (
	endClosed   = "closed"
	endCanceled = "canceled"
	endBroken   = "broken"
)

// rateBurst is how many reports above the granted rate are not counted.
const rateBurst = 5

// stream is one report stream. The receiver owns it but for bound and done,
// on which the handler waits.
type stream struct {
	service *Service
	conn    grpc.ServerStream
	peer    netip.AddrPort
	message *loadreport.Message
	binding *registry.Binding
	streak  ingest.Streak
	rate    *rate.Limiter
	// prefill says that the source has sent a prefill throughput.
	prefill bool

	bound chan *registry.Binding
	done  chan error
}

// crash is a panic of the receiver, on its way to the handler.
type crash struct{ text string }

func (c *crash) Error() string { return c.text }

// report handles a stream.
func (s *Service) report(conn grpc.ServerStream) error {
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	st := &stream{
		service: s,
		conn:    conn,
		peer:    ingest.Peer(conn.Context()),
		message: loadreport.New(s.opts.MaxRanks),
		rate:    rate.NewLimiter(2*rate.Every(s.opts.Interval), rateBurst),
		bound:   make(chan *registry.Binding, 1),
		done:    make(chan error, 1),
	}
	go st.run()
	return s.end(st, st.wait())
}

// wait returns what ended the stream: a refusal by the receiver, the loss of
// the binding, or an error of the transport. The receiver ends soon after the
// handler did, since that ends the stream's context.
func (st *stream) wait() error {
	var binding *registry.Binding
	var ended <-chan struct{}
	for {
		select {
		case binding = <-st.bound:
			ended = binding.Ended()
		case err := <-st.done:
			return err
		case <-ended:
			return binding.Err()
		}
	}
}

// end counts the end of a stream and returns what the peer is told.
func (s *Service) end(st *stream, err error) error {
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
		return st.conn.SendMsg(&emptypb.Empty{})
	}
	reason := endBroken
	if status.Code(err) == codes.Canceled {
		reason = endCanceled
	}
	count(s.metrics.ended, reason)
	return err
}

// run is the receiver: it receives, validates and admits until the stream
// ends.
func (st *stream) run() {
	var err error
	defer func() {
		if p := recover(); p != nil {
			err = &crash{fmt.Sprintf("%v\n%s", p, debug.Stack())}
		}
		if st.binding != nil {
			st.binding.Close()
		}
		st.done <- err
	}()
	err = st.receive()
}

func (st *stream) receive() error {
	for {
		if err := st.conn.RecvMsg(st.message); err != nil {
			return st.lost(err)
		}
		if refusal := st.take(); refusal != nil {
			return refusal
		}
	}
}

// lost turns an error of the transport into a refusal where the message was
// at fault. gRPC has written the status by then.
func (st *stream) lost(err error) error {
	reason := ingest.ReceiveReason(err)
	if reason == "" {
		return err
	}
	refusal := st.object(ingest.Refuse(reason, "the message was not read"))
	st.refused(refusal)
	return refusal
}

// take handles the received message. It returns the refusal that ends the
// stream.
func (st *stream) take() *registry.Refusal {
	now := time.Now()
	m := st.message
	m.Report.Received = st.service.opts.Clock.Now()
	m.Report.ReceivedUnixMs = now.UnixMilli()
	metrics := st.service.metrics
	metrics.bytes.Add(float64(m.Size))
	if !st.rate.AllowN(now, 1) {
		metrics.overRate.Inc()
	}
	load, err := st.admit()
	if err != nil {
		refusal := asRefusal(err)
		st.refused(refusal)
		return st.streak.Refuse(refusal)
	}
	st.streak.Accept()
	metrics.accepted.Inc()
	if age, ok := ingest.SampleAge(load); ok {
		metrics.sampleAge.Observe(age.Seconds())
	}
	return nil
}

// admit validates the message and leaves it in the store.
func (st *stream) admit() (*store.Load, error) {
	m := st.message
	if m.Fault != nil {
		return nil, st.object(m.Fault)
	}
	sent := m.Report.FillPrefill(st.prefill || st.remembered())
	load, refusal := ingest.Validate(&m.Report, ingest.Rules{MaxRanks: st.service.opts.MaxRanks, Claim: true})
	if refusal != nil && !refusal.Drop {
		return nil, st.object(refusal)
	}
	if st.binding != nil {
		if err := st.binding.Check(st.claim()); err != nil {
			return nil, err
		}
	}
	if refusal != nil {
		return nil, st.object(refusal)
	}
	if err := st.offer(load); err != nil {
		return nil, err
	}
	if sent && !st.prefill {
		st.prefill = true
		st.service.sources.Add(load.Source)
	}
	return load, nil
}

// remembered says whether the source has sent a prefill throughput in a
// stream before this one. It is asked until the stream is bound.
func (st *stream) remembered() bool {
	return st.binding == nil && st.service.sources.Has(st.message.Report.Source)
}

// offer binds the stream by its first valid report, and admits later ones.
func (st *stream) offer(load *store.Load) error {
	if st.binding != nil {
		return st.binding.Admit(load)
	}
	binding, err := st.service.opts.Registry.Bind(st.claim(), load)
	if err != nil {
		return err
	}
	st.binding = binding
	st.bound <- binding
	return nil
}

func (st *stream) claim() registry.Claim {
	r := &st.message.Report
	return registry.Claim{Addr: r.Addr, Role: store.Role(r.Role), Source: r.Source, Peer: st.peer}
}

// object tells the registry of a refusal that is not its own.
func (st *stream) object(r *registry.Refusal) *registry.Refusal {
	st.service.opts.Registry.Refuse(st.binding, st.claim(), r)
	return r
}

// refused counts a refusal; the registry logs it.
func (st *stream) refused(r *registry.Refusal) {
	count(st.service.metrics.refused, string(r.Reason))
}

// asRefusal returns the refusal that every error of admission is.
func asRefusal(err error) *registry.Refusal {
	var r *registry.Refusal
	if errors.As(err, &r) {
		return r
	}
	return ingest.Refuse(ingest.ReasonMalformed, err.Error())
}
