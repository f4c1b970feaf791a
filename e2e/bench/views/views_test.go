package views

import "testing"

// The delta is of the changed workers only, and both events are timed.
func TestRun(t *testing.T) {
	r, err := Run(t.Context(), Spec{Workers: 300, Ranks: 4, Rounds: 3})
	if err != nil {
		t.Fatal(err)
	}
	if share := float64(r.Delta.Bytes) / float64(r.Full.Bytes); share > 0.02 || share <= 0 {
		t.Errorf("a delta of 1 %% has %d bytes, the full %d", r.Delta.Bytes, r.Full.Bytes)
	}
	if min(r.Full.First, r.Full.Compose, r.Full.Marshal, r.Delta.First, r.Delta.Compose, r.Delta.Marshal, r.Cold) <= 0 || r.HeapPerWorker <= 0 {
		t.Errorf("not all was measured: %+v", r)
	}
}
