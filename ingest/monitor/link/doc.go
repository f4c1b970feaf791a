// Package link opens Monitor streams to load reporters, each on a connection of
// its own, in such a way that an engine that does not read, answer or end
// anything holds up nobody: the opening and each write have a deadline, windows
// and frames are small, and Close waits for nothing.
package link
