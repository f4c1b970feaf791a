// Package paint makes lines of a screen: text from outside without what a
// terminal would obey, cut to a number of cells, numbers that may be unknown in
// few cells, and tones that terminals show as colour.
package paint
