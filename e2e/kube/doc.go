// Package kube has tests of discovery on a real kube-apiserver: the rights that
// deploy/kubernetes ships, coming and going of engines, tokens that change, an API
// server that restarts, and a thousand pods. It is a module of its own, so that
// the product does not depend on the API server. "make test-kube" builds what
// the tests start and runs them.
//
// No controllers run. The tests write the status of pods and the endpoint slices
// that controllers would write.
package kube
