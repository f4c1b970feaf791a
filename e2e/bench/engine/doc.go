// Package engine is the load side of the benchmarks: engines and readers that
// cost so little that the server is what is measured. They speak HTTP/2 by
// hand, one stream on each connection, and write reports that were encoded
// once and are only patched.
package engine
