// Package picks answers GET /v1/pick: where should the next request go? It is
// package client/pick behind HTTP, for routers that want an answer only.
//
// It is a GET although it has an effect: every HTTP client and shell can ask
// it, and the effect is small. An answer counts as a dispatch of unknown end:
// later answers take it for load until the first report that covers it, at the
// latest until the stale time is over. Nothing has to be ended or undone, a
// repeated request costs one more such credit, and the answer must not be
// stored. With credit=0, and for HEAD, there is no effect.
//
// Every answer is made of one view. Whether a worker is fresh is decided at
// the moment of the pick, by the age of its report, so that nothing waits for
// the commit of an expiry.
package picks
