// Package series shows each worker, and each of its DP ranks, as series of its
// own to Prometheus, up to a number of workers. They are made out of the newest
// state of the store at every scrape: a worker that is gone has no series, and
// nothing that comes late brings them back.
package series
