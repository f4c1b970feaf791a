// Package zmtp is the subscribing side of one ZMTP 3.0 connection, as
// rfc.zeromq.org/spec:23 describes it. The library does the handshake and takes
// the frames apart, without a goroutine; what it reads is guarded, so that what
// a peer announces costs nothing.
package zmtp
