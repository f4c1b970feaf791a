// Package push reports to routers as an engine with the push load reporter
// does: a router asks for reports to an address for the time of a lease, and
// gets one connection and one stream there. A stream delivers once when it
// opens and then at a fixed rate, which renewals do not shift. A router that is
// slow or gone delays no other.
package push
