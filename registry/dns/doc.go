// Package dns discovers workers by names in the DNS: A, AAAA and SRV records,
// asked again when their time to live is over. An answer without records, a
// server that fails or is silent, and garbage change nothing: the last good
// answer of each name stays.
package dns
