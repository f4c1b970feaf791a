// Package scaler tells KEDA the demand on a pool, by the interface of its
// external scalers. It only reads what store/snapshot shows. What is not known
// is an error, so that the autoscaler keeps its replicas, and never 0.
package scaler
