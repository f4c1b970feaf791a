// Turns the messages of WatchSnapshots into views. Times are readings of
// performance.now(), milliseconds; wall clocks decide nothing.

import { create } from "@bufbuild/protobuf";
import { type Cursor, CursorSchema, Freshness, type Worker } from "./gen/loadplane/v1/common_pb.js";
import type { RemovedWorker, WatchSnapshotsResponse } from "./gen/loadplane/v1/snapshot_pb.js";

/** Broken says that a message does not fit: the next stream must begin with a full. */
export class Broken extends Error {}

/** View is the state of all workers at one version. Nobody changes it. */
export interface View {
  readonly cursor: Cursor;
  readonly warming: boolean;
  readonly digest: bigint;
  /** By worker_id. */
  readonly workers: ReadonlyMap<string, Worker>;
  /** When a worker that was heard stops being valid, by row. */
  readonly until: ReadonlyMap<number, number>;
}

/**
 * valid says whether a worker may be judged by its numbers: it turns false by
 * itself when nothing is heard any more.
 */
export function valid(view: View, w: Worker, now: number): boolean {
  return w.freshness === Freshness.FRESH && now < (view.until.get(w.row) ?? now);
}

function countValid(view: View, now: number): number {
  return [...view.workers.values()].filter((w) => valid(view, w, now)).length;
}

// A plane that has just started may know less than the one before it did.
function adopts(old: View | undefined, next: View, now: number): boolean {
  if (old === undefined || old.cursor.lineage === next.cursor.lineage || !next.warming) return true;
  return countValid(next, now) >= countValid(old, now);
}

/**
 * Clock maps the clock of one stream's server to ours. The message of the last
 * minute or two that was the least delayed decides, so that a message that was
 * read late makes nothing valid for longer.
 */
class Clock {
  private zero = Infinity;
  private before = Infinity;
  private began = -Infinity;

  seen(serverMs: bigint, at: number): void {
    const zero = at - Number(serverMs);
    if (at - this.began > 60_000) {
      [this.before, this.zero, this.began] = [this.zero, zero, at];
    } else {
      this.zero = Math.min(this.zero, zero);
    }
  }

  local(serverMs: bigint): number {
    return Math.min(this.zero, this.before) + Number(serverMs);
  }
}

const maxChunks = 4096;

/** Replica is the plane's view as one client holds it, across streams. */
export class Replica {
  view: View | undefined;
  private lost = false;
  // A view of another lineage that is not adopted yet.
  private candidate: View | undefined;
  // The lineage of the stream, and the chunks of an unfinished event.
  private lineage = "";
  private parts: WatchSnapshotsResponse[] = [];
  private clock = new Clock();

  /**
   * resume begins a stream and returns the cursor to open it with, undefined
   * for a full. The stream before it must be over.
   */
  resume(): Cursor | undefined {
    this.candidate = undefined;
    this.lineage = "";
    this.parts = [];
    this.clock = new Clock();
    return this.lost ? undefined : this.view?.cursor;
  }

  /**
   * apply takes the next message and returns the view in force, undefined
   * before the first. It throws where the stream must be ended.
   */
  apply(m: WatchSnapshotsResponse, at: number): View | undefined {
    let next: View | undefined;
    try {
      next = this.advance(m, at);
    } catch (error) {
      this.lost = true;
      this.parts = [];
      throw error;
    }
    if (next !== undefined) {
      this.lost = false;
      if (adopts(this.view, next, at)) {
        [this.view, this.candidate] = [next, undefined];
      } else {
        this.candidate = next;
      }
    }
    return this.view;
  }

  // The view that a message leads to, undefined for a mere chunk.
  private advance(m: WatchSnapshotsResponse, at: number): View | undefined {
    const cursor = m.cursor ?? create(CursorSchema);
    if (cursor.lineage === "" || (this.lineage !== "" && this.lineage !== cursor.lineage)) {
      throw new Broken(`lineage ${cursor.lineage} after ${this.lineage}`);
    }
    this.lineage = cursor.lineage;
    const parts = this.gather(m);
    if (parts === undefined) return undefined;
    const base = [this.candidate, this.view].find((v) => v?.cursor.lineage === this.lineage);
    if (base !== undefined && older(cursor, base.cursor)) {
      throw new Broken(`version ${cursor.version} after ${base.cursor.version}`);
    }
    const workers = workersAfter(parts, m, base);
    let digest = 0n;
    for (const w of workers.values()) digest += w.contentHash;
    if (BigInt.asUintN(64, digest) !== m.digest) {
      throw new Broken(`the workers of version ${cursor.version} do not sum to the digest`);
    }
    return { cursor, warming: m.warming, digest: m.digest, workers, until: this.until(m, base, workers, at) };
  }

  // The messages of an event, undefined while chunks are missing.
  private gather(m: WatchSnapshotsResponse): WatchSnapshotsResponse[] | undefined {
    const p = place(m);
    const first = this.parts[0];
    const follows = first === undefined || (p.of === place(first).of && key(m.cursor) === key(first.cursor));
    if (p.count > maxChunks || p.number !== this.parts.length || !follows) {
      throw new Broken(`chunk ${p.number} of ${p.count} after ${this.parts.length} others`);
    }
    this.parts.push(m);
    if (this.parts.length < p.count) return undefined;
    const parts = this.parts;
    this.parts = [];
    return parts;
  }

  // When the workers turn invalid, by our clock.
  private until(m: WatchSnapshotsResponse, base: View | undefined, workers: View["workers"], at: number): View["until"] {
    this.clock.seen(m.serverClockMs, at);
    const rows = new Set([...workers.values()].map((w) => w.row));
    // A full brings all receipts.
    const held = m.event.case === "full" ? [] : [...(base?.until ?? [])];
    const until = new Map(held.filter(([row]) => rows.has(row)));
    for (const r of m.liveness?.workers ?? []) {
      if (rows.has(r.row)) until.set(r.row, Math.min(this.clock.local(r.validUntilMs), at + m.staleAfterMs));
    }
    return until;
  }
}

function older(a: Cursor, b: Cursor): boolean {
  return a.epoch === b.epoch ? a.version < b.version : a.epoch < b.epoch;
}

// What two cursors of one content share; without the version, of one history.
function history(c: Cursor | undefined): string {
  return `${c?.lineage} ${c?.epoch} ${c?.filterHash}`;
}

function key(c: Cursor | undefined): string {
  return `${history(c)} ${c?.version}`;
}

// Number and count of a chunk, and what all chunks of an event share.
function place(m: WatchSnapshotsResponse): { number: number; count: number; of: string } {
  const e = m.event;
  switch (e.case) {
    case "full":
      return { number: e.value.chunk, count: e.value.chunks, of: "full" };
    case "delta":
      return { number: e.value.chunk, count: e.value.chunks, of: `delta ${e.value.baseVersion}` };
    default:
      return { number: 0, count: 0, of: "" };
  }
}

function workersAfter(parts: WatchSnapshotsResponse[], m: WatchSnapshotsResponse, base: View | undefined): View["workers"] {
  const workers = new Map<string, Worker>();
  const e = m.event;
  if (e.case !== "full") {
    const same = base !== undefined && history(m.cursor) === history(base.cursor);
    const version = e.case === "delta" ? e.value.baseVersion : m.cursor?.version;
    if (e.case === undefined || !same || version !== base.cursor.version) {
      throw new Broken(`${e.case} on version ${version}, held is ${base?.cursor.version}`);
    }
    if (e.case !== "delta") return base.workers;
    for (const [id, w] of base.workers) workers.set(id, w);
  }
  for (const r of parts.flatMap(removedOf)) {
    // Another row under the name was never ours.
    if (workers.get(r.workerId)?.row === r.row) workers.delete(r.workerId);
  }
  for (const w of parts.flatMap(changedOf)) workers.set(w.workerId, w);
  return workers;
}

function removedOf(m: WatchSnapshotsResponse): RemovedWorker[] {
  return m.event.case === "delta" ? m.event.value.removed : [];
}

function changedOf(m: WatchSnapshotsResponse): Worker[] {
  return m.event.case === "full" || m.event.case === "delta" ? m.event.value.workers : [];
}
