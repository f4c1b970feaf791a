// Enumerations of the wire as words.

import { Dialect, Freshness, Role, Status } from "./gen/loadplane/v1/common_pb";
import { Verdict } from "./gen/loadplane/v1/worker_pb";

/** roleName is the role as the JSON writes it. */
export function roleName(r: Role): string {
  switch (r) {
    case Role.REGULAR: return "plain";
    case Role.PREFILL: return "prefill";
    case Role.DECODE: return "decode";
    default: return "unknown";
  }
}

/** FreshnessWord is how recent a worker is. */
export type FreshnessWord = "fresh" | "stale" | "missing" | "unreachable" | "unknown";

/** freshnessName is the freshness as the JSON writes it. */
export function freshnessName(f: Freshness): FreshnessWord {
  switch (f) {
    case Freshness.FRESH: return "fresh";
    case Freshness.STALE: return "stale";
    case Freshness.MISSING: return "missing";
    case Freshness.UNREACHABLE: return "unreachable";
    default: return "unknown";
  }
}

/** statusName is the engine's judgement of its report. */
export function statusName(s: Status): string {
  return s === Status.UNSPECIFIED ? "unknown" : word(Status[s]);
}

/** dialectName is the way in which load comes in. */
export function dialectName(d: Dialect): string {
  return d === Dialect.UNSPECIFIED ? "undecided" : word(Dialect[d]);
}

/** verdictName is the result of a check. */
export function verdictName(v: Verdict): string {
  return v === Verdict.UNSPECIFIED ? "unknown" : word(Verdict[v]);
}

function word(name: string | undefined): string {
  return name === undefined ? "unknown" : name.toLowerCase();
}
