// Package reporter is the load reporter inside a simulated engine. A Process
// is one life of an engine process: its source instance id, its sequence, its
// load, and a monitor for each plane that registered with it. A monitor serves
// one plane address with one channel and one stream while its lease lasts.
package reporter
