// The view as a plain object: 64-bit numbers as strings, unknown as null.

import { aggregateFields, rankFields, type Field } from "./fields";
import type { Num } from "./format";
import { dialectName, roleName, statusName } from "./names";
import type { Replica } from "./replica";
import type { Row } from "./rows";

type Plain = string | number | boolean | null | Plain[] | { [key: string]: Plain };

function plainNum(v: Num): Plain {
  return v === undefined ? null : typeof v === "bigint" ? String(v) : v;
}

function plainFields<T>(fields: readonly Field<T>[], of: T | undefined): Plain {
  if (of === undefined) return null;
  return Object.fromEntries(fields.map((f) => [f.name, plainNum(f.get(of))]));
}

/** plainView is what the page holds, for tests and for the console. */
export function plainView(replica: Replica, rows: readonly Row[], phase: string): Plain {
  const s = replica.state;
  if (!s) return { state: phase, version: null, workers: [], pools: [] };
  return {
    state: phase,
    lineage: s.position.lineage,
    epoch: String(s.position.epoch),
    version: String(s.position.version),
    digest: String(s.digest),
    warming: s.head.warming,
    server_id: s.head.serverId,
    heartbeat_interval_ms: s.head.heartbeatMs,
    stale_after_ms: s.head.staleAfterMs,
    workers: rows.map(plainWorker),
    pools: Array.from(s.pools.values(), (p) => ({
      model: p.key?.model ?? "", role: roleName(p.key?.role ?? 0),
      workers: p.workers ?? null, fresh: p.fresh ?? null, coverage: p.coverage ?? null,
      expected: p.expected ?? null, heard: p.heard ?? null,
      hottest_worker_id: p.hottestWorkerId ?? null, hottest_rank: p.hottestRank ?? null,
      aggregate: plainFields(aggregateFields, p.aggregate),
    })),
  };
}

function plainWorker(r: Row): Plain {
  const w = r.entry.worker;
  return {
    worker_id: w.workerId, url: w.url, role: r.role, models: [...w.models], zone: w.zone ?? null,
    freshness: r.freshness, freshness_reason: r.reason, status: statusName(w.status), dialect: dialectName(w.dialect),
    draining: w.draining, partial: w.partial, flags: [...w.flags],
    sequence_id: r.entry.receipt ? String(r.entry.receipt.sequenceId) : null,
    aggregate: plainFields(aggregateFields, w.aggregate),
    ranks: w.ranks.map((rank) => Object.assign({ dp_rank: rank.dpRank }, plainFields(rankFields, rank))),
  };
}
