// Package e2e holds tests that run the built program as processes on real
// sockets: planes, engines, routers, signals. It has no code of its own.
package e2e
