// Package metrics holds a test that reads /metrics of two planes that follow one
// mixed fleet: Prometheus' own tool takes the pages, they have all that the
// alerts and dashboards of folder deploy ask for, and those count each engine
// once. It has no code of its own.
package metrics
