package frame

import (
	"time"

	pb "github.com/loadplane/loadplane/proto/sglang/router/loadmonitor/v1"
)

// Register opens a session.
func Register(router string, interval, lease time.Duration) *pb.RouterFrame {
	return &pb.RouterFrame{Payload: &pb.RouterFrame_Register{Register: &pb.RegisterRequest{
		RouterId: router, ReportIntervalMs: milliseconds(interval), LeaseTtlMs: milliseconds(lease),
	}}}
}

// Update changes the settings of a session and renews its lease.
func Update(interval, lease time.Duration) *pb.RouterFrame {
	i, l := milliseconds(interval), milliseconds(lease)
	return &pb.RouterFrame{Payload: &pb.RouterFrame_UpdateConfig{UpdateConfig: &pb.UpdateConfigRequest{
		ReportIntervalMs: &i, LeaseTtlMs: &l,
	}}}
}

// KeepAlive renews the lease of a session.
func KeepAlive() *pb.RouterFrame {
	return &pb.RouterFrame{Payload: &pb.RouterFrame_KeepAlive{KeepAlive: &pb.KeepAlive{}}}
}

// Stop ends a session.
func Stop() *pb.RouterFrame {
	return &pb.RouterFrame{Payload: &pb.RouterFrame_Stop{Stop: &pb.StopRequest{}}}
}

// milliseconds returns milliseconds, at least one.
func milliseconds(d time.Duration) int64 { return max(1, d.Milliseconds()) }
