// Package soak runs the parts of the plane with simulated engines and watching
// clients in simulated time, over connections in memory that fail by seeded
// schedules. It has no code of its own.
package soak
