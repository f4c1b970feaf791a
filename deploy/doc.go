// Package deploy has examples of how the programs are run: manifests for
// Kubernetes. Its test holds them to the flags that the programs have.
package deploy
