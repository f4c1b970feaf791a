package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/loadreport"
	pb "github.com/loadplane/loadplane/proto/router/loadmonitor/v1"
	"google.golang.org/grpc"
)

// stock is what one writes first: the generated code and no option.
type stock struct {
	pb.UnimplementedLoadMonitorServiceServer
	reports atomic.Uint64
}

// Report receives into a new message each time.
func (s *stock) Report(stream pb.LoadMonitorService_ReportServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return ended(err)
		}
		s.reports.Add(1)
	}
}

func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func openStock(p *Process) error {
	s := &stock{}
	g := grpc.NewServer()
	pb.RegisterLoadMonitorServiceServer(g, s)
	p.count = s.reports.Load
	return p.ingest(func(ctx context.Context, ln net.Listener) error {
		context.AfterFunc(ctx, g.Stop)
		return g.Serve(ln)
	})
}

// openTuned opens the plane's ingest server with a service that does nothing
// but decode.
func openTuned(p *Process) error {
	s, err := ingest.NewServer(ingest.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	var reports atomic.Uint64
	s.Registrar().RegisterService(&grpc.ServiceDesc{
		ServiceName: pb.LoadMonitorService_ServiceDesc.ServiceName,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName:    "Report",
			ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error {
				// The plane's own decoder: the server differs from the plane only in
				// what comes after decoding.
				d := loadreport.New(ingest.DefaultMaxRanks)
				for {
					if err := stream.RecvMsg(d); err != nil {
						return ended(err)
					}
					reports.Add(1)
				}
			},
		}},
	}, nil)
	p.count = reports.Load
	return p.ingest(s.Run)
}
