// Package probe asks engines what they are and in which ways they offer their
// load. It only reads: the questions are GET requests, each bounded in time and
// size, and no answer of an engine makes it ask another host.
package probe
