// Package promtext reads the few wanted families out of a page in the
// Prometheus text format or in OpenMetrics text, without reading the rest of
// it. It takes what engines send: repeated and missing TYPE lines, samples of
// any label set, and pages without samples are no errors. A line that cannot
// be read is counted, and the next one is read.
package promtext
