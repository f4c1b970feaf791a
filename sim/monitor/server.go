package monitor

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	monitorpb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
	"github.com/loadplane/loadplane/sim/reporter"
	"google.golang.org/grpc"
)

// stopGrace is how long streams have to end when the server stops.
const stopGrace = 500 * time.Millisecond

// Config is what a Server needs. It is a plain value.
type Config struct {
	// Process is sampled and numbers the reports. Required.
	Process *reporter.Process
	// Role and Model are what reports say of the engine.
	Role  pb.WorkerType
	Model string
	// Faults may change at any time; Silent stops the reports. Required.
	Faults *reporter.Faults
	// Slow returns how long a sample takes now. Required.
	Slow func() time.Duration
}

// Server is the load reporter of one engine process. All methods are safe for
// concurrent use, except that Run is called once at a time.
type Server struct {
	config Config
	// epoch is what the moments of reports are counted from.
	epoch time.Time
	live  atomic.Int64
}

// New returns a server that does not serve yet.
func New(c Config) *Server { return &Server{config: c, epoch: time.Now()} }

// Sessions returns the number of routers that have a session.
func (s *Server) Sessions() int { return int(s.live.Load()) }

// Run serves on l, which it closes. It returns when ctx has ended, its streams
// as UNAVAILABLE, and every goroutine has stopped, or with the error of l.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	until, cancel := context.WithCancel(ctx)
	v := &serving{
		Server: s, ctx: until, address: l.Addr().String(),
		sessions: map[string]*session{}, wake: make(chan struct{}, 1),
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	monitorpb.RegisterLoadMonitorServiceServer(server, v)
	var tasks sync.WaitGroup
	tasks.Go(v.fire)
	tasks.Go(func() {
		<-v.ctx.Done()
		stop(server)
	})
	err := server.Serve(l)
	cancel()
	tasks.Wait()
	v.receivers.Wait()
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// stop lets handlers tell why they end, for as long as the grace lasts.
func stop(server *grpc.Server) {
	ended := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(ended)
	}()
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-ended:
	case <-grace.C:
		server.Stop()
		<-ended
	}
}
