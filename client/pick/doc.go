// Package pick chooses a worker, or a DP rank of one, for a request. It knows
// neither the wire nor the store, so that routers and the plane itself pick by
// the same code.
//
// A Table holds the candidates of one view, compiled once. A Picker compares
// them by a policy: the load that was reported, and on top of it the credit of
// a credit.Ledger, which is what this process dispatched since. The order of
// use is, for every new view, Ledger.Sync, then NewTable; for every request
// Picker.Pick, Ledger.Dispatch, and Dispatch.End once the request is over.
//
// What is unknown is never taken for zero. Values are compared only where all
// eligible candidates have them; where they have none in common, this
// process's open requests decide. Ties are broken at random.
package pick
