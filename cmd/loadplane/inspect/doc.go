// Package inspect prints what asking an engine found, for people and for
// programs.
package inspect
