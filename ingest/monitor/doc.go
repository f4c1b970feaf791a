// Package monitor is the monitor dialect: the plane dials the load reporter of
// an engine and opens sglang.router.loadmonitor.v1.LoadMonitorService/Monitor,
// a stream on which reports come back.
//
// A Monitor keeps one session for each worker, of three goroutines: one that
// receives, one that sends, and that of Serve, which decides. None of them
// waits for another worker, each step has a deadline, and all of them have
// ended when Serve returns. An engine that never reads, never answers, grants a
// renewal each millisecond or floods the plane costs its own session only.
//
// Whose load a session reports is known from discovery. What the messages claim
// of their worker is not looked at.
package monitor
