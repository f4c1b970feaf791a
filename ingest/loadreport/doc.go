// Package loadreport decodes the LoadReport messages of engines. Those of the
// push dialect (package router.loadmonitor.v1) and of the monitor dialect
// (package sglang.router.loadmonitor.v1) have the same bytes.
//
// Decoding needs no reflection and, in steady state, no memory. The decoder
// agrees with protobuf-go on every input within its bounds. A number that is
// missing is a known zero; the prefill throughput alone is unknown until its
// source has sent another value once, for which Sources remembers sources.
package loadreport
