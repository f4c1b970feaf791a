import { create } from "@bufbuild/protobuf";
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { Freshness, type Worker } from "../src/gen/loadplane/v1/common_pb";
import { WatchSnapshotsResponseSchema } from "../src/gen/loadplane/v1/snapshot_pb";
import { isFresh, Misfit, Replica } from "../src/replica";
import { digest, full, message, receipts, worker, type Init } from "./make";

function ids(r: Replica): string[] {
  return [...(r.state?.workers.keys() ?? [])].sort();
}

const w1 = worker(1);
const w2 = worker(2);

describe("what follows", () => {
  test("a full, a delta with a removal and a change, a heartbeat", () => {
    const r = new Replica();
    assert.equal(r.apply(full(5n, 1000, [w1, w2]), 0), true);
    const changed = worker(2, 9);
    const fresh = worker(3);
    r.apply(message(8n, 1100, {
      digest: digest(changed, fresh), liveness: receipts(1100, 3),
      event: { case: "delta", value: { baseVersion: 5n, workers: [changed, fresh], removed: [{ row: 1, workerId: "w1" }] } },
    }), 100);
    assert.deepEqual(ids(r), ["w2", "w3"]);
    assert.equal(r.cursor?.version, 8n);
    assert.equal(r.state?.workers.get("w2")?.worker.aggregate?.numRunningReqs, 9n);
    assert.equal(r.state?.workers.get("w2")?.receipt?.sequenceId, 1000n, "a receipt outlives a change");
    assert.equal(r.state?.digest, digest(changed, fresh));
    r.apply(message(8n, 2100, { digest: digest(changed, fresh), event: { case: "heartbeat", value: {} }, liveness: receipts(2100, 2) }), 1100);
    assert.equal(r.state?.workers.get("w2")?.receipt?.receivedMs, 2100n);
    assert.equal(r.state?.workers.get("w3")?.receipt?.receivedMs, 1100n);
  });

  test("a worker that comes back under its name has another row", () => {
    const r = new Replica();
    r.apply(full(5n, 1000, [w1]), 0);
    const back = worker(9, 0, { workerId: "w1" });
    r.apply(message(6n, 1000, { digest: digest(back), event: { case: "delta", value: { baseVersion: 5n, workers: [back], removed: [{ row: 1, workerId: "w1" }] } } }), 0);
    assert.deepEqual([...(r.state?.rows.keys() ?? [])], [9]);
    assert.equal(r.state?.workers.get("w1")?.receipt, undefined, "the receipt of the old row is not of the new one");
  });

  test("a removal of what was never held is ignored", () => {
    const r = new Replica();
    r.apply(full(5n, 1000, [w1]), 0);
    r.apply(message(6n, 1000, { digest: digest(w1), event: { case: "delta", value: { baseVersion: 5n, removed: [{ row: 77, workerId: "x" }] } } }), 0);
    assert.deepEqual(ids(r), ["w1"]);
  });

  test("a full replaces all, pools too", () => {
    const r = new Replica();
    r.apply(message(1n, 0, { digest: digest(w1), event: { case: "full", value: { workers: [w1], pools: [{ key: { model: "m", role: 1 } }] } } }), 0);
    assert.equal(r.state?.pools.size, 1);
    r.apply(full(2n, 0, [w2]), 0);
    assert.deepEqual(ids(r), ["w2"]);
    assert.equal(r.state?.pools.size, 0);
  });

  test("pools are removed before they change", () => {
    const r = new Replica();
    r.apply(message(1n, 0, { event: { case: "full", value: { pools: [{ key: { model: "m", role: 1 } }, { key: { model: "m", role: 2 } }] } } }), 0);
    r.apply(message(2n, 0, { event: { case: "delta", value: { baseVersion: 1n, removedPools: [{ model: "m", role: 1 }, { model: "m", role: 2 }], pools: [{ key: { model: "m", role: 2 }, workers: 3 }] } } }), 0);
    assert.deepEqual([...(r.state?.pools.values() ?? [])].map((p) => p.workers), [3]);
  });

  test("64-bit numbers keep all their digits", () => {
    const r = new Replica();
    const big = 2n ** 63n + 1n;
    const w = worker(1, 0, { aggregate: { numUsedTokens: 9007199254740993n } });
    r.apply(full(big, 0, [w]), 0);
    assert.equal(r.cursor?.version, big);
    assert.equal(r.state?.workers.get("w1")?.worker.aggregate?.numUsedTokens, 9007199254740993n);
  });

  test("an event of a newer plane changes nothing", () => {
    const r = new Replica();
    r.apply(full(5n, 0, [w1]), 0);
    assert.equal(r.apply(message(9n, 0, {}), 0), false);
    assert.equal(r.cursor?.version, 5n);
  });

  test("go_away repeats the version", () => {
    const r = new Replica();
    r.apply(full(5n, 0, [w1]), 0);
    r.apply(message(5n, 0, { digest: digest(w1), event: { case: "goAway", value: { reason: "draining" } } }), 0);
    assert.deepEqual(ids(r), ["w1"]);
  });
});

describe("chunks", () => {
  const part = (chunk: number, chunks: number, workers: Worker[], more: Init = {}) =>
    message(5n, 0, { digest: digest(w1, w2), event: { case: "full", value: { chunk, chunks, workers } }, ...more });

  test("commit with the last one", () => {
    const r = new Replica();
    assert.equal(r.apply(part(0, 2, [w1]), 0), false);
    assert.equal(r.state, undefined);
    assert.equal(r.apply(part(1, 2, [w2], { liveness: receipts(0, 1, 2) }), 0), true);
    assert.deepEqual(ids(r), ["w1", "w2"]);
  });

  test("that do not follow are a misfit", () => {
    for (const wrong of [part(1, 2, [w2]), part(2, 3, [w2]), message(6n, 0, { digest: digest(w1, w2), event: { case: "full", value: { chunk: 1, chunks: 3, workers: [w2] } } }), message(5n, 0, { event: { case: "heartbeat", value: {} } }), part(0, 3, [w1])]) {
      const r = new Replica();
      if (wrong.event.case !== "full" || wrong.event.value.chunks !== 2) r.apply(part(0, 3, [w1]), 0);
      assert.throws(() => r.apply(wrong, 0), Misfit);
      assert.equal(r.state, undefined);
    }
  });

  test("of an ended stream are dropped", () => {
    const r = new Replica();
    r.apply(part(0, 2, [w1]), 0);
    r.streamEnded();
    assert.throws(() => r.apply(part(1, 2, [w2]), 0), Misfit);
    r.apply(full(5n, 0, [w1, w2]), 0);
    assert.deepEqual(ids(r), ["w1", "w2"]);
  });
});

describe("misfits leave the view as it is", () => {
  const changed = worker(1, 3);
  const delta = (version: bigint, base: bigint, sum: bigint, more: Init = {}) =>
    message(version, 0, { digest: sum, event: { case: "delta", value: { baseVersion: base, workers: [changed], removed: [{ row: 2, workerId: "w2" }] } }, ...more });
  for (const [name, wrong] of Object.entries({
    "a delta against another version": delta(7n, 6n, digest(changed)),
    "a delta that goes back": delta(4n, 5n, digest(changed)),
    "a delta with another digest": delta(6n, 5n, 1n),
    "a delta of another filter": delta(6n, 5n, digest(changed), { cursor: { lineage: "a", epoch: 7n, version: 6n, filterHash: 1n } }),
    "a delta of another epoch": delta(6n, 5n, digest(changed), { cursor: { lineage: "a", epoch: 8n, version: 6n } }),
    "a heartbeat of another version": message(6n, 0, { digest: digest(w1, w2), event: { case: "heartbeat", value: {} } }),
    "a heartbeat with another digest": message(5n, 0, { digest: 1n, event: { case: "heartbeat", value: {} } }),
    "an older full of the same lineage": full(4n, 0, [w1]),
    "a full with another digest": full(6n, 0, [w1], { digest: 3n }),
    "a message without a cursor": create(WatchSnapshotsResponseSchema, { event: { case: "heartbeat", value: {} } }),
  })) {
    test(name, () => {
      const r = new Replica();
      r.apply(full(5n, 0, [w1, w2]), 0);
      assert.throws(() => r.apply(wrong, 0), Misfit);
      assert.deepEqual(ids(r), ["w1", "w2"]);
      assert.equal(r.cursor?.version, 5n);
      assert.equal(r.state?.workers.get("w1")?.worker, w1);
      assert.equal(r.state?.digest, digest(w1, w2));
    });
  }
});

describe("another lineage", () => {
  const other = (version: bigint, workers: Worker[], warming: boolean, more: Init = {}) =>
    full(version, 50, workers, { cursor: { lineage: "b", epoch: 9n, version }, warming, serverId: "t", ...more });

  test("that does not warm is taken at once", () => {
    const r = new Replica();
    r.apply(full(500n, 1000, [w1, w2]), 0);
    r.streamEnded();
    assert.equal(r.apply(other(1n, [w1], false), 100), true);
    assert.equal(r.cursor?.lineage, "b");
  });

  test("that warms waits until it has as many fresh ones as are still valid", () => {
    const r = new Replica();
    r.apply(full(500n, 1000, [w1, w2]), 0);
    r.streamEnded();
    assert.equal(r.apply(other(1n, [w1], true), 100), false);
    assert.equal(r.cursor?.lineage, "a");
    assert.equal(r.apply(message(2n, 60, {
      cursor: { lineage: "b", epoch: 9n, version: 2n }, warming: true, digest: digest(w1, w2), liveness: receipts(60, 2),
      event: { case: "delta", value: { baseVersion: 1n, workers: [w2] } },
    }), 110), true);
    assert.equal(r.cursor?.lineage, "b");
  });

  test("that warms is taken when the old one ran out", () => {
    const r = new Replica();
    r.apply(full(500n, 1000, [w1, w2]), 0);
    r.streamEnded();
    assert.equal(r.apply(other(1n, [], true), 100), false);
    assert.equal(r.apply(message(1n, 4000, { cursor: { lineage: "b", epoch: 9n, version: 1n }, warming: true, event: { case: "heartbeat", value: {} } }), 4000), true);
    assert.equal(r.cursor?.lineage, "b");
  });
});

describe("validity", () => {
  const fresh = (r: Replica, local: number) => {
    const e = r.state?.workers.get("w1");
    return e !== undefined && isFresh(e, local, r.serverNow(local));
  };

  test("runs out by itself, by the server's clock", () => {
    const r = new Replica();
    r.apply(full(1n, 10_000, [w1], { liveness: receipts(9000, 1) }), 500);
    assert.equal(fresh(r, 500), true);
    assert.equal(fresh(r, 2499), true);
    assert.equal(fresh(r, 2500), false);
  });

  test("runs out after the stream ended", () => {
    const r = new Replica();
    r.apply(full(1n, 10_000, [w1]), 500);
    r.streamEnded();
    assert.equal(r.serverNow(600), undefined);
    assert.equal(fresh(r, 3499), true);
    assert.equal(fresh(r, 3500), false);
  });

  test("is never longer than stale_after from the arrival", () => {
    const r = new Replica();
    r.apply(full(1n, 10_000, [w1], { liveness: { workers: [{ row: 1, validUntilMs: 99_000n }] } }), 0);
    assert.equal(fresh(r, 2999), true);
    assert.equal(fresh(r, 3000), false);
  });

  test("is not made longer by a message that came late", () => {
    const r = new Replica();
    r.apply(full(1n, 10_000, [w1]), 0);
    r.apply(message(1n, 11_000, { digest: digest(w1), event: { case: "heartbeat", value: {} }, liveness: receipts(11_000, 1) }), 2500); // 1.5 s late
    assert.equal(fresh(r, 3999), true);
    assert.equal(fresh(r, 4000), false);
  });

  test("needs a receipt and a fresh content", () => {
    const r = new Replica();
    r.apply(full(1n, 0, [w1], { liveness: { workers: [] } }), 0);
    assert.equal(fresh(r, 0), false);
    r.apply(full(2n, 0, [worker(1, 0, { freshness: Freshness.STALE })]), 0);
    assert.equal(fresh(r, 0), false);
  });
});
