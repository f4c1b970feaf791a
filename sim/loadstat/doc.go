// Package loadstat publishes the load of a simulated SGLang on ZMQ PUB sockets,
// one for each DP rank, as releases do since 0.5.19.
package loadstat
