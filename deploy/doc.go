// Package deploy has examples of how the programs are run and watched: manifests
// for Kubernetes, alerts for Prometheus and dashboards for Grafana. Its tests hold
// them to the flags and metrics that the programs have.
package deploy
