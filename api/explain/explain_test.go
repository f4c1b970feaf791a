package explain

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	pb "github.com/loadplane/loadplane/proto/loadplane/v1"
	"github.com/loadplane/loadplane/store"
	"google.golang.org/protobuf/proto"
)

const (
	now   = store.Instant(time.Hour)
	stale = 3 * time.Second
)

// healthy is a worker of which nothing is wrong.
func healthy() *Facts {
	received := now.Add(-500 * time.Millisecond)
	ranks := []store.Rank{full(0, 0.25), full(1, 0.75)}
	w := &store.Worker{
		ID: "http://10.0.0.1:30000", URL: "http://10.0.0.1:30000", Origin: "10.0.0.1:30000", Role: store.RoleRegular,
		Models: []string{"m"}, Dialect: store.DialectPush, Interval: time.Second, DiscoveredBy: "file",
	}
	return &Facts{
		Entry: &store.Entry{
			Row: 1, Worker: w, Freshness: store.Fresh, Ranks: ranks, Aggregate: store.Summarize(ranks),
			Load: &store.Load{Status: store.StatusHealthy, Ranks: ranks},
		},
		Live: &store.Live{
			Row: 1, Sequence: 42, Received: received, ValidUntil: received.Add(stale),
			ReceivedUnixMs: 1_000_000, ReportUnixMs: 1_000_025, OldestSampleUnixMs: 999_925,
		},
		Stream: store.Stream{Source: "s1", Peer: "10.0.0.1:5555", Generation: 1},
		Diagnostics: store.Diagnostics{
			Registration: "registered", RegistrationStatus: 200, NextRegistration: now.Add(4 * time.Second),
			Engine: "sglang", EngineVersion: "0.5.19", DialectWhy: "push: configured",
		},
		Plane: Plane{Now: now, StaleAfter: stale, Sources: []store.SourceStatus{{Name: "file", Synced: true}, {Name: "kubernetes"}}},
	}
}

// full is a rank with every core field.
func full(dp int32, usage float64) store.Rank {
	r := store.Rank{DPRank: dp}
	for f, field := range store.Fields {
		switch {
		case !field.Core:
		case field.Float:
			r.SetFloat(store.Field(f), usage)
		default:
			r.SetCount(store.Field(f), 10)
		}
	}
	return r
}

// silent is a worker that was never heard.
func silent(f *Facts) {
	f.Entry.Load, f.Entry.Ranks, f.Entry.Aggregate, f.Live = nil, nil, nil, nil
	f.Entry.Freshness, f.Entry.Reason = store.Missing, store.ReasonNoReport
	f.Stream = store.Stream{}
}

// old is one whose last report is too old.
func old(f *Facts) {
	f.Live.Received = now.Add(-5 * time.Second)
	f.Live.ValidUntil = f.Live.Received.Add(stale)
	f.Entry.Freshness, f.Entry.Reason = store.Stale, store.ReasonAge
}

func after(before, change func(*Facts)) func(*Facts) {
	return func(f *Facts) { before(f); change(f) }
}

func happening(e store.Event, r store.Reason, ago time.Duration) store.Happening {
	return store.Happening{At: now.Add(-ago), Event: e, Reason: r, Count: 1}
}

// line is a check as one text: verdict, value, limit, reason.
func line(c *pb.Check) string {
	text := strings.TrimPrefix(c.GetVerdict().String(), "VERDICT_") + " " + c.GetValue()
	if c.Limit != nil {
		text += " [" + c.GetLimit() + "]"
	}
	if c.Reason != nil {
		text += " <" + c.GetReason() + ">"
	}
	return text
}

func find(checks []*pb.Check, name string) *pb.Check {
	for _, c := range checks {
		if c.GetName() == name {
			return c
		}
	}
	return nil
}

func TestChecks(t *testing.T) {
	same := func(*Facts) {}
	for _, c := range []struct {
		name   string
		change func(*Facts)
		check  string
		want   string // empty: the check is not there
	}{
		{"plane", same, "plane", "OK all workers that are expected were heard or given up"},
		{"warming", func(f *Facts) { f.Plane.Warming = true }, "plane", "WARN warming: not all workers that are expected were heard"},

		{"discovered", same, "discovered_by", "OK file"},
		{"source fails", func(f *Facts) { f.Plane.Sources[0].Error = "no such file" }, "discovered_by", "WARN file; source file: no such file"},
		{"other source fails", func(f *Facts) { f.Plane.Sources[1].Error = "forbidden" }, "discovered_by", "OK file"},
		{"one of two sources fails", func(f *Facts) { f.Entry.Worker.DiscoveredBy = "file+kubernetes"; f.Plane.Sources[1].Error = "e" }, "discovered_by", "WARN file+kubernetes; source kubernetes: e"},
		{"duplicate", after(silent, func(f *Facts) { f.Entry.Worker.Duplicate = true }), "discovered_by", "FAIL file; another worker with a lower id has the origin 10.0.0.1:30000 <duplicate_origin>"},
		{"no engine as discovery says", after(silent, func(f *Facts) { f.Entry.Worker.NoEngine = true }), "discovered_by", "FAIL file <no_engine>"},
		{"no engine as found out", after(silent, func(f *Facts) { f.Entry.Reason = store.ReasonNoEngine }), "discovered_by", "FAIL file <no_engine>"},

		{"no engine there once, heard now", func(f *Facts) { f.Entry.Worker.NoEngine = true }, "discovered_by", "OK file"},
		{"duplicate that was heard", func(f *Facts) { f.Entry.Worker.Duplicate = true }, "discovered_by", "FAIL file; another worker with a lower id has the origin 10.0.0.1:30000 <duplicate_origin>"},

		{"at work", same, "draining", "OK no"},
		{"draining", func(f *Facts) { f.Entry.Worker.Draining = true }, "draining", "WARN yes: routers send it no new work"},
		{"engine", same, "engine", "INFO sglang 0.5.19"},
		{"engine unknown", func(f *Facts) { f.Diagnostics.Engine, f.Diagnostics.EngineVersion = "", "" }, "engine", "UNKNOWN it was not told yet"},

		{"dialect configured", same, "dialect", "OK push (configured)"},
		{"dialect found", func(f *Facts) { f.Diagnostics.DialectWhy = "push: offered (405)" }, "dialect", "OK push (auto): push: offered (405)"},
		{"dialect none", func(f *Facts) { silent(f); f.Entry.Worker.Dialect = store.DialectNone }, "dialect", "WARN none (configured): the worker is only listed, nothing is sent to it"},
		{"none is not heard", func(f *Facts) { silent(f); f.Entry.Worker.Dialect = store.DialectNone }, "last_report", ""},
		{"none is not fresh", func(f *Facts) { silent(f); f.Entry.Worker.Dialect = store.DialectNone }, "freshness", "INFO missing, no report [fresh] <no_report>"},
		{"being asked", func(f *Facts) {
			silent(f)
			f.Entry.Worker.Dialect, f.Diagnostics.DialectWhy, f.Diagnostics.Registration = 0, "", "probing"
		}, "dialect", "UNKNOWN auto, none in force yet: the engine is being asked"},
		{"to be asked", func(f *Facts) {
			silent(f)
			f.Entry.Worker.Dialect, f.Diagnostics.DialectWhy, f.Diagnostics.Registration = 0, "", ""
		}, "dialect", "UNKNOWN auto, none in force yet: the engine is being asked"},
		{"waits to be asked", func(f *Facts) {
			silent(f)
			f.Entry.Worker.Dialect, f.Diagnostics.DialectWhy, f.Diagnostics.Registration = 0, "", "pending"
		}, "dialect", "UNKNOWN auto, none in force yet: the engine is being asked"},
		{"no dialect works", func(f *Facts) {
			silent(f)
			f.Entry.Worker.Dialect, f.Diagnostics.DialectWhy, f.Diagnostics.Registration = 0, "poll: auth (401)", "parked"
			f.Diagnostics.Happenings = []store.Happening{happening(store.EventCallFailed, "auth", time.Second)}
		}, "dialect", "FAIL auto, none in force yet: poll: auth (401) <auth>"},

		{"registered", same, "registration", "OK registered, HTTP 200"},
		{"not begun", func(f *Facts) { f.Diagnostics.Registration, f.Diagnostics.RegistrationStatus = "", 0 }, "registration", "UNKNOWN not begun"},
		{"probing", func(f *Facts) { f.Diagnostics.Registration, f.Diagnostics.RegistrationStatus = "probing", 0 }, "registration", "UNKNOWN probing"},
		{"pending", func(f *Facts) { f.Diagnostics.Registration, f.Diagnostics.RegistrationStatus = "pending", 0 }, "registration", "UNKNOWN pending"},
		{"conflict", after(old, func(f *Facts) { f.Diagnostics.Registration, f.Diagnostics.RegistrationStatus = "conflict", 409 }), "registration", "FAIL conflict, HTTP 409"},
		{"polls fail", func(f *Facts) { f.Diagnostics.Registration, f.Diagnostics.RegistrationStatus = "failing", 500 }, "registration", "WARN failing, HTTP 500"},
		{"call failed, report over and not committed", func(f *Facts) {
			f.Live.ValidUntil, f.Diagnostics.Registration, f.Diagnostics.RegistrationStatus = now, "retrying", 0
		}, "registration", "FAIL retrying"},
		{"call failed, machine slept", func(f *Facts) {
			f.Entry.Freshness, f.Entry.Reason, f.Diagnostics.Registration, f.Diagnostics.RegistrationStatus = store.Stale, store.ReasonSuspended, "retrying", 0
		}, "registration", "FAIL retrying"},
		{"one call failed", func(f *Facts) {
			f.Diagnostics.Registration, f.Diagnostics.RegistrationStatus, f.Diagnostics.RegistrationError = "retrying", 503, "busy"
			f.Diagnostics.Happenings = []store.Happening{happening(store.EventCallFailed, "engine_error", time.Second), happening(store.EventFresh, "", 0)}
		}, "registration", "WARN retrying, HTTP 503: busy <engine_error>"},
		{"calls fail", after(old, func(f *Facts) {
			f.Diagnostics.Registration, f.Diagnostics.RegistrationStatus, f.Diagnostics.RegistrationError = "parked", 401, "no token"
			f.Diagnostics.Happenings = []store.Happening{
				happening(store.EventCallFailed, "connect_failed", 2*time.Second), happening(store.EventCallFailed, "auth", time.Second),
			}
		}), "registration", "FAIL parked, HTTP 401: no token <auth>"},
		{"next call", same, "next_call", "INFO in 4s"},
		{"next call is due", func(f *Facts) { f.Diagnostics.NextRegistration = now.Add(-time.Second) }, "next_call", "INFO in 0s"},
		{"no next call", func(f *Facts) { f.Diagnostics.NextRegistration = 0 }, "next_call", ""},

		{"no lease", same, "lease", ""},
		{"lease", func(f *Facts) { f.Diagnostics.LeaseExpires = now.Add(12 * time.Second) }, "lease", "OK ends in 12s [renewed before it ends]"},
		{"lease over", after(old, func(f *Facts) { f.Diagnostics.LeaseExpires = now.Add(-2 * time.Second) }), "lease", "FAIL ended 2s ago [renewed before it ends]"},
		{"lease ends now", after(old, func(f *Facts) { f.Diagnostics.LeaseExpires = now }), "lease", "FAIL ended 0s ago [renewed before it ends]"},
		{"nobody holds the lease", after(silent, func(f *Facts) { f.Entry.Worker.Dialect = store.DialectNative }), "lease", "FAIL no reporter holds one [renewed before it ends]"},

		{"interval", same, "interval", "INFO 1s"},
		{"polled", func(f *Facts) { f.Diagnostics.PollInterval = time.Second }, "interval", "OK 1s in force [1s as asked for]"},
		{"polled slowly", func(f *Facts) { f.Diagnostics.PollInterval = 1500 * time.Millisecond }, "interval", "WARN 1.5s in force [1s as asked for]"},

		{"stream", same, "stream", "OK source s1, peer 10.0.0.1:5555"},
		{"never bound", silent, "stream", "UNKNOWN none was bound yet"},
		{"stream ended, load fresh", func(f *Facts) { f.Stream.Peer = "" }, "stream", "WARN none is bound; the last was of source s1"},
		{"stream ended", after(old, func(f *Facts) { f.Stream.Peer = "" }), "stream", "FAIL none is bound; the last was of source s1"},
		{"one life", same, "instances", "OK no other instance was heard"},
		{"earlier lives", func(f *Facts) { f.Stream.Retired = []string{"a", "b"} }, "instances", "INFO 2 earlier, last b"},
		{"restarts", func(f *Facts) {
			f.Stream.Retired = []string{"a"}
			h := happening(store.EventSourceChanged, "", time.Minute)
			h.Count = 2
			f.Diagnostics.Happenings = []store.Happening{h, happening(store.EventSourceChanged, "", time.Second)}
		}, "instances", "WARN 1 earlier, last a; 3 changes in 10m [below 3 in 10m]"},
		{"restarts long ago", func(f *Facts) {
			h := happening(store.EventSourceChanged, "", 11*time.Minute)
			h.Count = 9
			f.Diagnostics.Happenings = []store.Happening{h}
		}, "instances", "OK no other instance was heard"},

		{"no refusal", same, "refusals", "OK 0"},
		{"refused long ago", refusedBefore(2 * time.Minute), "refusals", "INFO 7, last peer_mismatch, 2m ago: seen 10.9.9.9"},
		{"refused lately", refusedBefore(10 * time.Second), "refusals", "WARN 7, last peer_mismatch, 10s ago: seen 10.9.9.9 <peer_mismatch>"},
		{"refused a minute ago", refusedBefore(time.Minute), "refusals", "INFO 7, last peer_mismatch, 1m ago: seen 10.9.9.9"},
		{"refused, and nothing kept of it", func(f *Facts) {
			f.Diagnostics.Refused, f.Diagnostics.LastRefusal, f.Plane.Now = 7, "peer_mismatch", now
		}, "refusals", "INFO 7, last peer_mismatch"},
		{"refused, load fresh from before", func(f *Facts) { refusedBefore(100 * time.Millisecond)(f) }, "refusals", "WARN 7, last peer_mismatch, 100ms ago: seen 10.9.9.9 <peer_mismatch>"},
		{"refused since the last report", after(old, refusedBefore(time.Second)), "refusals", "FAIL 7, last peer_mismatch, 1s ago: seen 10.9.9.9 <peer_mismatch>"},
		{"refused before the last report", after(old, refusedBefore(2*time.Minute)), "refusals", "INFO 7, last peer_mismatch, 2m ago: seen 10.9.9.9"},
		{"refused and never heard", after(silent, refusedBefore(2*time.Minute)), "refusals", "FAIL 7, last peer_mismatch, 2m ago: seen 10.9.9.9 <peer_mismatch>"},

		{"heard", same, "last_report", "OK sequence 42, 500ms ago [below 3s]"},
		{"reports overdue", func(f *Facts) { f.Live.Received = now.Add(-2500 * time.Millisecond) }, "last_report", "WARN sequence 42, 2.5s ago [below 3s]"},
		{"report of the last interval but one", func(f *Facts) {
			f.Live.Received, f.Entry.Worker.Interval = now.Add(-2500*time.Millisecond), 2*time.Second
		}, "last_report", "OK sequence 42, 2.5s ago [below 3s]"},
		{"short interval", func(f *Facts) { f.Entry.Worker.Interval = 100 * time.Millisecond }, "last_report", "OK sequence 42, 500ms ago [below 3s]"},
		{"report as old as it may be", func(f *Facts) { f.Live.Received = now.Add(-stale) }, "last_report", "FAIL sequence 42, 3s ago [below 3s] <age>"},
		{"report too old", old, "last_report", "FAIL sequence 42, 5s ago [below 3s] <age>"},
		{"never heard", silent, "last_report", "FAIL none was accepted yet [below 3s] <no_report>"},
		{"not heard yet", after(silent, func(f *Facts) { f.Plane.Warming = true }), "last_report", "UNKNOWN none was accepted yet [below 3s] <no_report>"},
		{"valid", same, "validity", "OK another 2.5s [above 0]"},
		{"not valid", old, "validity", "FAIL ended 2s ago [above 0] <age>"},
		{"valid until now", func(f *Facts) { f.Live.ValidUntil = now }, "validity", "FAIL ended 0s ago [above 0] <age>"},
		{"slept", func(f *Facts) { f.Entry.Freshness, f.Entry.Reason = store.Stale, store.ReasonSuspended }, "validity", "FAIL the machine slept since the last report [above 0] <suspended>"},
		{"nothing to be valid", silent, "validity", "UNKNOWN nothing was heard [above 0]"},

		{"healthy", same, "status", "OK healthy [healthy]"},
		{"engine is stale", func(f *Facts) { f.Entry.Load.Status = store.StatusStale }, "status", "FAIL stale [healthy] <engine_stale>"},
		{"engine cannot be sampled", func(f *Facts) { f.Entry.Load.Status = store.StatusUnreachable; f.Live.LastError = "gone" }, "status", "FAIL unreachable, last error: gone [healthy] <engine_unreachable>"},
		{"never heard has no status", silent, "status", ""},

		{"clock", same, "clock_skew", "OK +25 ms [within 1s]"},
		{"clock ahead", func(f *Facts) { f.Live.ReportUnixMs = 1_001_001 }, "clock_skew", "WARN +1001 ms [within 1s]"},
		{"clock behind", func(f *Facts) { f.Live.ReportUnixMs = 998_999 }, "clock_skew", "WARN -1001 ms [within 1s]"},
		{"long interval", func(f *Facts) { f.Live.ReportUnixMs, f.Entry.Worker.Interval = 1_001_001, 2*time.Second }, "clock_skew", "OK +1001 ms [within 2s]"},
		{"clock at the end of time", func(f *Facts) { f.Live.ReportUnixMs = math.MaxInt64 }, "clock_skew", "WARN +9223372036853775807 ms [within 1s]"},
		{"clock unknown", func(f *Facts) { f.Live.ReportUnixMs = -1 }, "clock_skew", "UNKNOWN the engine's clock is not told [within 1s]"},
		{"samples", same, "sample_age", "OK 100ms at the report [below 3s]"},
		{"old samples", func(f *Facts) { f.Live.OldestSampleUnixMs = 997_025 }, "sample_age", "WARN 3s at the report [below 3s]"},
		{"ancient samples", func(f *Facts) { f.Live.OldestSampleUnixMs, f.Live.ReportUnixMs = 0, math.MaxInt64 }, "sample_age", "WARN above a day [below 3s]"},
		{"samples of the future", func(f *Facts) { f.Live.OldestSampleUnixMs = 2_000_000 }, "sample_age", "OK 0s at the report [below 3s]"},
		{"report time unknown", func(f *Facts) { f.Live.ReportUnixMs = -1 }, "sample_age", "UNKNOWN the time of the samples is not told [below 3s]"},
		{"sample time unknown", func(f *Facts) { f.Live.OldestSampleUnixMs = -1 }, "sample_age", "UNKNOWN the time of the samples is not told [below 3s]"},

		{"fresh", same, "freshness", "OK fresh [fresh]"},
		{"stale", old, "freshness", "FAIL stale, age [fresh] <age>"},
		{"over and not committed", func(f *Facts) { f.Live.ValidUntil = now }, "freshness", "FAIL stale, age [fresh] <age>"},
		{"stale while warming", after(old, func(f *Facts) { f.Plane.Warming = true }), "freshness", "FAIL stale, age [fresh] <age>"},
		{"missing", silent, "freshness", "FAIL missing, no report [fresh] <no_report>"},
		{"missing while warming", after(silent, func(f *Facts) { f.Plane.Warming = true }), "freshness", "UNKNOWN missing, no report [fresh] <no_report>"},

		{"ranks", same, "ranks", "OK 2"},
		{"no ranks", silent, "ranks", "UNKNOWN none are known"},
		{"partial", func(f *Facts) { lose(f, 1, store.NumUsedTokens); f.Entry.Partial = true }, "ranks", "WARN 2, partial: num_used_tokens on rank 1"},
		{"partial everywhere", func(f *Facts) {
			lose(f, 0, store.Utilization)
			lose(f, 1, store.Utilization)
			f.Entry.Partial = true
		}, "ranks", "INFO 2, partial: utilization on all ranks"},
		{"room", same, "capacity", "OK every rank that tells has room [above 0]"},
		{"no room", func(f *Facts) { f.Entry.Ranks[1].SetCount(store.MaxTotalNumTokens, 0) }, "capacity", "FAIL 0 tokens or 0 requests on rank 1 [above 0] <zero_capacity>"},
		{"no room for requests", func(f *Facts) { f.Entry.Ranks[1].SetCount(store.MaxRunningRequests, 0) }, "capacity", "FAIL 0 tokens or 0 requests on rank 1 [above 0] <zero_capacity>"},
		{"room for tokens alone", func(f *Facts) {
			f.Entry.Ranks = []store.Rank{{}}
			f.Entry.Ranks[0].SetCount(store.MaxTotalNumTokens, 1)
		}, "capacity", "OK every rank that tells has room [above 0]"},
		{"room for requests alone", func(f *Facts) {
			f.Entry.Ranks = []store.Rank{{}}
			f.Entry.Ranks[0].SetCount(store.MaxRunningRequests, 1)
		}, "capacity", "OK every rank that tells has room [above 0]"},
		{"room unknown", func(f *Facts) { f.Entry.Ranks = []store.Rank{{}} }, "capacity", "UNKNOWN no rank tells its capacity [above 0]"},
		{"no flag", same, "flags", "OK none"},
		{"flags", func(f *Facts) { f.Entry.Flags = store.FlagSuspect | store.FlagInconsistent }, "flags", "WARN inconsistent, suspect"},
		{"hottest", same, "hottest_rank", "INFO rank 1 by token_usage, 75%"},
		{"hottest by requests", func(f *Facts) {
			f.Entry.Aggregate.HottestRank, f.Entry.Aggregate.HottestBy = 3, "total_requests"
		}, "hottest_rank", "INFO rank 3 by total_requests"},
		{"hottest unknown", func(f *Facts) { f.Entry.Aggregate = &store.Aggregate{} }, "hottest_rank", ""},
		{"imbalance", same, "imbalance", "INFO 1.50 of token usage, 1.00 of requests (largest over mean)"},
		{"imbalance unknown", func(f *Facts) { f.Entry.Aggregate = &store.Aggregate{} }, "imbalance", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := healthy()
			c.change(f)
			checks := Checks(*f)
			check := find(checks, c.check)
			if got := check; c.want == "" && got != nil || c.want != "" && (got == nil || line(got) != c.want) {
				t.Errorf("%s\n got %v\nwant %s", c.check, got, c.want)
			}
			for _, one := range checks {
				if bad := one.GetVerdict() == fail || one.GetVerdict() == warn; bad && one.GetAdvice() == "" {
					t.Errorf("%s has no advice", one.GetName())
				}
			}
		})
	}
}

func refusedBefore(ago time.Duration) func(*Facts) {
	return func(f *Facts) {
		f.Diagnostics.Refused, f.Diagnostics.LastRefusal, f.Diagnostics.LastRefusalDetail = 7, "peer_mismatch", "seen 10.9.9.9"
		f.Diagnostics.Happenings = []store.Happening{happening(store.EventRefused, "peer_mismatch", ago)}
	}
}

// lose takes a field from a rank.
func lose(f *Facts, i int, lost store.Field) {
	r := store.Rank{DPRank: f.Entry.Ranks[i].DPRank}
	for field, what := range store.Fields {
		if field := store.Field(field); !what.Core || field == lost {
			continue
		} else if v, _ := f.Entry.Ranks[i].Count(field); !what.Float {
			r.SetCount(field, v)
		} else {
			r.SetFloat(field, math.Float64frombits(uint64(v)))
		}
	}
	f.Entry.Ranks[i] = r
}

func TestSummary(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Facts)
		want   string
	}{
		{"healthy", func(*Facts) {}, "Nothing is wrong: fresh."},
		{"draining", func(f *Facts) { f.Entry.Worker.Draining = true }, "Nothing fails (fresh), but draining: yes: routers send it no new work. If it shall work again: "},
		{"the first failure decides", after(old, func(f *Facts) {
			f.Entry.Worker.Draining = true
			f.Diagnostics.Registration, f.Diagnostics.RegistrationStatus = "retrying", 0
			f.Diagnostics.RegistrationError = "connection refused"
			f.Diagnostics.Happenings = []store.Happening{happening(store.EventCallFailed, "connect_failed", time.Second)}
		}), "Stale, age; registration: retrying: connection refused. Start the engine, or correct the URL of the worker; " +
			"then see the network between. 3 more checks fail, which may follow from it."},
		{"a text that ends with a stop", after(old, func(f *Facts) {
			f.Diagnostics.Registration, f.Diagnostics.RegistrationStatus, f.Diagnostics.RegistrationError = "retrying", 0, "refused."
		}), "Stale, age; registration: retrying: refused. See "},
		{"two warnings", func(f *Facts) {
			f.Entry.Worker.Draining = true
			f.Diagnostics.PollInterval = time.Minute
		}, "Nothing fails (fresh), but draining: yes: routers send it no new work. If it shall work again: loadplane workers drain ID --undo, " +
			"or undo it where discovery has it from. One more check warns, which may follow from it."},
		{"only listed", func(f *Facts) { silent(f); f.Entry.Worker.Dialect = store.DialectNone }, "Nothing fails (missing, no report), but dialect: none (configured): "},
		{"two failures", func(f *Facts) {
			f.Entry.Load.Status, f.Entry.Freshness, f.Entry.Reason = store.StatusStale, store.Stale, store.ReasonEngineStale
		}, "Stale, engine stale; status: stale. The engine cannot sample its own schedulers: see the engine's log. One more check fails, "},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := healthy()
			c.change(f)
			if got := Summary(Checks(*f)); !strings.HasPrefix(got, c.want) {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

// The advice on a dialect is that of the call that failed, and how to ask by hand.
func TestDialectAdvice(t *testing.T) {
	f := healthy()
	silent(f)
	f.Entry.Worker.ID, f.Entry.Worker.Dialect, f.Diagnostics.Registration = "pod", 0, "parked"
	f.Diagnostics.Happenings = []store.Happening{happening(store.EventCallFailed, "auth", time.Second)}
	want := advice["auth"] + "; ask it by hand: loadplane probe http://10.0.0.1:30000"
	if got := find(Checks(*f), "dialect").GetAdvice(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestOnRanks(t *testing.T) {
	on := strings.Fields("0 1 2 3 4 5 6 7 8")
	for n, want := range map[int]string{1: "on rank 0", 8: "on rank 0 1 2 3 4 5 6 7", 9: "on 9 ranks"} {
		if got := onRanks(on[:n], 10); got != want {
			t.Errorf("%d of 10: %s, want %s", n, got, want)
		}
	}
}

// Long texts are cut at a character, and show that they are.
func TestTextIsCut(t *testing.T) {
	if got := Text(strings.Repeat("x", 1025)); len(got) != maxText || !strings.HasSuffix(got, "x...") {
		t.Errorf("%d bytes: ...%s", len(got), got[len(got)-9:])
	}
	if got := Text(strings.Repeat("x", 1024)); len(got) != maxText || strings.HasSuffix(got, ".") {
		t.Errorf("%d bytes: ...%s", len(got), got[len(got)-9:])
	}
	if got := said(&pb.Check{Value: strings.Repeat("x", 157) + strings.Repeat("ü", 9)}); got != strings.Repeat("x", 157)+"ü and so on." {
		t.Errorf("%q", got)
	}
}

// TestSummaryCutsBetweenItems keeps a sentence short without half a word in it.
func TestSummaryCutsBetweenItems(t *testing.T) {
	for name, c := range map[string]struct{ item, want string }{
		"list":     {"num_used_tokens on all ranks, ", "num_used_tokens on all ranks and so on. See it."},
		"dialects": {"poll: refused (GET /metrics: 404, no page); ", "poll: refused (GET /metrics: 404, no page) and so on. See it."},
		"words":    {"abcdefg ", "abcdefg and so on. See it."},
		"one word": {"abcdefg", "abcdef and so on. See it."},
	} {
		t.Run(name, func(t *testing.T) {
			check := &pb.Check{Name: "ranks", Value: strings.Repeat(c.item, 40), Verdict: fail, Advice: proto.String("see it")}
			if got := Summary([]*pb.Check{check}); !strings.HasSuffix(got, c.want) || len(got) > 220 {
				t.Errorf("%s", got)
			}
		})
	}
}

func TestSummaryOfNothing(t *testing.T) {
	if got := Summary(nil); got != "Nothing is wrong: not known." {
		t.Error(got)
	}
}

// TestTextsCanBeSent makes what an engine says valid and short: a message with
// anything else could not be encoded.
func TestTextsCanBeSent(t *testing.T) {
	f := healthy()
	old(f)
	bad := strings.Repeat("\xff\x1b[31mü\u202e", 1000)
	f.Entry.Worker.DiscoveredBy, f.Entry.Worker.URL, f.Live.LastError, f.Stream.Source = bad, bad, bad, bad
	f.Diagnostics.RegistrationError, f.Diagnostics.DialectWhy, f.Diagnostics.Engine = bad, bad, bad
	f.Diagnostics.Registration, f.Diagnostics.Refused, f.Diagnostics.LastRefusalDetail = "failing", 1, bad
	h := happening(store.EventRefused, "retired", 0)
	h.Detail = bad
	f.Diagnostics.Happenings = []store.Happening{h}
	checks := Checks(*f)
	res := &pb.ExplainWorkerResponse{Checks: checks, Summary: Summary(checks), Diagnostics: Happenings(f.Diagnostics.Happenings)}
	b, err := proto.Marshal(res)
	if err != nil || len(b) > 40<<10 {
		t.Errorf("%d bytes: %v", len(b), err)
	}
	if !utf8.ValidString(res.GetSummary()) || len(res.GetSummary()) > 2048 {
		t.Errorf("summary %q", res.GetSummary())
	}
}

func TestHappenings(t *testing.T) {
	h := happening(store.EventRefused, "retired", time.Second)
	h.Detail, h.Count = "why", 3
	got := Happenings([]store.Happening{happening(store.EventFresh, "", 2*time.Second), h})
	if len(got) != 2 || got[0].GetEvent() != "refused" || got[0].GetReason() != "retired" || got[0].GetDetail() != "why" || got[0].GetCount() != 3 {
		t.Fatalf("the newest is not first: %v", got)
	}
	if got[0].GetAtMs() != 3_599_000 || got[1].Reason != nil || got[1].Detail != nil {
		t.Errorf("%v", got)
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 12_345 * time.Microsecond: "12ms", 1234 * time.Millisecond: "1.2s", 10 * time.Second: "10s",
		time.Hour: "1h0m", 61*time.Minute + 10*time.Second: "1h1m", 90 * time.Second: "1m30s", 2 * time.Minute: "2m", 90 * time.Minute: "1h30m", 26 * time.Hour: "26h0m",
	} {
		if got := span(d); got != want {
			t.Errorf("%v is shown as %s, want %s", d, got, want)
		}
	}
}

func entries(ids ...string) (list []*store.Entry) {
	for _, id := range ids {
		list = append(list, &store.Entry{Worker: &store.Worker{ID: id, Origin: strings.TrimPrefix(strings.TrimPrefix(id, "http://"), "https://")}})
	}
	return list
}

func TestFind(t *testing.T) {
	pods := entries("default/llm-0/8000", "default/llm-1/8000", "default/llm-2/8000")
	pods[0].Worker.Origin, pods[1].Worker.Origin, pods[2].Worker.Origin = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.2:8000"
	alike, many := entries("llm-1-8000", "llm-2-8000", "llm-3-8000", "llm-4-8000"), entries("a", "b", "c", "d")
	for _, e := range many {
		e.Worker.Origin = "10.0.0.9:80"
	}
	urls := entries("http://10.0.0.1:80", "http://10.0.0.2:30000", "https://llm.example:443")
	for _, c := range []struct {
		list []*store.Entry
		name string
		want string
	}{
		{urls, "http://10.0.0.2:30000", "1"},
		{urls, "10.0.0.2:30000", "1"},
		{urls, "http://10.0.0.2:30000/", "1"},
		{urls, "http://10.0.0.1", "0"},
		{urls, "https://LLM.example", "2"},
		{pods, "default/llm-1/8000", "1"},
		{pods, "http://10.0.0.1:8000", "0"},
		{pods, "http://10.0.0.2:8000", `several workers have the address "http://10.0.0.2:8000": "default/llm-1/8000", "default/llm-2/8000"; name one by its id`},
		{pods, "default/lm-1/8000", `no worker "default/lm-1/8000"; there are: "default/llm-1/8000", "default/llm-0/8000", "default/llm-2/8000"`},
		{many, "http://10.0.0.9:80", `several workers have the address "http://10.0.0.9:80": "a", "b", "c"; name one by its id`},
		{many, "abcd", `no worker "abcd"; there are: "a", "b", "c"`},
		{many, "xyz", `no worker "xyz" among 4`},
		{alike, "llm-x-8000", `no worker "llm-x-8000"; there are: "llm-1-8000", "llm-2-8000", "llm-3-8000"`},
		{alike, "llm-12-8000", `no worker "llm-12-8000"; there are: "llm-1-8000", "llm-2-8000", "llm-3-8000"`},
		{pods, "llm-2", `no worker "llm-2"; there are: "default/llm-2/8000"`},
		{urls, "10.0.0.2:3000", `no worker "10.0.0.2:3000"; there are: "http://10.0.0.2:30000"`},
		{urls, "something else", `no worker "something else" among 3`},
		{urls, "a", `no worker "a" among 3`},
		{nil, "a", `no worker "a": discovery lists none at all`},
		{urls, "\xff\u202e", `no worker "?\u202e" among 3`},
	} {
		t.Run(c.name, func(t *testing.T) {
			i, err := Find(c.list, c.name)
			got := fmt.Sprint(i)
			if err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

// FuzzFind finds every id and panics for no name.
func FuzzFind(f *testing.F) {
	for _, s := range []string{"", "http://[::1", "http://[::1]", "a:b:c", "https://x", "%zz", "default/llm-0/8000"} {
		f.Add(s)
	}
	list := entries("default/llm-0/8000", "http://10.0.0.2:30000")
	f.Fuzz(func(t *testing.T, name string) {
		i, err := Find(list, name)
		if err == nil && (i < 0 || i >= len(list)) {
			t.Errorf("%q is at %d", name, i)
		}
		if err != nil && (!utf8.ValidString(err.Error()) || list[0].Worker.ID == name) {
			t.Errorf("%q: %v", name, err)
		}
	})
}
