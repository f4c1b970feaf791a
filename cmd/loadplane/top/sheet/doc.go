// Package sheet lays one worker out as lines: who it is, its load, its ranks and
// the checks that the plane makes of it; and the help.
package sheet
