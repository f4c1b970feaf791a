// Package board lays the workers and pools of a view out as lines: which are
// shown, in which order, and in which columns. It keeps nothing between two
// views.
package board
