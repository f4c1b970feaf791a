// Package reader reads the load of one engine from the pages that it serves
// over HTTP. It finds the page that says most, keeps to it, looks once in a
// while for a better one, and notices when another process answers than
// before. When to read, and what becomes of what was read, is its caller's.
package reader
