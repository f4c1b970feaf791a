// The workers as lines of the table: what is judged, filtered and sorted.

import type { Aggregate } from "./gen/loadplane/v1/common_pb";
import { aggregateFields, fieldOf } from "./fields";
import { age, count, exact, list, toNumber, unknownText, type Num } from "./format";
import { dialectName, freshnessName, roleName, type FreshnessWord } from "./names";
import { isFresh, type Entry, type State } from "./replica";
import type { Worker } from "./gen/loadplane/v1/common_pb";
import { label, shortName } from "./text";

/** Row is one worker, judged at one time. */
export interface Row {
  readonly id: string;
  readonly entry: Entry;
  readonly role: string;
  readonly models: readonly string[];
  /** Freshness at the time: what ran out is stale. */
  readonly freshness: FreshnessWord;
  readonly reason: string;
  /** Time since its last report, milliseconds. */
  readonly ageMs: number | undefined;
  /** What the text filter looks into. */
  readonly haystack: string;
}

/** rowOf judges a worker at a local time and a server's, where that is known. */
export function rowOf(e: Entry, local: number, server: number | undefined): Row {
  const w = e.worker;
  const { role, haystack } = fixedOf(w);
  const fresh = isFresh(e, local, server);
  const said = freshnessName(w.freshness);
  const ranOut = said === "fresh" && !fresh;
  return {
    id: w.workerId,
    entry: e,
    role,
    models: w.models,
    freshness: ranOut ? "stale" : said,
    reason: ranOut ? "age" : w.freshnessReason,
    ageMs: e.receipt && server !== undefined ? Math.max(0, server - Number(e.receipt.receivedMs)) : undefined,
    haystack,
  };
}

/** What of a row changes only with its worker. */
interface Fixed {
  readonly role: string;
  readonly group: string;
  readonly haystack: string;
}

const fixed = new WeakMap<Worker, Fixed>();

function fixedOf(w: Worker): Fixed {
  let f = fixed.get(w);
  if (!f) {
    const labels = Object.entries(w.labels).map(([k, v]) => `${k}=${v}`);
    const haystack = [w.workerId, w.url, w.zone ?? "", ...w.models, ...labels].join("\n").toLowerCase();
    const role = roleName(w.role);
    f = { role, group: [role, ...w.models].join("\n"), haystack };
    fixed.set(w, f);
  }
  return f;
}

/**
 * rejudged judges the workers of before anew in their old order; undefined
 * where the view has others by now.
 */
export function rejudged(before: readonly Row[], s: State, local: number, server: number | undefined): Row[] | undefined {
  if (before.length !== s.workers.size) return undefined;
  for (const r of before) if (s.workers.get(r.id) !== r.entry) return undefined;
  return before.map((r) => rowOf(r.entry, local, server));
}

/** rowsOf judges all workers of a view, sorted by role, model and id. */
export function rowsOf(s: State, local: number, server: number | undefined): Row[] {
  const rows = Array.from(s.workers.values(), (e) => rowOf(e, local, server));
  return rows.sort((a, b) => compareText(fixedOf(a.entry.worker).group, fixedOf(b.entry.worker).group) || compareText(a.id, b.id));
}

/** Query is what the filter bar asks for; empty asks for all. */
export interface Query {
  readonly text: string;
  readonly freshness: string;
  readonly role: string;
  readonly model: string;
}

/** matches says whether a row is asked for. Words of the text are all needed. */
export function matches(r: Row, q: Query): boolean {
  if (q.role !== "" && r.role !== q.role) return false;
  if (q.model !== "" && !r.models.includes(q.model)) return false;
  if (q.freshness === "not fresh" ? r.freshness === "fresh" : q.freshness !== "" && r.freshness !== q.freshness) return false;
  return q.text.toLowerCase().split(/\s+/).every((word) => r.haystack.includes(word));
}

/** Column is one column of the table. */
export interface Column {
  readonly name: string;
  readonly title: string;
  readonly short: string;
  readonly kind: "name" | "text" | "number" | "share";
  /** It is of the last report: what is not fresh comes after what is. */
  readonly reported?: true;
  /** What it is sorted by; NaN and "" are unknown and come last. */
  readonly key: (r: Row) => number | string;
  readonly text: (r: Row) => string;
  /** The value with all its digits; empty where unknown. */
  readonly exact: (r: Row) => string;
}

function textColumn(name: string, title: string, get: (r: Row) => string): Column {
  return { name, title, short: title, kind: "text", key: get, exact: get, text: (r) => label(get(r)) || unknownText };
}

function numberColumn(name: string, short: string, kind: "number" | "share" = "number"): Column {
  const f = fieldOf(aggregateFields, name);
  const get = (r: Row): Num => aggregateOf(r, f.get);
  return {
    name, title: f.title, short, kind, reported: true,
    key: (r) => toNumber(get(r)), text: (r) => f.show(get(r)), exact: (r) => exact(get(r)),
  };
}

function aggregateOf(r: Row, get: (a: Aggregate) => Num): Num {
  const a = r.entry.worker.aggregate;
  return a && get(a);
}

/** columns are those of the table. */
export const columns: readonly Column[] = [
  { ...textColumn("worker_id", "Worker", (r) => r.id), kind: "name", text: (r) => shortName(r.id) },
  {
    ...textColumn("freshness", "State", (r) => r.freshness),
    text: (r) => [r.freshness, label(r.reason, 32), r.entry.worker.draining ? "draining" : ""].filter((t) => t !== "").join(" · "),
  },
  textColumn("role", "Role", (r) => r.role),
  { ...textColumn("models", "Model", (r) => r.models.join(",")), text: (r) => list(r.models) },
  numberColumn("weighted_token_usage", "usage", "share"),
  numberColumn("max_rank_token_usage", "max", "share"),
  numberColumn("num_running_reqs", "run"),
  numberColumn("num_waiting_reqs", "wait"),
  numberColumn("gen_throughput", "gen/s"),
  numberColumn("free_tokens", "free"),
  numberColumn("token_usage_imbalance", "imbal"),
  {
    name: "hottest_rank", title: "Most loaded rank", short: "hot", kind: "number",
    key: (r) => toNumber(aggregateOf(r, (a) => a.hottestRank)),
    text: (r) => count(aggregateOf(r, (a) => a.hottestRank)),
    exact: (r) => exact(aggregateOf(r, (a) => a.hottestRank)),
  },
  {
    name: "rank_count", title: "Ranks", short: "ranks", kind: "number",
    key: (r) => toNumber(aggregateOf(r, (a) => a.rankCount)),
    text: (r) => count(aggregateOf(r, (a) => a.rankCount)),
    exact: (r) => exact(aggregateOf(r, (a) => a.rankCount)),
  },
  {
    name: "age_ms", title: "Age of the last report", short: "age", kind: "number",
    key: (r) => r.ageMs ?? NaN, text: (r) => age(r.ageMs), exact: (r) => (r.ageMs === undefined ? "" : r.ageMs.toFixed(0)),
  },
  textColumn("dialect", "Dialect", (r) => dialectName(r.entry.worker.dialect)),
  textColumn("zone", "Zone", (r) => r.entry.worker.zone ?? ""),
];

/** Order is what the table is sorted by. */
export interface Order {
  readonly column: string;
  readonly down: boolean;
}

/**
 * hottestFirst is the order of the table at first: the workers with the fullest
 * ranks come first.
 */
export const hottestFirst: Order = { column: "max_rank_token_usage", down: true };

/**
 * sorted returns rows in an order; the unknown come last in both directions, and
 * so do values of workers that are not fresh.
 */
export function sorted(rows: readonly Row[], order: Order): Row[] {
  const column = columns.find((c) => c.name === order.column) ?? columns[0];
  if (!column) return [...rows];
  const sign = order.down ? -1 : 1;
  const keyed = rows.map((row) => ({ row, key: column.key(row) }));
  const past = (r: Row) => Number(column.reported === true && r.freshness !== "fresh");
  keyed.sort((a, b) => past(a.row) - past(b.row) || compareKeys(a.key, b.key, sign) || compareText(a.row.id, b.row.id));
  return keyed.map((k) => k.row);
}

function compareKeys(a: number | string, b: number | string, sign: number): number {
  const unknownA = a === "" || a !== a;
  const unknownB = b === "" || b !== b;
  if (unknownA || unknownB) return Number(unknownA) - Number(unknownB);
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * compareText(String(a), String(b));
}

/** compareText orders by code units, the same everywhere. */
export function compareText(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
