// Package server has what is measured: the plane with its real parts, bare
// gRPC servers that decode reports and drop them, and bare pollers.
package server
