// Package build turns samples of an engine into reports: those of the native
// dialect, where what is unknown stays absent, and those of the push dialect,
// which cannot say that a number is unknown. Everything but Builder is pure.
package build
