package fields

import (
	"slices"
	"testing"

	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/store"
)

func TestWatch(t *testing.T) {
	running := sample.Match{Field: store.NumRunningReqs, Name: "running"}
	usage := sample.Match{Field: store.TokenUsage, Name: "usage"}
	renamed := sample.Match{Field: store.TokenUsage, Name: "new_usage"}
	hinted := sample.Match{Field: store.MaxRunningRequests, Name: "hint"}
	var w Watch
	for i, step := range []struct {
		page     []sample.Match
		changed  bool
		vanished []store.Field
		gone     string
	}{
		{[]sample.Match{running, hinted}, true, nil, ""},
		{[]sample.Match{running, usage}, true, nil, ""},
		{[]sample.Match{running, usage}, false, nil, ""},
		{[]sample.Match{running}, false, nil, ""},
		{[]sample.Match{running, usage}, false, nil, ""},
		{[]sample.Match{running}, false, nil, ""},
		{[]sample.Match{running}, false, []store.Field{store.TokenUsage}, "token_usage (usage)"},
		{[]sample.Match{running}, false, nil, "token_usage (usage)"},
		{[]sample.Match{running, renamed}, true, nil, ""},
	} {
		changed, vanished := w.See(step.page)
		if changed != step.changed || !slices.Equal(vanished, step.vanished) || w.Gone() != step.gone {
			t.Errorf("page %d: changed %v, vanished %v, gone %q", i, changed, vanished, w.Gone())
		}
	}
	if got := w.Names(); got != "num_running_reqs (running), token_usage (new_usage)" {
		t.Errorf("names %q", got)
	}
}
