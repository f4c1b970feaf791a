// Package server has the servers that are measured: the plane with its real
// parts, and two bare gRPC servers that decode reports and drop them.
package server
