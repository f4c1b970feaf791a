// Package pace decides when a watcher may get its next data message, and which
// watchers were too slow too often to be let in again. It reads no clock: times
// come in, and sending is done elsewhere.
package pace
