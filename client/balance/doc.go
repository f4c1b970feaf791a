// Package balance routes requests by the view of a client.Watcher: a Balancer
// answers where a request should go, and counts it there until it is over. It
// joins the packages client, which has the view, and pick, which compares
// workers, so that a router needs three lines:
//
//	b, err := balance.New(balance.Options{Watcher: watcher})
//	route, err := b.Pick(balance.Request{Model: "llama", PromptTokens: 1200})
//	defer route.Done()
//
// A Pick reads what the Watcher holds and waits for no network. While no plane
// can be reached it goes on with the last view: its workers turn invalid one by
// one, and once too few of them are fresh, the requests that this process has
// open decide alone, unless Options.Pick says FailClosed.
package balance
