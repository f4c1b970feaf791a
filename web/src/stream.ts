// The one stream of the page: opens it, watches over it, opens it again.

import { Code, ConnectError, type Client } from "@connectrpc/connect";
import { BinaryReader } from "@bufbuild/protobuf/wire";
import { Detail } from "./gen/loadplane/v1/common_pb";
import type { SnapshotService, WatchSnapshotsResponse } from "./gen/loadplane/v1/snapshot_pb";
import { Misfit, type Replica } from "./replica";

/**
 * Phase is how the stream is: live; lost when it ended or could not be opened;
 * old when it is silent for too long; denied when a credential is wanted.
 */
export type Phase = "live" | "lost" | "old" | "denied";

/** Options of a Stream. */
export interface Options {
  readonly client: Client<typeof SnapshotService>;
  readonly replica: Replica;
  /** Local monotonic clock, milliseconds. */
  readonly now: () => number;
  /** Told after every message that was applied. */
  readonly applied: (changed: boolean) => void;
  /** Told when the phase or its reason changes. */
  readonly phase: (phase: Phase, why: string) => void;
  /** From 0 to 1, for spreading. */
  readonly random?: () => number;
}

const firstWait = 100;
const longestWait = 5000;
/** Silence after which a stream is dead, in heartbeats. */
const patience = 2.5;
/** Heartbeat before the first message says it, milliseconds. */
const firstHeartbeat = 4000;
/** Shortest time between two changes that is asked for, milliseconds. */
const minInterval = 200;

/** waitFor is the longest wait before an attempt after some failures in a row. */
export function waitFor(failures: number): number {
  return failures === 0 ? firstWait : Math.min(longestWait, firstWait * 2 ** failures);
}

/** Stream keeps a replica current for as long as run lasts. */
export class Stream {
  readonly #o: Options;
  readonly #random: () => number;
  #failures = 0;
  #wake: (() => void) | undefined;
  #phase: Phase = "lost";
  #leave = 0;

  constructor(options: Options) {
    this.#o = options;
    this.#random = options.random ?? Math.random;
  }

  /** retry ends a wait at once. */
  retry(): void {
    this.#wake?.();
  }

  /** run returns when the signal is aborted. */
  async run(signal: AbortSignal): Promise<void> {
    let resume = true;
    while (!signal.aborted) {
      let least = 0;
      try {
        await this.#once(signal, resume);
        resume = true;
        if (this.#phase === "live") this.#tell("lost", "the stream ended");
      } catch (err) {
        if (signal.aborted) return;
        resume = !(err instanceof Misfit);
        least = this.#failed(err);
      }
      this.#o.replica.streamEnded();
      await this.#pause(signal, least);
    }
  }

  #failed(err: unknown): number {
    if (err instanceof Silence) {
      this.#tell("old", err.message);
      return 0;
    }
    if (err instanceof Misfit) {
      this.#failures++;
      this.#tell("lost", err.message);
      return 0;
    }
    const e = ConnectError.from(err);
    this.#failures++;
    if (e.code === Code.Unauthenticated || e.code === Code.PermissionDenied) {
      this.#tell("denied", e.rawMessage);
      return Infinity;
    }
    this.#tell("lost", e.rawMessage);
    return retryDelay(e);
  }

  /** once reads one stream to its end. */
  async #once(outer: AbortSignal, resume: boolean): Promise<void> {
    const abort = new AbortController();
    const stop = () => abort.abort();
    outer.addEventListener("abort", stop, { once: true });
    const dog = new Watchdog(firstHeartbeat * patience, stop);
    this.#leave = 0;
    try {
      const cursor = resume ? this.#o.replica.cursor : undefined;
      const request = { detail: Detail.RANKS, clientId: "page", minIntervalMs: minInterval, ...(cursor && { resume: cursor }) };
      for await (const m of this.#o.client.watchSnapshots(request, { signal: abort.signal })) {
        dog.fed(patience * (m.heartbeatIntervalMs || firstHeartbeat));
        this.#take(m);
      }
    } catch (err) {
      if (dog.barked) throw new Silence(`no message came within ${(dog.limit / 1000).toFixed(1)} s`);
      throw err;
    } finally {
      dog.stop();
      outer.removeEventListener("abort", stop);
      abort.abort();
    }
  }

  #take(m: WatchSnapshotsResponse): void {
    const changed = this.#o.replica.apply(m, this.#o.now());
    if (m.event.case === "goAway") this.#leave = m.event.value.reconnectWithinMs;
    this.#failures = 0;
    if (this.#o.replica.state) this.#tell("live", "");
    this.#o.applied(changed);
  }

  #tell(phase: Phase, why: string): void {
    this.#phase = phase;
    this.#o.phase(phase, why);
  }

  /** pause waits before the next attempt, at least for a time. */
  async #pause(signal: AbortSignal, least: number): Promise<void> {
    const most = Math.max(waitFor(this.#failures), this.#leave);
    const ms = least + this.#random() * most;
    await new Promise<void>((resolve) => {
      const timer = Number.isFinite(ms) ? setTimeout(resolve, ms) : undefined;
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
      signal.addEventListener("abort", this.#wake, { once: true });
    });
    if (this.#wake) signal.removeEventListener("abort", this.#wake);
    this.#wake = undefined;
  }
}

class Silence extends Error {}

/** Watchdog calls once when it was not fed for its limit. */
class Watchdog {
  barked = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(public limit: number, readonly call: () => void) {
    this.fed(limit);
  }

  fed(limit: number): void {
    this.limit = limit;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.barked = true;
      this.call();
    }, limit);
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
}

/** retryDelay is how long the plane asks to wait, milliseconds; 0 where it does not. */
export function retryDelay(err: ConnectError): number {
  for (const detail of err.details) {
    if (!("type" in detail) || detail.type !== "google.rpc.RetryInfo" || !(detail.value instanceof Uint8Array)) continue;
    return Math.min(60_000, Math.max(0, readRetryInfo(detail.value)));
  }
  return 0;
}

/** readRetryInfo reads the duration in field 1: seconds in 1, nanoseconds in 2. */
function readRetryInfo(bytes: Uint8Array): number {
  const r = new BinaryReader(bytes);
  let ms = 0;
  while (r.pos < r.len) {
    const [field, wire] = r.tag();
    if (field !== 1) {
      r.skip(wire);
      continue;
    }
    const end = r.uint32() + r.pos;
    while (r.pos < end) {
      const [part, kind] = r.tag();
      if (part === 1) ms += Number(r.int64()) * 1000;
      else if (part === 2) ms += r.int32() / 1e6;
      else r.skip(kind);
    }
  }
  return ms;
}
