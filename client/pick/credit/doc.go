// Package credit keeps a process's own books of what it sent to which worker:
// the requests that are open, and the dispatches that the reported load cannot
// have yet. Package pick adds them to the reported load.
package credit
