// Package lease keeps the leases of registered reporters: who holds which,
// until when, and at which interval each may report. It is a pure book: it
// starts nothing, reads no clock and knows no worker.
package lease
