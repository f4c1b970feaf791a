package monitor

import (
	"time"

	pb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"google.golang.org/grpc"
)

// sender sends the frames of a session, one at a time, in a goroutine of its
// own, since an engine that does not read makes a send wait for it. All but run
// is for the goroutine of the session.
type sender struct {
	queue chan *pb.RouterFrame
	sent  chan struct{}
	// since is when the frame that is under way was handed over; zero for none.
	since time.Time
	// next follows it; nil for none.
	next *pb.RouterFrame
}

func newSender() *sender {
	return &sender{queue: make(chan *pb.RouterFrame, 1), sent: make(chan struct{}, 1)}
}

// run sends until the queue is closed. An error is that of a stream that
// ended, of which the receiver knows more.
func (s *sender) run(stream grpc.ClientStream) {
	for f := range s.queue {
		_ = stream.SendMsg(f)
		if f.GetStop() != nil {
			_ = stream.CloseSend()
		}
		s.sent <- struct{}{}
	}
}

// post sends a frame, after the one that is under way. It takes the place of
// one that waits for that.
func (s *sender) post(f *pb.RouterFrame) {
	if !s.since.IsZero() {
		s.next = f
		return
	}
	s.since = time.Now()
	s.queue <- f
}

// done notes that the frame under way was sent.
func (s *sender) done() {
	s.since = time.Time{}
	if f := s.next; f != nil {
		s.next = nil
		s.post(f)
	}
}

// stuck says whether a frame is under way for too long.
func (s *sender) stuck(now time.Time, timeout time.Duration) bool {
	return !s.since.IsZero() && now.Sub(s.since) >= timeout
}
