// Package operate takes the orders of operators to a running plane, by its admin
// socket.
package operate
