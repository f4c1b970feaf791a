// Package admin lets operators on the plane's own host add, remove and drain
// workers, by HTTP over a Unix socket that only the plane's user can open.
//
//	POST   /workers              adds the worker of the body, URL[,key=value...]
//	DELETE /workers/{id}         removes a worker that was added
//	POST   /workers/{id}/drain   keeps new work from a worker of any source
//	POST   /workers/{id}/undrain undoes that
//
// An id is escaped as one segment of a path. Answers are JSON: an Answer, or a
// Fault that says what to do.
package admin
