import { Code, ConnectError, createClient, createRouterTransport } from "@connectrpc/connect";
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { SnapshotService, type WatchSnapshotsRequest, type WatchSnapshotsResponse } from "../src/gen/loadplane/v1/snapshot_pb";
import { Replica } from "../src/replica";
import { retryDelay, Stream, waitFor, type Phase } from "../src/stream";
import { digest, full, message, worker } from "./make";

const w = worker(1);
const beat = (version: bigint) => message(version, 2000, { digest: digest(w), heartbeatIntervalMs: 20, event: { case: "heartbeat", value: {} } });
const first = (version: bigint) => full(version, 1000, [w], { heartbeatIntervalMs: 20 });

type Serve = (request: WatchSnapshotsRequest, attempt: number, signal: AbortSignal) => AsyncIterable<WatchSnapshotsResponse>;

/** against runs a stream against a service until it was in the phases. */
async function against(serve: Serve, until: (phases: Phase[]) => boolean): Promise<{ phases: Phase[]; requests: WatchSnapshotsRequest[]; replica: Replica }> {
  const requests: WatchSnapshotsRequest[] = [];
  const phases: Phase[] = [];
  const replica = new Replica();
  const abort = new AbortController();
  const transport = createRouterTransport(({ service }) => {
    service(SnapshotService, {
      watchSnapshots: (request, context) => {
        requests.push(request);
        return serve(request, requests.length, context.signal);
      },
    });
  });
  const stream = new Stream({
    client: createClient(SnapshotService, transport), replica, now: () => performance.now(), random: () => 0,
    applied: () => undefined,
    phase: (phase) => {
      if (phases[phases.length - 1] !== phase) phases.push(phase);
      if (until(phases)) abort.abort();
      else if (phase === "denied") setTimeout(() => stream.retry(), 1);
    },
  });
  await stream.run(abort.signal);
  return { phases, requests, replica };
}

const ended = (signal: AbortSignal) => new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));

describe("the stream", () => {
  test("goes on from its cursor after it was cut", async () => {
    const { phases, requests, replica } = await against(async function* (_, attempt, signal) {
      yield attempt === 1 ? first(5n) : beat(5n);
      if (attempt === 1) throw new ConnectError("cut", Code.Unavailable);
      await ended(signal);
    }, (p) => p.join() === "live,lost,live");
    assert.deepEqual(phases, ["live", "lost", "live"]);
    assert.equal(requests[0]?.resume, undefined);
    assert.equal(requests[1]?.resume?.version, 5n);
    assert.equal(requests[1]?.resume?.lineage, "a");
    assert.equal(replica.cursor?.version, 5n);
  });

  test("begins anew without a cursor when something does not fit", async () => {
    const { requests, replica } = await against(async function* (_, attempt, signal) {
      if (attempt === 1) {
        yield first(5n);
        yield beat(6n);
      }
      yield first(7n);
      await ended(signal);
    }, (p) => p.join() === "live,lost,live");
    assert.equal(requests[1]?.resume, undefined);
    assert.equal(replica.cursor?.version, 7n);
  });

  test("is old when it is silent for two and a half heartbeats", async () => {
    const { requests } = await against(async function* (_, attempt, signal) {
      yield attempt === 1 ? first(5n) : beat(5n);
      await ended(signal);
    }, (p) => p.join() === "live,old,live");
    assert.equal(requests[1]?.resume?.version, 5n);
  });

  test("waits for a credential when it is denied", async () => {
    const { phases, requests } = await against(async function* (_, attempt, signal) {
      if (attempt === 1) throw new ConnectError("no", Code.Unauthenticated);
      yield first(5n);
      await ended(signal);
    }, (p) => p.includes("live"));
    assert.deepEqual(phases, ["denied", "live"]);
    assert.equal(requests.length, 2);
  });

  test("is opened again after go_away", async () => {
    const { phases, requests } = await against(async function* (_, attempt, signal) {
      if (attempt === 1) {
        yield first(5n);
        yield message(5n, 2000, { digest: digest(w), heartbeatIntervalMs: 20, event: { case: "goAway", value: { reconnectWithinMs: 10 } } });
        return;
      }
      yield beat(5n);
      await ended(signal);
    }, (p) => p.join() === "live,lost,live");
    assert.deepEqual(phases, ["live", "lost", "live"]);
    assert.equal(requests[1]?.resume?.version, 5n);
  });
});

describe("waiting", () => {
  test("doubles up to five seconds", () => {
    assert.deepEqual([0, 1, 2, 3, 6, 50].map(waitFor), [100, 200, 400, 800, 5000, 5000]);
  });
  test("is at least as long as the plane asks for", () => {
    const info = (value: number[]) => Object.assign(new ConnectError("x", Code.ResourceExhausted), { details: [{ type: "google.rpc.RetryInfo", value: Uint8Array.from(value) }] });
    assert.equal(retryDelay(info([0x0a, 0x06, 0x08, 0x02, 0x10, 0x80, 0xca, 0xb5, 0xee, 0x01].slice(0, 10))) > 2000, true);
    assert.equal(retryDelay(info([0x0a, 0x02, 0x08, 0x03])), 3000);
    assert.equal(retryDelay(info([])), 0);
    assert.equal(retryDelay(new ConnectError("x")), 0);
  });
});
