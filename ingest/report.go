package ingest

import "github.com/loadplane/loadplane/store"

// Limits of a report.
const (
	// MaxMessageBytes is the size of the largest message.
	MaxMessageBytes = 64 << 10
	// DefaultMaxRanks and HardMaxRanks bound the ranks of a report: by
	// default, and whatever is configured. Rank numbers are below HardMaxRanks.
	DefaultMaxRanks = 512
	HardMaxRanks    = 4096
	// MaxSourceBytes is the length of the longest source instance.
	MaxSourceBytes = 128
	// MaxAddrBytes is the length of the longest worker address.
	MaxAddrBytes = 256
	// MaxModelBytes is the length of the longest model name.
	MaxModelBytes = 256
	// MaxZoneBytes is the length of the longest zone name.
	MaxZoneBytes = 64
	// MaxErrorBytes is where the error text is cut.
	MaxErrorBytes = 1024
	// MaxCount is the largest count.
	MaxCount = 1 << 50
	// MaxFloat is the largest float.
	MaxFloat = 1e12
	// MaxRatio is the largest ratio.
	MaxRatio = 4
)

// Int is an integer that may be unknown.
type Int struct {
	Value int64
	Known bool
}

// Known returns a known integer.
func Known(v int64) Int { return Int{Value: v, Known: true} }

// or returns the value, or -1 where it is unknown.
func (i Int) or() int64 {
	if i.Known {
		return i.Value
	}
	return -1
}

// RankReport is one rank as it was decoded; nothing of it was checked.
type RankReport struct {
	// Rank has the number and the values. What was not set is unknown.
	Rank store.Rank
	// TimeUnixMs is the engine's wall clock at the sample, Unix milliseconds.
	TimeUnixMs Int
	// PrefillUncachedTokens, PrefillBusyUs and GeneratedTokens count since the
	// engine's start.
	PrefillUncachedTokens, PrefillBusyUs, GeneratedTokens Int
}

// Report is a report as a dialect decoded it; nothing of it was checked.
// Decoders own one per stream and fill it again and again. Its strings are
// ordinary Go strings, which must not change. It is for one goroutine.
type Report struct {
	// Source is the instance of the engine process.
	Source string
	// Sequence rises within one source.
	Sequence uint64
	// Claimed says that the message names its worker.
	Claimed bool
	// Addr is the address of the worker as the message claims it.
	Addr string
	// Role is the number of the claimed role on the wire.
	Role int32
	// Model and Zone are only checked: discovery says what they are.
	Model, Zone string
	// Status is the number of the status on the wire.
	Status int32
	// TimeUnixMs is the engine's wall clock at the report, Unix milliseconds.
	TimeUnixMs Int
	// LastError is the text of the engine's last failure; empty for none.
	LastError string
	// Ranks are in the order of the message.
	Ranks []RankReport
	// Received and ReceivedUnixMs are when the plane read the message.
	Received       store.Instant
	ReceivedUnixMs int64
}

// FillPrefill is for dialects in which a prefill throughput of zero is not
// sent. Zero is unknown until the source has sent another value once: in this
// report, or before, which is what seen says. From then on FillPrefill sets
// a known zero on every rank that has none. It returns the next seen.
func (r *Report) FillPrefill(seen bool) bool {
	for i := range r.Ranks {
		seen = seen || r.Ranks[i].Rank.Has(store.PrefillThroughput)
	}
	if !seen {
		return false
	}
	for i := range r.Ranks {
		if rank := &r.Ranks[i].Rank; !rank.Has(store.PrefillThroughput) {
			rank.SetFloat(store.PrefillThroughput, 0)
		}
	}
	return true
}
