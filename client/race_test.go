//go:build race

package client

// raceEnabled says that the race detector makes everything ten times slower.
const raceEnabled = true
