// Package health answers grpc.health.v1 out of the readiness of the plane, for
// single checks and for watches.
package health
