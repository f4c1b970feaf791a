// Package face holds the HTTP pages of simulated engines: load, metrics and
// what an engine says of itself, each family with its own paths, names, labels
// and shapes. What the pages show comes from samples of package reporter.
package face
