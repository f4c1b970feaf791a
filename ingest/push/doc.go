// Package push is the push dialect: engines that dial the plane and stream
// router.loadmonitor.v1.LoadReport messages to it.
//
// A stream decodes into a message of its own, see package loadreport. The
// goroutine that receives also validates and admits; the handler's goroutine
// only waits for the end of the stream, so that a stream that lost its right
// ends at once although no message comes.
package push
