package survey

import "github.com/loadplane/loadplane/store"

// Reasons why a page could not be had. Those of the HTTP status and of the
// connection are the registry's, those of what stands on the page are of
// package sample.
const (
	// ReasonTimeout: the connection stands, and the answer was not complete in
	// time.
	ReasonTimeout store.Reason = "timeout"
	// ReasonTLS: TLS did not come about, or the certificate is not trusted.
	ReasonTLS store.Reason = "tls_failed"
	// ReasonBroken: the answer broke off, or is no HTTP.
	ReasonBroken store.Reason = "answer_broken"
	// ReasonTooLarge: the header or the body of the answer is above its limit.
	ReasonTooLarge store.Reason = "answer_too_large"
	// ReasonCompressed: the answer is compressed, which nobody asked for.
	ReasonCompressed store.Reason = "answer_compressed"
	// ReasonReaderPanic: the code that reads answers panicked. That is a fault
	// of the plane, which goes on.
	ReasonReaderPanic store.Reason = "reader_panic"
)
