// Package egress makes bounded HTTP requests to engines: no redirects, no
// proxy, no compression, credentials to the one host they are for, and limits
// on the time, the headers and the body of every answer. In a restricted context
// it connects to no address of the deny list.
package egress
