package store

import "time"

// Role is the part of a request's life that a worker serves. Its numbers are
// those of the wire.
type Role uint8

// The roles.
const (
	RoleUnspecified Role = iota
	RoleRegular
	RolePrefill
	RoleDecode
)

// String returns the word that JSON and flags use.
func (r Role) String() string { return word(r, "", "plain", "prefill", "decode") }

// Status is the engine's judgement of its own report. Its numbers are those
// of the wire.
type Status uint8

// The statuses.
const (
	StatusUnspecified Status = iota
	StatusHealthy
	StatusStale
	StatusUnreachable
)

// String returns the status as a word.
func (s Status) String() string { return word(s, "", "healthy", "stale", "unreachable") }

// Freshness is the plane's judgement of what it knows of a worker. Its
// numbers are those of the wire.
type Freshness uint8

// The judgements.
const (
	FreshnessUnspecified Freshness = iota
	Missing
	Fresh
	Stale
	Unreachable
)

// String returns the word that JSON and metrics use.
func (f Freshness) String() string { return word(f, "", "missing", "fresh", "stale", "unreachable") }

// Dialect is the way in which load reaches the plane. Its numbers are those
// of the wire.
type Dialect uint8

// The dialects. DialectUnspecified is "auto": not decided yet.
const (
	DialectUnspecified Dialect = iota
	DialectPush
	DialectMonitor
	DialectLoadstat
	DialectPoll
	DialectNative
	DialectNone
)

// String returns the word that flags use.
func (d Dialect) String() string {
	return word(d, "auto", "push", "monitor", "loadstat", "poll", "native", "none")
}

func word[T ~uint8](v T, words ...string) string {
	if int(v) < len(words) {
		return words[v]
	}
	return "unknown"
}

// Worker is what discovery says of one engine endpoint. It is immutable once
// handed to the store.
type Worker struct {
	// ID names the worker: its normalised URL, or what discovery calls it.
	ID string
	// URL is the base URL of the engine as it was discovered.
	URL string
	// Origin is the normalised host:port of URL, an IPv6 host in brackets.
	Origin string
	Role   Role
	// Models are the names of the served models, sorted, without duplicates.
	Models []string
	// Zone is empty where it is not known.
	Zone   string
	Labels map[string]string
	// Draining workers must get no new work.
	Draining bool
	// Dialect is the one in use; DialectUnspecified until it is found out.
	Dialect Dialect
	// Interval is the one at which reports are asked for.
	Interval time.Duration
	// DiscoveredBy names the source, such as "flag" or "file", or several of
	// them, such as "file+kubernetes".
	DiscoveredBy string
	// Duplicate says that another worker with a lower ID has the same origin.
	Duplicate bool
	// NoEngine says that nothing that reports runs there, as discovery says.
	NoEngine bool
}

// Hearable says whether the worker is expected to send load.
func (w *Worker) Hearable() bool { return w.Dialect != DialectNone && !w.Duplicate && !w.NoEngine }

// SourceStatus is how a source of discovery is. It is a plain value.
type SourceStatus struct {
	// Name is the source's, such as "file" or "kubernetes".
	Name string
	// Synced says that the source delivered a list since the start.
	Synced bool
	// Workers is the length of the list in force; 0 without one.
	Workers int
	// Listed is the receipt of that list; 0 for never.
	Listed Instant
	// Error says why there is no new list; empty while there is.
	Error string
}

// Stream is the way in which a worker is bound to an engine process: a row of
// the streams table. It is immutable.
type Stream struct {
	// Row is the worker's row number.
	Row uint32
	// Source is the current source instance; empty until the first binding.
	Source string
	// Retired are the instances that were superseded, oldest first.
	Retired []string
	// Peer is the address of the bound connection; empty without one.
	Peer string
	// Generation counts the bindings of the worker.
	Generation uint64
}

// Diagnostics is what operators see of the way to a worker: a row of the
// diagnostics table. It has no versions.
type Diagnostics struct {
	// Row is the worker's row number.
	Row uint32
	// Registration is a state word of the registry, such as "registered".
	Registration string
	// RegistrationError is the text of the last failed call; empty after a
	// good one.
	RegistrationError string
	// RegistrationStatus is the HTTP status of the last call; 0 without one.
	RegistrationStatus int
	// NextRegistration is when the next call, or the next renewal by whoever
	// renews, is due; 0 for never.
	NextRegistration Instant
	// Refused counts refused reports and streams since discovery.
	Refused uint64
	// LastRefusal is the reason of the last one; empty for none.
	LastRefusal Reason
	// LastRefusalDetail says it for operators.
	LastRefusalDetail string
	// Engine is the kind of engine, such as "vllm", as far as it told; empty
	// for unknown.
	Engine string
	// EngineVersion is the engine's own version text; empty for unknown.
	EngineVersion string
	// DialectWhy says for people why the dialect in force was chosen, or why
	// each one was not.
	DialectWhy string
	// PollInterval is the interval in force where the plane asks; 0 where the
	// engine reports by itself.
	PollInterval time.Duration
	// LeaseExpires is when the lease of a registered reporter ends unless it is
	// renewed; 0 where there is none.
	LeaseExpires Instant
	// Happenings are what happened to the worker last, oldest first, at most 32.
	// They must not be changed.
	Happenings []Happening
}
