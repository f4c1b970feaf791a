//go:build !race

package api_test

// raceShare leaves the model test as it is.
const raceShare = 1
