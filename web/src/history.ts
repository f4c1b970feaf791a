// The last minutes of every worker, kept in the browser only.

import type { Row } from "./rows";
import { toNumber } from "./format";

/** stepMs is the time between two samples, span how many there are: 5 minutes. */
export const stepMs = 2000;
export const span = 150;

/** series are the numbers that are kept. */
export const series = ["weighted_token_usage", "num_running_reqs", "num_waiting_reqs", "gen_throughput"] as const;
/** SeriesName is one of them. */
export type SeriesName = (typeof series)[number];

/** History keeps samples of workers by id. What is not fresh or not known is a gap. */
export class History {
  readonly #rings = new Map<string, Float64Array>();
  #head = 0;
  #last = -Infinity;

  /** sample takes one sample of all rows where one is due, and drops the others. */
  sample(rows: readonly Row[], local: number): boolean {
    const missed = Math.floor((local - this.#last) / stepMs);
    if (missed < 1) return false;
    this.#last = Number.isFinite(missed) ? this.#last + missed * stepMs : local;
    for (let i = Math.min(missed, span); i > 0; i--) this.#advance();
    const present = new Set<string>();
    for (const row of rows) {
      present.add(row.id);
      this.#put(row);
    }
    for (const id of this.#rings.keys()) if (!present.has(id)) this.#rings.delete(id);
    return true;
  }

  /** of returns the samples of a worker, oldest first; NaN is a gap. */
  of(id: string, name: SeriesName): number[] {
    const ring = this.#rings.get(id);
    const at = series.indexOf(name) * span;
    return Array.from({ length: span }, (_, i) => ring?.[at + ((this.#head + 1 + i) % span)] ?? NaN);
  }

  #advance(): void {
    this.#head = (this.#head + 1) % span;
    for (const ring of this.#rings.values()) for (let i = 0; i < series.length; i++) ring[i * span + this.#head] = NaN;
  }

  #put(row: Row): void {
    let ring = this.#rings.get(row.id);
    if (!ring) {
      ring = new Float64Array(series.length * span).fill(NaN);
      this.#rings.set(row.id, ring);
    }
    const a = row.freshness === "fresh" ? row.entry.worker.aggregate : undefined;
    const values = [a?.weightedTokenUsage, a?.numRunningReqs, a?.numWaitingReqs, a?.genThroughput];
    values.forEach((v, i) => (ring[i * span + this.#head] = toNumber(v)));
  }
}
