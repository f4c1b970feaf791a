package push

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// Times and sizes of a connection.
const (
	connectTimeout = 3 * time.Second
	// deadAfter is after how long a peer that acknowledges nothing is dead.
	deadAfter = 10 * time.Second
	// bufferBytes is that of reads and of writes; a report has less than 4 KiB
	// as a rule.
	bufferBytes = 4 << 10
	// maxAnswerBytes bounds the one answer, which is empty.
	maxAnswerBytes = 1 << 10
)

// connect opens a connection, in 3 s at most. The way is plain HTTP/2 to the
// literal address: no proxy, no redirect, no retry by the library.
func (st *stream) connect() (*grpc.ClientConn, error) {
	address := st.target.String()
	failed := make(chan error, 1)
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority(address),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := st.set.opts.Dial(ctx, address)
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
			return c, err
		}),
		grpc.WithReadBufferSize(bufferBytes), grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if awaitReady(st.ctx, conn) {
		return conn, nil
	}
	_ = conn.Close()
	select {
	case err := <-failed:
		return nil, status.Error(codes.Unavailable, err.Error())
	default:
		return nil, status.Error(codes.Unavailable, "no connection in time")
	}
}

// awaitReady connects, and says whether that came about. The first failure is
// enough: the next trial is another connection's.
func awaitReady(ctx context.Context, conn *grpc.ClientConn) bool {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn.Connect()
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			return true
		case connectivity.TransientFailure, connectivity.Shutdown:
			return false
		}
		if !conn.WaitForStateChange(ctx, state) {
			return false
		}
	}
}

// dial connects by TCP and has the kernel find out about dead peers.
func dial(ctx context.Context, address string) (net.Conn, error) {
	d := net.Dialer{
		Timeout:         connectTimeout,
		Control:         noticeDead,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: deadAfter, Interval: deadAfter / 3, Count: 3},
	}
	return d.DialContext(ctx, "tcp", address)
}
