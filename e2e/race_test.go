//go:build race

package e2e

// raceEnabled says that the race detector makes everything ten times slower.
const raceEnabled = true
