// Package frame holds what one message of a watch is made of and how it leaves:
// the bytes that all watchers of a version share, the codecs that put them
// behind a head of their own, and the writer that sends a message in one write
// and within its time.
package frame
