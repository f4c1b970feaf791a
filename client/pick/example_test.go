package pick_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/loadplane/loadplane/client/pick"
	"github.com/loadplane/loadplane/client/pick/credit"
)

// view returns what a router makes of its newest view: the candidates of two
// workers, and the receipts of their reports.
func view(now time.Time) ([]pick.PolicyCandidate, []credit.Receipt) {
	var candidates []pick.PolicyCandidate
	var receipts []credit.Receipt
	for i, running := range []int64{2, 9} {
		url := fmt.Sprintf("http://10.0.0.%d:30000", i+1)
		candidates = append(candidates, pick.PolicyCandidate{
			WorkerID: url, URL: url, Rank: pick.NoRank, Role: pick.RolePlain, Models: []string{"qwen3"},
			Freshness: pick.Usable, ValidUntil: now.Add(3 * time.Second),
			Running: pick.Count(running), Waiting: pick.Count(0),
		})
		receipts = append(receipts, credit.Receipt{WorkerID: url, At: now, Interval: time.Second})
	}
	return candidates, receipts
}

// A router that sends a request, and counts it until it is over.
func Example() {
	ledger := credit.NewLedger(credit.Options{})
	picker, err := pick.NewPicker(pick.Options{})
	if err != nil {
		panic(err)
	}
	candidates, receipts := view(time.Now())
	ledger.Sync(receipts)
	table := pick.NewTable(candidates, pick.TableOptions{Model: "qwen3", Role: pick.RolePlain, Ledger: ledger})

	request := pick.Request{PromptTokens: 1200}
	choice, err := picker.Pick(table, request)
	if err != nil {
		panic(err)
	}
	dispatch := ledger.Dispatch(choice.Target, request.PromptTokens)
	fmt.Println(choice.URL, choice.Field, choice.Score, ledger.Local(credit.Target{WorkerID: choice.WorkerID, Rank: pick.NoRank}).InFlight)
	dispatch.End()
	fmt.Println(ledger.Local(credit.Target{WorkerID: choice.WorkerID, Rank: pick.NoRank}).InFlight)
	// Output:
	// http://10.0.0.1:30000 total_requests 2 1
	// 0
}

// A router that tries another worker after the first failed.
func ExampleRequest() {
	picker, err := pick.NewPicker(pick.Options{})
	if err != nil {
		panic(err)
	}
	candidates, _ := view(time.Now())
	table := pick.NewTable(candidates, pick.TableOptions{})
	var request pick.Request
	for {
		choice, err := picker.Pick(table, request)
		if refusal := (*pick.Error)(nil); errors.As(err, &refusal) {
			fmt.Println(refusal.Reason)
			return
		}
		fmt.Println("no answer from", choice.URL)
		request.Avoid = append(request.Avoid, credit.Target{WorkerID: choice.WorkerID, Rank: pick.NoRank})
	}
	// Output:
	// no answer from http://10.0.0.1:30000
	// no answer from http://10.0.0.2:30000
	// all_tried
}

// A router that weighs the share of requests that a worker can run by what it
// dispatched itself, and that does not know a worker without a maximum.
func ExampleScore() {
	busy := func(c *pick.PolicyCandidate, l credit.Local, _ pick.Request) (float64, bool) {
		running, okR := c.Running.Value()
		most, okM := c.MaxRunning.Value()
		if !okR || !okM || most == 0 {
			return 0, false
		}
		return (running + float64(l.Credit)) / most, true
	}
	picker, err := pick.NewPicker(pick.Options{Policy: pick.Custom, Score: busy})
	if err != nil {
		panic(err)
	}
	candidates, _ := view(time.Now())
	candidates[0].MaxRunning, candidates[1].MaxRunning = pick.Count(4), pick.Count(36)
	choice, err := picker.Pick(pick.NewTable(candidates, pick.TableOptions{}), pick.Request{})
	if err != nil {
		panic(err)
	}
	fmt.Println(choice.URL, choice.Field, choice.Score)
	// Output: http://10.0.0.2:30000 score 0.25
}
