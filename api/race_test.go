//go:build race

package api_test

// raceShare cuts the changes of the model test, since the race detector makes
// each of them ten times as slow.
const raceShare = 10
