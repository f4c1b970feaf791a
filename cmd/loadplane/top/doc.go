// Package top shows a running plane in a terminal: the pools, a table of all
// workers that can be sorted and filtered, and one worker with its ranks and
// checks. It follows a watch and asks for nothing again and again.
package top
