// Package monitor is the load reporter that a simulated SGLang serves on a port
// of its own: routers dial it, register and get reports on the same stream. It
// behaves as the engines do since August 2026: reports of one interval come at
// the same moments to all, a failed sample is told at once and never hidden.
package monitor
