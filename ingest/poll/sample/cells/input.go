package cells

// Input is one number of a rank as a page says it.
type Input uint8

// The inputs: counts, then floats, then counters since the engine's start.
const (
	// Running are the requests that run.
	Running Input = iota
	// Waiting are the requests of all queues, Queued those that are not between
	// prefill and decode.
	Waiting
	Queued // see Waiting
	// WaitingTokens are the uncached prompt tokens of what waits.
	WaitingTokens
	Used // tokens
	// Total are the used and the queued tokens.
	Total
	Capacity   // tokens
	MaxRunning // requests
	// Bootstrap to Retracted are the queues between prefill and decode.
	Bootstrap
	Inflight    // see Bootstrap
	Prealloc    // see Bootstrap
	Transfer    // see Bootstrap
	Retracted   // see Bootstrap
	UsedBlocks  // of the KV cache
	MaxBlocks   // of the KV cache
	BlockTokens // tokens of one block
	Usage       // of the KV cache, 0 to 1
	GenRate     // generated tokens a second
	HitRate     // 0 to 1, or 0 to 100 on old pages
	Utilization // 0 to 1
	// SampleTime is when the engine took the sample, Unix seconds.
	SampleTime
	// Generated are tokens, counted in each step.
	Generated
	// Finished are generated tokens, counted when their request ends.
	Finished
	// Computed are prompt tokens that were not cached.
	Computed
	Prompt  // tokens, cached or not
	Cached  // prompt tokens
	Hits    // of the prefix cache
	Queries // of the prefix cache
	// Busy are microseconds of prefill.
	Busy
	// Iteration is the number of the step.
	Iteration

	// NumInputs is how many there are; FirstCounter is the first counter, and
	// NumCounters are how many of these there are.
	NumInputs
	FirstCounter = Generated
	NumCounters  = NumInputs - FirstCounter
)

// Kind says how the value of a row comes about.
type Kind uint8

// The kinds.
const (
	// Gauge: one series a rank is the value.
	Gauge Kind = iota
	// Counter: all series of a rank are added up.
	Counter
	// Info: a gauge computed from the labels of vLLM's cache_config_info.
	Info
	// Sleep: the label sleep_state of the series that is 1 is a word.
	Sleep
	// Start: when the process started, Unix seconds; for the whole page.
	Start
)

// Row says under which names a page has an input. It is a plain value and its
// names must not be changed.
type Row struct {
	To   Input
	Kind Kind
	// Names are without prefix and in the order of preference; a selector
	// "{label=value}" may follow. In JSON they are keys, "a.b" for the key b of
	// the object a.
	Names []string
}

// Window is how many pages back a process or a series is remembered.
const Window = 10

// MaxWord bounds the words that are taken from a page, in bytes.
const MaxWord = 64
