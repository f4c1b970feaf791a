// Package terminal holds tests that run the built program in a real pseudo
// terminal behind a terminal emulator, as people see it: the live screen with
// its keys, and what the other commands print within 80 columns. It has no code
// of its own.
package terminal
