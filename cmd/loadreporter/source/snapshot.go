package source

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/loadplane/loadplane/ingest"
	"github.com/loadplane/loadplane/ingest/poll/reader"
	"github.com/loadplane/loadplane/registry"
	"github.com/loadplane/loadplane/store"
)

// Snapshot is what is known of the engine after a sample. It is immutable.
// Before the first sample all but Facts is zero.
type Snapshot struct {
	// Source names one life of the engine, as this process sees it; empty
	// before the first page that could be read. What was known of the life
	// before is dropped with it.
	Source string
	// Ranks are those of the last good sample, all of one page and sorted; nil
	// before the first. A rank that the page shows with an older time of the
	// engine than the page before did is the one of that page.
	Ranks []ingest.RankReport
	// Taken is when the request of the last good sample began; the zero Time
	// before the first. It has a monotonic reading.
	Taken time.Time
	// TimeUnixMs is the engine's wall clock at the last good sample, Unix
	// milliseconds; Flags say what is odd about it.
	TimeUnixMs ingest.Int
	Flags      store.Flag
	// Reason and Err say why the last sample told no load; empty after a good
	// one. ReasonAsleep says that the engine sleeps.
	Reason store.Reason
	Err    string
	// Refused says that the engine refused the connection of the last sample or
	// reset it, or that it sleeps: it serves nobody, and is not just slow.
	Refused bool
	// Facts are what the engine says of itself.
	Facts registry.Facts
}

// Life is what tells one life of the engine process from the next. It is a
// plain value.
type Life struct {
	// Source is its name.
	Source string
	// Process is when the process started, Unix seconds; 0 for unknown.
	Process float64
	// Taken is when the request of its last good sample began.
	Taken time.Time
}

// failed returns the snapshot after a sample that told no load.
func (s Snapshot) failed(reason store.Reason, err error) Snapshot {
	s.Reason, s.Err, s.Refused = reason, "", refused(err)
	if err != nil {
		s.Err = err.Error()
	}
	return s
}

// refused says that nobody listens, or that the process ended.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// of returns the snapshot as it is for a life of the engine; empty for an
// unknown one.
func (s Snapshot) of(source string) Snapshot {
	if source == "" || source == s.Source {
		return s
	}
	return Snapshot{Source: source, Facts: s.Facts}
}

// good returns the snapshot after a good sample whose request began at a time.
// Times of the engine that went back by more than a limit are those of a clock
// that was set.
func (s Snapshot) good(sample *reader.Result, taken time.Time, limit time.Duration) Snapshot {
	ranks, newer := merge(s.Ranks, sample.Report.Ranks, limit)
	s.Reason, s.Err, s.Refused = "", "", false
	if !newer {
		return s
	}
	s.Ranks, s.Taken = ranks, taken
	s.TimeUnixMs, s.Flags = sample.Report.TimeUnixMs, sample.Page.Reading.Flags
	return s
}

// merge copies the ranks of a page, but keeps those of the page before that are
// newer. It says whether anything is of this page.
func merge(before, page []ingest.RankReport, limit time.Duration) (ranks []ingest.RankReport, newer bool) {
	ranks = slices.Clone(page)
	for i := range ranks {
		j := slices.IndexFunc(before, func(r ingest.RankReport) bool { return r.Rank.DPRank == ranks[i].Rank.DPRank })
		if j >= 0 && older(ranks[i].TimeUnixMs, before[j].TimeUnixMs, limit) {
			ranks[i] = before[j]
			continue
		}
		newer = true
	}
	return ranks, newer
}

// older says that an engine's time is before another one, by a limit at most.
func older(t, than ingest.Int, limit time.Duration) bool {
	return t.Known && than.Known && t.Value < than.Value && than.Value-t.Value <= limit.Milliseconds()
}

// after returns the snapshot after a sample.
func (s *Source) after(before Snapshot, sample *reader.Result) Snapshot {
	now, page, report := before.of(sample.Source), sample.Page, sample.Report
	if report == nil {
		return now.failed(page.Reason, page.Err)
	}
	if report.Status == int32(store.StatusUnreachable) {
		now = now.failed(ReasonAsleep, errors.New(report.LastError))
		now.Refused = true
		return now
	}
	if _, refusal := ingest.Validate(report, ingest.Rules{MaxRanks: s.opts.MaxRanks}); refusal != nil {
		return now.failed(refusal.Reason, refusal)
	}
	taken := time.Now().Add(-s.opts.Clock.Now().Sub(page.Began))
	return now.good(sample, taken, s.opts.StaleAfter)
}
