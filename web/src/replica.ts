// The view of the plane as this page holds it: applies the messages of a watch.

import type { Pool, PoolKey, Worker } from "./gen/loadplane/v1/common_pb";
import { Freshness } from "./gen/loadplane/v1/common_pb";
import type { Delta, Full, WatchSnapshotsResponse, WorkerLiveness } from "./gen/loadplane/v1/snapshot_pb";
import { ServerClock } from "./clock";

/** Misfit says that a message does not follow what is held. The view stays. */
export class Misfit extends Error {}

/** Entry is one worker of the view. */
export interface Entry {
  worker: Worker;
  /** Receipt of its last report; absent until heard. */
  receipt?: WorkerLiveness;
  /** Local time at which it stops being fresh at the latest. */
  deadline: number;
}

/** Position names a state of the view. */
export interface Position {
  readonly lineage: string;
  readonly epoch: bigint;
  readonly version: bigint;
  readonly filterHash: bigint;
}

/** Head is what every message says of the plane. */
export interface Head {
  readonly serverId: string;
  readonly warming: boolean;
  readonly publishedUnixMs: number;
  readonly serverUnixMs: number;
  readonly heartbeatMs: number;
  readonly staleAfterMs: number;
}

/** State is one view. Only its replica changes it. */
export class State {
  readonly workers = new Map<string, Entry>();
  readonly rows = new Map<number, Entry>();
  readonly pools = new Map<string, Pool>();
  digest = 0n;
  constructor(public position: Position, public head: Head) {}

  /** fresh counts the workers that may be used at a time. */
  fresh(local: number, server: number | undefined): number {
    let n = 0;
    for (const e of this.workers.values()) if (isFresh(e, local, server)) n++;
    return n;
  }
}

/** poolName is one name for model and role of a pool. */
export function poolName(key: Pick<PoolKey, "model" | "role"> | undefined): string {
  return `${key?.role ?? 0} ${key?.model ?? ""}`;
}

/**
 * isFresh says whether a worker may be taken as it is shown: it was fresh when
 * it was sent, and its report is still valid by both clocks.
 */
export function isFresh(e: Entry, local: number, server: number | undefined): boolean {
  if (e.worker.freshness !== Freshness.FRESH || !e.receipt || local >= e.deadline) return false;
  return server === undefined || server < Number(e.receipt.validUntilMs);
}

const mod64 = (v: bigint) => BigInt.asUintN(64, v);

/** What came of a chunk row so far. */
interface Chunks {
  readonly kind: "full" | "delta";
  readonly position: Position;
  readonly base: bigint;
  next: number;
  readonly of: number;
  readonly parts: (Full | Delta)[];
}

/**
 * Replica holds the newest whole state. A message is taken whole or, with a
 * Misfit, not at all. The time of every call is that of one monotonic clock.
 */
export class Replica {
  #state: State | undefined;
  /** A state of another lineage that may not be shown yet. */
  #candidate: State | undefined;
  #chunks: Chunks | undefined;
  readonly #clock = new ServerClock();

  /** state is what is shown; undefined before the first. */
  get state(): State | undefined {
    return this.#state;
  }

  /** serverNow is the clock of the plane; undefined without a stream. */
  serverNow(local: number): number | undefined {
    return this.#clock.now(local);
  }

  /** cursor is where a new stream may go on. */
  get cursor(): Position | undefined {
    return this.#state?.position;
  }

  /** streamEnded forgets what does not outlive a stream. */
  streamEnded(): void {
    this.#clock.forget();
    this.#chunks = undefined;
    this.#candidate = undefined;
  }

  /** apply takes a message and says whether what is shown changed with it. */
  apply(m: WatchSnapshotsResponse, local: number): boolean {
    const position = positionOf(m);
    this.#clock.learn(Number(m.serverClockMs), local);
    const event = m.event;
    switch (event.case) {
      case "full": {
        const parts = this.#collect("full", event.value, position, 0n);
        if (!parts) return false;
        return this.#applyFull(m, position, parts as Full[], local);
      }
      case "delta": {
        const parts = this.#collect("delta", event.value, position, event.value.baseVersion);
        if (!parts) return false;
        this.#applyDelta(m, position, parts as Delta[], local);
        return this.#adopt(local);
      }
      case "heartbeat":
      case "goAway": {
        this.#unchunked();
        const s = this.#target(position);
        if (s.position.version !== position.version) throw new Misfit("a message names a version that is not held");
        this.#checkDigest(s.digest, m.digest);
        this.#finish(s, m, position, local);
        return this.#adopt(local);
      }
      default:
        return false; // of a newer plane
    }
  }

  #unchunked(): void {
    if (this.#chunks) throw new Misfit("a message came between chunks");
  }

  /** collect returns all parts with the last one. */
  #collect(kind: "full" | "delta", part: Full | Delta, position: Position, base: bigint): (Full | Delta)[] | undefined {
    const of = part.chunks || 1;
    if (part.chunk === 0) {
      this.#unchunked();
      this.#chunks = { kind, position, base, next: 0, of, parts: [] };
    }
    const c = this.#chunks;
    if (!c || c.kind !== kind || c.next !== part.chunk || c.of !== of || c.base !== base || !same(c.position, position)) {
      throw new Misfit("a chunk does not follow the one before it");
    }
    c.parts.push(part);
    c.next++;
    if (c.next < c.of) return undefined;
    this.#chunks = undefined;
    return c.parts;
  }

  #applyFull(m: WatchSnapshotsResponse, position: Position, parts: Full[], local: number): boolean {
    const held = this.#state;
    if (held && sameLine(held.position, position) && position.version < held.position.version) {
      throw new Misfit("a full is older than what is held");
    }
    const s = new State(position, headOf(m));
    for (const part of parts) {
      for (const w of part.workers) put(s, { worker: w, deadline: -Infinity });
      for (const p of part.pools) s.pools.set(poolName(p.key), p);
    }
    this.#checkDigest(s.digest, m.digest);
    this.#finish(s, m, position, local);
    if (!held || sameLine(held.position, position)) {
      this.#state = s;
      this.#candidate = undefined;
      return true;
    }
    this.#candidate = s;
    return this.#adopt(local);
  }

  #applyDelta(m: WatchSnapshotsResponse, position: Position, parts: Delta[], local: number): void {
    const s = this.#target(position);
    const base = parts[0]?.baseVersion;
    if (base !== s.position.version || position.version < base) throw new Misfit("a delta is against another version");
    const gone = new Map<number, Entry>();
    for (const part of parts) {
      for (const r of part.removed) {
        const e = s.rows.get(r.row);
        if (e) gone.set(r.row, e);
      }
    }
    const changed = new Map<string, Worker>();
    for (const part of parts) for (const w of part.workers) changed.set(w.workerId, w);
    this.#checkDigest(digestAfter(s, gone, changed), m.digest);

    for (const e of gone.values()) drop(s, e);
    for (const w of changed.values()) change(s, w);
    for (const part of parts) for (const key of part.removedPools) s.pools.delete(poolName(key));
    for (const part of parts) for (const p of part.pools) s.pools.set(poolName(p.key), p);
    this.#finish(s, m, position, local);
  }

  /** target is the state that messages of a position are about. */
  #target(position: Position): State {
    for (const s of [this.#candidate, this.#state]) {
      if (s && sameLine(s.position, position)) return s;
    }
    throw new Misfit("a message is of another lineage or filter");
  }

  #checkDigest(have: bigint, want: bigint): void {
    if (have !== want) throw new Misfit("the digest of the view is another one");
  }

  /** finish takes the head and the receipts of a message. */
  #finish(s: State, m: WatchSnapshotsResponse, position: Position, local: number): void {
    s.position = position;
    s.head = headOf(m);
    for (const receipt of m.liveness?.workers ?? []) {
      const e = s.rows.get(receipt.row);
      if (!e) continue;
      e.receipt = receipt;
      const left = Number(receipt.validUntilMs) - Number(m.serverClockMs);
      e.deadline = local + Math.min(left, m.staleAfterMs);
    }
  }

  /**
   * adopt shows the candidate once it is as good as what is shown: it is not
   * warming, or has as many fresh workers as are still valid here.
   */
  #adopt(local: number): boolean {
    const next = this.#candidate;
    const held = this.#state;
    if (!next || !held) return true;
    const server = this.#clock.now(local);
    // The receipts of what is shown are of another clock.
    if (next.head.warming && next.fresh(local, server) < held.fresh(local, undefined)) return false;
    this.#state = next;
    this.#candidate = undefined;
    return true;
  }
}

function put(s: State, e: Entry): void {
  s.workers.set(e.worker.workerId, e);
  s.rows.set(e.worker.row, e);
  s.digest = mod64(s.digest + e.worker.contentHash);
}

function drop(s: State, e: Entry): void {
  s.rows.delete(e.worker.row);
  if (s.workers.get(e.worker.workerId) === e) s.workers.delete(e.worker.workerId);
  s.digest = mod64(s.digest - e.worker.contentHash);
}

function change(s: State, w: Worker): void {
  const held = s.workers.get(w.workerId);
  if (held?.worker.row !== w.row) {
    if (held) drop(s, held);
    put(s, { worker: w, deadline: -Infinity });
    return;
  }
  s.digest = mod64(s.digest - held.worker.contentHash + w.contentHash);
  held.worker = w;
}

function digestAfter(s: State, gone: Map<number, Entry>, changed: Map<string, Worker>): bigint {
  let digest = s.digest;
  for (const e of gone.values()) digest -= e.worker.contentHash;
  for (const [id, w] of changed) {
    const held = s.workers.get(id);
    if (held && !gone.has(held.worker.row)) digest -= held.worker.contentHash;
    digest += w.contentHash;
  }
  return mod64(digest);
}

function same(a: Position, b: Position): boolean {
  return sameLine(a, b) && a.version === b.version;
}

function sameLine(a: Position, b: Position): boolean {
  return a.lineage === b.lineage && a.epoch === b.epoch && a.filterHash === b.filterHash;
}

function positionOf(m: WatchSnapshotsResponse): Position {
  const c = m.cursor;
  if (!c) throw new Misfit("a message has no cursor");
  return { lineage: c.lineage, epoch: c.epoch, version: c.version, filterHash: c.filterHash };
}

function headOf(m: WatchSnapshotsResponse): Head {
  return {
    serverId: m.serverId,
    warming: m.warming,
    publishedUnixMs: Number(m.publishedUnixMs),
    serverUnixMs: Number(m.serverUnixMs),
    heartbeatMs: m.heartbeatIntervalMs,
    staleAfterMs: m.staleAfterMs,
  };
}
