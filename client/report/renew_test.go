package report

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// renewals is a plane that grants a lease and answers renewals as told.
func renewals(answer func(*pb.RegisterRequest) (*pb.RegisterResponse, error)) *script {
	return &script{
		register: func(r *pb.RegisterRequest) (*pb.RegisterResponse, error) {
			if r.GetLeaseId() == "" {
				return granted(r)
			}
			return answer(r)
		},
		report: regrants(time.Hour),
	}
}

// regrants is a stream that grants the same once in a while.
func regrants(each time.Duration) func(pb.ReportService_ReportServer) error {
	return func(stream pb.ReportService_ReportServer) error {
		answer, _ := granted(nil)
		for {
			if err := stream.Send(&pb.ReportResponse{Payload: &pb.ReportResponse_Grant{Grant: answer.GetGrant()}}); err != nil {
				return err
			}
			select {
			case <-time.After(each):
			case <-stream.Context().Done():
				return nil
			}
		}
	}
}

// since returns when registrations were asked for, counted from a time.
func (s *script) since(begin time.Time) (times []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.calls {
		times = append(times, at.Sub(begin))
	}
	return times
}

// A renewal that fails since the way to the plane is broken, or the lease lost,
// ends the session; other trouble is borne while the lease lasts.
func TestFailedRenewals(t *testing.T) {
	for code, borne := range map[codes.Code]bool{
		codes.Unavailable: false, codes.DeadlineExceeded: false, codes.NotFound: false, codes.AlreadyExists: false,
		codes.Internal: true, codes.ResourceExhausted: true, codes.Unknown: true,
	} {
		t.Run(code.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, n *network) {
				n.script(t, renewals(func(*pb.RegisterRequest) (*pb.RegisterResponse, error) { return nil, status.Error(code, "no") }))
				r := n.report(t, nil)
				<-time.After(4900 * time.Millisecond)
				if st := r.Status(); !st.Connected || st.Streams != 1 || st.LastError != nil {
					t.Fatalf("before the renewal: %+v", st)
				}
				<-time.After(200 * time.Millisecond)
				if st := r.Status(); st.Connected != borne || st.LastError == nil || borne && !strings.Contains(st.LastError.Error(), "renewal: ") {
					t.Errorf("after it: %+v", st)
				}
			})
		})
	}
}

// Renewals that fail are tried again after pauses, whatever the plane says
// meanwhile.
func TestFailedRenewalsPause(t *testing.T) {
	for name, each := range map[string]time.Duration{"a quiet plane": time.Hour, "one that repeats its grant": 10 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *network) {
				s := renewals(func(*pb.RegisterRequest) (*pb.RegisterResponse, error) {
					return nil, status.Error(codes.Internal, "no")
				})
				s.report = regrants(each)
				n.script(t, s)
				begin := time.Now()
				r := n.report(t, nil)
				<-time.After(30 * time.Second)
				times := s.since(begin)
				if len(times) < 5 || len(times) > 30 {
					t.Errorf("asked at %v", times)
				}
				for i := 2; i < len(times); i++ {
					if times[i]-times[i-1] < 50*time.Millisecond {
						t.Fatalf("asked at %v", times[:i+1])
					}
				}
				if st := r.Status(); !st.Connected || st.Streams != 1 {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}

// The life of a lease counts from when its renewal was asked for, which is
// before the plane counts it.
func TestRenewalsCountFromTheCall(t *testing.T) {
	bubble(t, func(t *testing.T, n *network) {
		s := renewals(func(r *pb.RegisterRequest) (*pb.RegisterResponse, error) {
			<-time.After(2 * time.Second)
			answer, err := granted(r)
			answer.Grant.RenewAfterMs = 4000
			return answer, err
		})
		n.script(t, s)
		begin := time.Now()
		n.report(t, nil)
		<-time.After(12 * time.Second) // the last one is answered at 11 s
		if times := s.since(begin); len(times) != 3 || times[1] != 5*time.Second || times[2] != 9*time.Second {
			t.Errorf("asked at %v, want 0, 5 and 9 s", times)
		}
	})
}

// What a plane answers takes no more memory than an answer needs.
func TestLargeAnswersAreRefused(t *testing.T) {
	large := strings.Repeat("x", maxAnswer)
	for name, s := range map[string]*script{
		"registration": {register: func(r *pb.RegisterRequest) (*pb.RegisterResponse, error) {
			answer, err := granted(r)
			answer.WorkerId = large
			return answer, err
		}, report: regrants(time.Hour)},
		"stream": {register: granted, report: func(stream pb.ReportService_ReportServer) error {
			_ = stream.Send(&pb.ReportResponse{Payload: &pb.ReportResponse_Refusal{Refusal: &pb.ReportRefusal{Message: large}}})
			<-stream.Context().Done()
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *network) {
				n.script(t, s)
				r := n.report(t, nil)
				synctest.Wait()
				if st := r.Status(); st.Connected || st.LastError == nil || st.Refused != 0 || len(st.WorkerID) > 100 || !strings.Contains(st.LastError.Error(), "resource_exhausted") {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}
