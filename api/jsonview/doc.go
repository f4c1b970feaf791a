// Package jsonview writes views as JSON for people and scripts: the snapshot,
// in the shape of SGLang's router with further keys or without, and the lines
// of a watch. An unknown number is null; every key is always there.
package jsonview
