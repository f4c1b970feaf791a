// Package loadstat is the loadstat dialect: it subscribes to the ZMQ sockets on
// which an engine publishes the load of its DP ranks, one for each.
//
// A Subscriber has one goroutine and one connection for each rank. What they
// hear stands on a board; a report is made of all ranks of it, and only when
// each was heard in the engine's present life, on the connection that is open
// now, and not too long ago. The messages carry no name of the engine process:
// a life ends where a sequence goes back or a port is closed, and what was heard
// in one life is never shown beside what was heard in another.
//
// Package zmtp speaks to a socket, over a connection that is dialled here, and
// package message reads what came on it.
package loadstat
