// Package series reads pages in the text format of Prometheus: which series
// belong to which rank, and which of several stands for it.
package series
