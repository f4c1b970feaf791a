// Package rules holds the house rules of this repository as tests: who may
// import whom, what must be documented, what must not be written, and that
// the documentation lists what the code has. It has no code of its own.
//
// A rule reads the parsed tree and returns its findings, one sentence each.
// Every rule is first tried on a small tree that breaks it.
package rules
