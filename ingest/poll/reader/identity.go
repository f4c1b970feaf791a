package reader

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strconv"
	"time"

	"github.com/loadplane/loadplane/ingest/poll/fields"
	"github.com/loadplane/loadplane/ingest/poll/sample"
	"github.com/loadplane/loadplane/ingest/poll/survey"
	"github.com/loadplane/loadplane/store"
)

// identity is what is known of the process that answers.
type identity struct {
	// source is the instance of the engine process, and process when it
	// started, Unix seconds, 0 for unknown.
	source  string
	process float64
	// kind is what the engine was when it was read last, and renewed when the
	// instance began.
	kind    kind
	renewed time.Time
	// replaced says that another process may be behind the address since the
	// last reading. unreached is since when no connection came about, zero
	// while they do; peer is whose page was read last, and moved when that was
	// last another's.
	replaced         bool
	unreached, moved time.Time
	peer             netip.Addr
	// healthy says that the instance's health page does not say no.
	healthy bool
}

// kind is what an engine is: the family of its page, and what it says of
// itself; empty for unknown.
type kind struct {
	page            sample.Family
	engine, version string
}

// renew begins another instance of the engine process.
func (r *Reader) renew(process float64) {
	r.source, r.process, r.healthy = r.name(process), process, false
	r.fields, r.renewed = fields.Watch{}, time.Now()
}

// derivedBytes is how much of a digest stands in a name.
const derivedBytes = 15

// name names another instance than the one so far. What was taken for another
// though its process started at the same time has a random name.
func (r *Reader) name(process float64) string {
	if r.opts.Derived && process != 0 && process != r.process {
		start := strconv.FormatFloat(process, 'g', -1, 64)
		sum := sha256.Sum256([]byte(r.target.URL + " " + start))
		return r.opts.Prefix + base32.StdEncoding.EncodeToString(sum[:derivedBytes])
	}
	return r.opts.Prefix + rand.Text()
}

// Life is what tells one instance of the engine process from the next. It is a
// plain value.
type Life struct {
	// Source is its name.
	Source string
	// Process is when the process started, Unix seconds; 0 for unknown.
	Process float64
}

// Life returns the instance that was read last; zero before the first.
func (r *Reader) Life() Life {
	if r.source == "" {
		return Life{}
	}
	return Life{r.source, r.process}
}

// Adopt goes on with the instance that another reader read last, some time ago,
// as if this one had read it. It is called before the first round.
func (r *Reader) Adopt(l Life, ago time.Duration) {
	r.source, r.process = l.Source, l.Process
	r.unreached = time.Now().Add(-ago)
}

// identify notes where another process answers than before, and says whether
// it does. Where its page does not tell one process from the next, that is one
// that could not be reached before, or answers from another address. An engine
// whose answers come from several by turns is taken for one.
func (r *Reader) identify(page *survey.Page) (changed bool) {
	reading := page.Reading
	other, another := r.elsewhere(page), r.another(page)
	if reading.Process != 0 {
		other = r.process != 0 && reading.Process != r.process
	}
	switch {
	case r.source == "":
		r.renew(reading.Process)
	case another, (reading.Restarted || other) && reading.Flags&store.FlagUnstableSource == 0:
		r.renew(reading.Process)
		return true
	case reading.Process != 0:
		r.process = reading.Process
	}
	return false
}

// elsewhere says whether another process is likely to be behind the address
// than at the last reading. A name that leads to several addresses by turns
// does not make a process of each answer.
func (r *Reader) elsewhere(page *survey.Page) bool {
	other := r.replaced || r.longAway(page)
	r.replaced, r.unreached = false, time.Time{}
	before := r.peer
	r.peer = page.Answer.Peer.Addr()
	if before.IsValid() && before != r.peer && time.Since(r.moved) >= askAgain {
		r.moved, other = time.Now(), true
	}
	return other
}

// longAway says that no connection came about for so long that the engine's
// last report is not fresh any more.
func (r *Reader) longAway(p *survey.Page) bool {
	return !r.unreached.IsZero() && time.Since(r.unreached)-p.Took() >= r.opts.StaleAfter
}

// another says that the page, or what the engine says of itself, is that of
// another engine than before. What it says of itself comes late: shortly after
// another process was found, it is of that one.
func (r *Reader) another(page *survey.Page) bool {
	before, now := r.kind, r.target.Facts
	r.kind = kind{page.Endpoint.Family, cmp.Or(now.Family, before.engine), cmp.Or(now.Version, before.version)}
	if before.page != "" && before.page != r.kind.page {
		return true
	}
	differs := func(a, b string) bool { return a != "" && a != b }
	return time.Since(r.renewed) >= askAgain && page.Reading.Process == 0 &&
		(differs(before.engine, r.kind.engine) || differs(before.version, r.kind.version))
}
