package reader

import (
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/survey"
	"github.com/loadplane/loadplane/store"
)

// Result is what came of one round. It is for one goroutine and valid until
// the next round of its reader.
type Result struct {
	// Began is when the round began, once nobody else asked the engine.
	Began time.Time
	// Page is the one that decided: it was read, or says best why none was.
	Page *survey.Page
	// Found says that a page was read, even where it is not to be believed yet.
	Found bool
	// Report is what the page says; nil where there is nothing to report. Its
	// sequence is left to the caller. An engine that sleeps is unreachable and
	// says so in LastError.
	Report *ingest.Report
	// Source is the instance of the engine process; empty before the first page
	// that was read.
	Source string
	// Changed says that the page is of another process than the one before.
	Changed bool
	// Over is why there is nothing more to expect of the engine:
	// registry.ReasonUnsupported where no page of it can be read, for certain,
	// or registry.ReasonAuth where it refuses, twice in a row if it was read
	// before. It is empty otherwise.
	Over store.Reason
	// Useless says that no page can be read, and that waiting alone is not
	// likely to help.
	Useless bool
	// Detail says for people what is read, and Gone which fields vanished from
	// it; both are empty for nothing.
	Detail, Gone string
	// Tally is what is to be counted.
	Tally Tally
}

// Tally is what is to be counted of one round, or of one search for a better
// page. It is for one goroutine and valid until the next round.
type Tally struct {
	// Bytes are those of the bodies of complete answers, Surveys the times that
	// pages were asked for to choose one.
	Bytes, Surveys int
	// Vanished are the fields that the process had on its page and has no more,
	// each once.
	Vanished []store.Field
	// Unusable counts the values that are there and not usable, by reason.
	Unusable map[store.Reason]int
	// Panics are those of the code that reads answers.
	Panics []Panic
}

// Panic is a panic of the code that reads answers. It is immutable.
type Panic struct {
	// Path is the page that was read; empty for none.
	Path string
	// Why says what the code panicked with, and where.
	Why *survey.Panic
}
