// Package owner sees to it that one process alone samples an engine and sends
// its load, however many are started for it. The first to lock a file owns the
// engine and serves a unix socket beside it. The others forward to that socket
// what they are asked, keep a copy of the owner's routers, and wait: when the
// owner is gone, the lock is free, and the next one goes on where it ended.
//
// An owner that is stopped, and not gone, keeps the lock. Nothing is sent then,
// forwarded calls fail in two seconds, and the others are not ready.
package owner
