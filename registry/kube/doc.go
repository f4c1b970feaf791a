// Package kube finds workers in Kubernetes: the endpoints of named Services, or
// the Pods that a label selector selects.
//
// A worker is one Pod: it is named namespace/pod/port, the Pod's UID is its
// identity and the address is the one that the cluster says the Pod has. What
// labels and annotations say beside that they say by keys under loadplane.dev/:
// role, model, zone, dialect, reporter-port, interval, port and label.NAME. An
// annotation wins over a label. Values that cannot be used are passed over one
// by one and never the Pod.
//
// Of Services only EndpointSlices are read, which have the labels of their
// Service. Endpoints that are ready, or say nothing of it, are listed; those
// that terminate are listed as draining; others are not listed. Several slices
// that name one Pod are one worker, which drains where all that list it say so.
// An endpoint that names no Pod is known by its address.
//
// Of Pods those are listed that run and are ready; a Pod that runs and has no
// condition of readiness counts as ready. One that is being deleted drains.
// Followers of a LeaderWorkerSet are listed as having no engine.
//
// Where two Pods have one address, one that drains gives way to one that does
// not. Else, as no two Pods but those on their host's network can have one
// address at a time, the older gives way: of Pods the one that was made
// earlier, of endpoints the one that was seen earlier. Where that cannot be told
// both are listed.
package kube
