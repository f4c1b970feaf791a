package server

import "unsafe"

// decoder is the plane's own decoder, so that the tuned server differs from
// the plane only in what comes after decoding. The package does not export
// it; a change of its name fails at link time.
type decoder struct{ message unsafe.Pointer }

func newDecoder(maxRanks int) *decoder { return &decoder{newMessage(maxRanks)} }

// DecodeWire decodes one report.
func (d *decoder) DecodeWire(b []byte) error { return decodeWire(d.message, b) }

//go:linkname newMessage github.com/loadplane/loadplane/ingest/push.newMessage
func newMessage(maxRanks int) unsafe.Pointer

//go:linkname decodeWire github.com/loadplane/loadplane/ingest/push.(*message).DecodeWire
func decodeWire(message unsafe.Pointer, b []byte) error
