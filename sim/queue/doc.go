// Package queue is the queueing model of a simulated engine. Each of its
// data-parallel ranks has a queue that is prefilled in order, and runs so many
// requests at once as there are slots and tokens for. The model makes up
// requests of its own, with bursts and hot ranks, and serves those of callers
// beside them.
package queue
