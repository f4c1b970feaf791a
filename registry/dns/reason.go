package dns

import (
	"errors"
	"fmt"

	"github.com/loadplane/loadplane/store"
)

// Reasons why a name gave no workers. They count lookups and change no worker.
const (
	// ReasonNoRecords: the name is there, without a record of the wanted type.
	ReasonNoRecords store.Reason = "no_records"
	// ReasonNoName: the name does not exist.
	ReasonNoName store.Reason = "no_name"
	// ReasonServerFailed: the server answered that it failed or refuses.
	ReasonServerFailed store.Reason = "server_failed"
	// ReasonNoAnswer: no server answered in time.
	ReasonNoAnswer store.Reason = "no_answer"
	// ReasonBadAnswer: an answer is not one to the question, cannot be read, or
	// leads to more than is taken.
	ReasonBadAnswer store.Reason = "dns_bad_answer"
	// ReasonPanic: the code that looks up panicked. That is a fault of the
	// plane, which asks again after a pause.
	ReasonPanic store.Reason = "lookup_panic"
)

// failure is why a lookup gave nothing.
type failure struct {
	reason store.Reason
	text   string
}

func (f *failure) Error() string { return f.text }

func failf(reason store.Reason, format string, args ...any) error {
	return &failure{reason, fmt.Sprintf(format, args...)}
}

// reasonOf returns the reason of an error of a lookup.
func reasonOf(err error) store.Reason {
	if f := (*failure)(nil); errors.As(err, &f) {
		return f.reason
	}
	return ReasonBadAnswer
}

// absent says that a server answered definitely that there is nothing.
func absent(err error) bool {
	why := reasonOf(err)
	return why == ReasonNoName || why == ReasonNoRecords
}
