// Pools while the stream is away: what can still be said of them.

import { create } from "@bufbuild/protobuf";
import { PoolSchema, type Pool } from "./gen/loadplane/v1/common_pb";
import { poolName } from "./replica";
import type { Row } from "./rows";

/**
 * recounted returns pools as they are by rows that were judged here. A pool
 * whose workers are all as fresh as the last message said stays as it is. Of
 * another one the values over its fresh workers are unknown.
 */
export function recounted(pools: ReadonlyMap<string, Pool>, rows: readonly Row[]): Map<string, Pool> {
  const fresh = new Map<string, number>();
  for (const r of rows) {
    if (r.freshness !== "fresh") continue;
    for (const model of r.models.length === 0 ? [""] : r.models) {
      const name = poolName({ model, role: r.entry.worker.role });
      fresh.set(name, (fresh.get(name) ?? 0) + 1);
    }
  }
  return new Map(Array.from(pools, ([name, p]) => [name, withFresh(p, fresh.get(name) ?? 0)]));
}

function withFresh(p: Pool, fresh: number): Pool {
  if (p.fresh === undefined || fresh >= p.fresh) return p;
  return create(PoolSchema, {
    ...(p.key && { key: p.key }),
    ...(p.workers !== undefined && { workers: p.workers }),
    ...(p.expected !== undefined && { expected: p.expected }),
    ...(p.expected && { coverage: fresh / p.expected }),
    ...(p.heard !== undefined && { heard: p.heard }),
    fresh,
  });
}
