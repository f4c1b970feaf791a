// Package query reads what a request for the view asks for: the filter, the
// detail, and how to wait, out of messages and out of URLs.
package query
