// Package access decides who may talk to a listener: TLS settings, bearer
// tokens and client certificates. What it is made of is read again when the
// files change; the last good value stays when that fails.
package access
