// Package poll is the poll dialect: it reads the load of engines from the
// pages that they serve over HTTP.
//
// Package survey asks an engine for every page of the table in package sample
// and chooses the one that says most; package reader keeps to that page and
// makes reports of it like those of every other dialect. A Poller has it read
// at the interval of the worker, and offers the reports to the registry. Each
// worker has one goroutine and one connection, with one request in flight, so
// that an engine that does not answer delays nobody else.
package poll
