// Package model holds a test that drives the registry, the store and the API
// with random operations in fake time and compares what readers see with a
// model of plain maps. It has no code of its own.
package model
