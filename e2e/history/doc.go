// Package history records what engines sent and what watchers were told, one
// JSON value a line, and checks such records afterwards: that versions were
// ordered, unique and whole, that nothing was lost or made up, and that
// resumed streams had no gap. The check needs nothing but the lines.
package history
