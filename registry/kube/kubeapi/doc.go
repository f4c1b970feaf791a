// Package kubeapi keeps copies of what a Kubernetes API server lists: the Pods
// or the EndpointSlices of a namespace.
//
// A Mirror lists and then watches. What it holds is made of each object at
// once; the object itself is not kept. It converges whatever the server does:
// a watch that ended goes on from the last version, one in which nothing came
// for long is cut and the list is read anew, as it is after 410 and from time
// to time, and no error takes anything away. There is no queue of changes, so
// that a deletion that no watch showed is an absence in the next list like any
// other.
package kubeapi
