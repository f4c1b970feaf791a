// Package poll is the poll dialect: it reads the load of engines from the
// pages that they serve over HTTP.
//
// Package survey asks an engine for every page of the table in package sample
// and chooses the one that says most. A Poller then reads that page at the
// interval of the worker, turns it into a report like those of every other
// dialect, and offers it to the registry. Each worker has one goroutine and
// one connection, with one request in flight, so that an engine that does not
// answer delays nobody else.
package poll
