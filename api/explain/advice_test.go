package explain

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
)

// elsewhere are words of the sections that no worker is shown with: those that
// only probe or a reporter has, the usual ends of streams, what is counted
// only, and what is refused before it is known whose it is.
var elsewhere = []string{
	"left_alone", "asleep",
	"superseded", "worker_removed", "identity_changed", "shutting_down", "old_sequence",
	"unknown_worker", "unauthorized", "too_many_leases", "missing_lease", "answers_unread",
	"too_many_streams", "stream_rate", "call_rate",
}

// documented returns the words that docs/operations.md lists in the sections
// of a worker. Another test holds that page against the code.
func documented(t *testing.T) (words []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\|")
	for _, head := range []string{
		"Reasons why a worker is not fresh", "Reasons for which a call to an engine failed",
		"Reasons for which a stream or report is refused", "Reasons of registrations and leases",
		"Reasons of invalid reports", "Reasons of faulty identity", "Reasons of streams and connections",
	} {
		_, section, found := strings.Cut(string(page), "\n### "+head+"\n")
		section, _, _ = strings.Cut(section, "\n### ")
		rows := row.FindAllStringSubmatch(section, -1)
		if !found || len(rows) == 0 {
			t.Errorf("docs/operations.md has no words in %q", head)
		}
		for _, r := range rows {
			words = append(words, r[1])
		}
	}
	return words
}

// Each word that a worker can be shown with has advice of its own, and no
// advice is for a word that leads nowhere.
func TestAdviceIsForTheWordsOfAWorker(t *testing.T) {
	words := documented(t)
	for _, w := range words {
		if _, has := advice[w]; has == slices.Contains(elsewhere, w) {
			t.Errorf("%s: has advice %v, can be on a worker %v", w, has, !has)
		}
	}
	for w := range maps.Keys(advice) {
		if !slices.Contains(words, w) {
			t.Errorf("advice for %s, which is no word of a worker", w)
		}
	}
	for _, w := range elsewhere {
		if !slices.Contains(words, w) {
			t.Errorf("%s is not listed", w)
		}
	}
}

// A panic is a fault of the plane: the engine's log does not tell of it.
func TestAdviceAboutAPanicIsAboutThePlane(t *testing.T) {
	for _, w := range documented(t) {
		if got := adviceFor(store.Reason(w)); strings.HasSuffix(w, "_panic") && !strings.Contains(got, "this plane's log") {
			t.Errorf("%s: %s", w, got)
		}
	}
}

// Each flag has advice, and the first of several has the word.
func TestAdviceIsForEachFlag(t *testing.T) {
	words := store.Flag(1<<16 - 1).Words()
	for _, w := range words {
		if flagAdvice[w] == "" {
			t.Errorf("no advice for the flag %s", w)
		}
	}
	if len(words) != len(flagAdvice) {
		t.Errorf("advice for %d flags, there are %d", len(flagAdvice), len(words))
	}
	f := healthy()
	f.Entry.Flags = store.FlagInconsistent | store.FlagSuspect
	if got := find(Checks(*f), "flags").GetAdvice(); got != flagAdvice["inconsistent"] {
		t.Errorf("the first flag is advised as %q", got)
	}
}

// What holds needs no advice.
func TestNoAdviceWithoutTrouble(t *testing.T) {
	for _, c := range Checks(*healthy()) {
		if c.Advice != nil || c.GetVerdict() == pb.Verdict_VERDICT_UNSPECIFIED {
			t.Errorf("%s: %v", c.GetName(), c)
		}
	}
}
