// Package sample turns the load pages of engines into ranks: which endpoints
// and metric names each engine family has is data in one table, and one
// sampler for each endpoint reads its pages. It is pure: pages and times come
// in, readings go out.
package sample
