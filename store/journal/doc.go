// Package journal tells in the log what becomes of each worker: that it was
// found, was heard, stopped being fresh and why, is fresh again, drains, was
// removed, or became another one.
//
// It reads the published states as any reader does, so that a log that blocks
// holds up nobody else. What goes to and fro between two looks at the state, a
// tenth of a second apart, is not told. The lines are bounded for each worker
// and in all; changes above the bounds are counted in one line.
package journal
