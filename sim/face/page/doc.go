// Package page writes the bodies of the pages of simulated engines: the
// Prometheus text format and JSON, in the ways in which engines write them.
package page
