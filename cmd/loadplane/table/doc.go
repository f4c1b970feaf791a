// Package table writes text for people: tables that fit a screen, wrapped lines,
// and texts from outside without characters that a terminal would obey.
package table
