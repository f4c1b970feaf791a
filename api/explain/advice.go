package explain

import "github.com/loadplane/loadplane/store"

// The advice that several reasons share.
const (
	adviseEngine    = "see the engine's own log, and ask it by hand: loadplane probe URL"
	advisePlane     = "a fault of the plane, which goes on: report it with the line in this plane's log"
	adviseReport    = "the engine sends what the protocol does not allow: compare its version with docs/engines.md"
	adviseReporter  = "see the reporter's log, and compare its version with docs/reporter.md"
	adviseIdentity  = "see which process sends to this plane under the worker's address, and stop it"
	adviseDuplicate = "list the origin once: drop one of the workers from discovery"
	adviseDialect   = "configure the dialect that the engine has, or leave it to auto: loadplane probe URL tells"
)

// advice says what to do about a reason; it has the words that a worker can be
// shown with.
var advice = map[string]string{
	"no_engine":          "nothing reports at this address: take it out of discovery, or start an engine there",
	"duplicate_origin":   adviseDuplicate,
	"engine_unreachable": adviseEngine,
	"suspended":          "wait for the next report; if it does not come, see the stream",
	"age":                "see whether the engine runs and can reach this plane, or be reached by it",
	"zero_capacity":      "wait until the engine has allocated its cache; if it stays so, see the engine's log",
	"engine_stale":       "the engine cannot sample its own schedulers: see the engine's log",
	"no_report":          "see whether the engine runs and can reach this plane, or be reached by it",

	"connect_failed":    "start the engine, or correct the URL of the worker; then see the network between",
	"egress_denied":     "the address is not one that the plane may dial: allow it with --egress-allow, or correct discovery",
	"credential":        "see the token file and the CA file of the worker: the plane could not read them, or has no address to tell",
	"loopback_address":  "set --report-address to an address of this plane that the engine can reach",
	"auth":              "give the token of the engine with --engine-token-file, or token_file of the worker",
	"unsupported":       adviseDialect,
	"dialect_mismatch":  adviseDialect,
	"conflict":          "the engine reports to this address under another of its names: list it by one URL, and let no two planes be told by one address",
	"redirected":        "give the worker's URL as the engine itself serves it; redirects are not followed",
	"rejected":          "the engine refuses the registration: see its log, and its version",
	"engine_error":      adviseEngine,
	"bad_answer":        adviseEngine,
	"ack_timeout":       "see that the port is that of the engine's load reporter: reporter_port of the worker",
	"reporter_stuck":    adviseEngine,
	"bad_endpoint":      "see the flags of the engine for its load sockets: docs/engines.md",
	"message_flood":     "update the engine, or give the worker another dialect",
	"session_panic":     advisePlane,
	"socket_panic":      advisePlane,
	"no_reporter_port":  "give the port of the engine's load reporter: reporter_port of the worker",
	"session_refused":   adviseEngine,
	"session_ended":     adviseEngine,
	"reporter_silent":   adviseEngine,
	"no_publisher":      "start the engine with --load-publish-endpoint, and see that the port can be reached",
	"rank_silent":       "see whether the scheduler of that rank runs",
	"ranks_missing":     "see whether every scheduler of the engine runs and publishes",
	"foreign_endpoint":  "let the engine publish on an address of its own host",
	"instance_changed":  "wait: the engine has just restarted",
	"registration_off":  "start the plane with --registration=open or known, if reporters may register themselves",
	"too_many_workers":  "raise --max-workers, or list fewer workers",
	"lease_held":        "stop one of the two reporters of the engine",
	"lease_expired":     adviseReporter,
	"unknown_lease":     adviseReporter,
	"bad_registration":  adviseReporter,
	"not_synced":        "wait; if it stays, see whether the host name of the worker resolves at this plane",
	"peer_mismatch":     "if the sender is right, add its network with peers= of the worker; else find out who sends",
	"role_mismatch":     "let the role that discovery says and the one that the engine says be the same",
	"bad_address":       "let the engine name itself by host and port: worker_addr",
	"retired":           adviseIdentity,
	"claim_changed":     adviseIdentity,
	"sequence_jump":     adviseIdentity,
	"unsteady":          "wait: the plane waits for the sender to keep still",
	"message_too_large": "the engine has more ranks or text than a message may carry: see the limits in docs/protocol.md",
	"too_many_ranks":    "the engine has more ranks than a message may carry: see the limits in docs/protocol.md",
	"report_flood":      "let the engine report less often",
	"report_rate":       "let the engine report less often",

	"not_ready":              "wait: the engine answers that it is still starting",
	"timeout":                "the engine answers too slowly: see its load, and the network between",
	"tls_failed":             "give the CA of the engine with --engine-ca, or correct the scheme of the URL",
	"answer_broken":          adviseEngine,
	"answer_too_large":       adviseEngine,
	"answer_compressed":      adviseEngine,
	"no_data":                adviseDialect,
	"no_load":                adviseDialect,
	"not_recognised":         adviseDialect,
	"html_page":              adviseDialect,
	"json_page":              adviseDialect,
	"text_page":              adviseDialect,
	"bad_json":               "read the page by hand with curl: a proxy may cut it",
	"unsupported_schema":     "compare the engine's version with docs/engines.md; report the page if it should be read",
	"several_models":         "name one model for the worker",
	"too_many_series":        "turn off the engine's metrics by request or by adapter",
	"reader_panic":           advisePlane,
	"malformed":              adviseReport,
	"string_too_long":        adviseReport,
	"bad_status":             adviseReport,
	"bad_time":               adviseReport,
	"unreachable_with_ranks": adviseReport,
	"missing_error":          adviseReport,
	"no_ranks":               adviseReport,
	"bad_rank":               adviseReport,
	"duplicate_rank":         adviseReport,
	"count_out_of_range":     adviseReport,
	"float_out_of_range":     adviseReport,
	"used_over_capacity":     adviseReport,
	"running_over_maximum":   adviseReport,
	"missing_source":         adviseReport,
	"missing_worker":         adviseReport,
	"bad_role":               adviseReport,
	"identity_too_long":      adviseReport,
	"too_many_refused":       adviseReport,
	"unexpected_frame":       adviseReport,
}

// adviceFor says what to do about a reason.
func adviceFor(r store.Reason) string {
	if a, known := advice[string(r)]; known {
		return a
	}
	return adviseEngine
}

// flagAdvice says what to do about a flag.
var flagAdvice = map[string]string{
	"inconsistent":    "the engine works and reports no load: see its version, or use another dialect",
	"suspect":         "the values stand still while requests run: see whether a scheduler of the engine hangs",
	"ratio_above_one": "the engine reports a ratio above 1, which is shown as it is: see its version",
	"stalled":         "requests wait at a rank that runs none: see whether its scheduler hangs",
	"frozen_series":   "old processes leave values on the engine's page: clear its multiprocess directory at start",
	"unstable_source": "several processes answer at the address: name each engine by an address of its own",
	"ranks_unknown":   "the engine's page does not show every rank: use a dialect that does, such as push or loadstat",
}
