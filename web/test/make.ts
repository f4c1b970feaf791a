// Messages for tests.

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Freshness, WorkerSchema, type Worker } from "../src/gen/loadplane/v1/common_pb";
import { WatchSnapshotsResponseSchema, type WatchSnapshotsResponse } from "../src/gen/loadplane/v1/snapshot_pb";

/** Init is what a message is made of. */
export type Init = Exclude<MessageInitShape<typeof WatchSnapshotsResponseSchema>, WatchSnapshotsResponse>;

/** worker makes a fresh worker whose hash is of its row and value. */
export function worker(row: number, value = 0, more: Exclude<MessageInitShape<typeof WorkerSchema>, Worker> = {}): Worker {
  return create(WorkerSchema, {
    row, workerId: `w${row}`, freshness: Freshness.FRESH, contentHash: BigInt(row) * 0xf000_0000_0000_0001n + BigInt(value) & 0xffff_ffff_ffff_ffffn,
    aggregate: { numRunningReqs: BigInt(value) }, ...more,
  });
}

/** digest makes the digest of a view of some workers. */
export function digest(...workers: Worker[]): bigint {
  return BigInt.asUintN(64, workers.reduce((d, w) => d + w.contentHash, 0n));
}

/** message makes the message of lineage a at a time of the server. */
export function message(version: bigint, at: number, more: Init): WatchSnapshotsResponse {
  return create(WatchSnapshotsResponseSchema, {
    cursor: { lineage: "a", epoch: 7n, version, filterHash: 0n },
    serverClockMs: BigInt(at), heartbeatIntervalMs: 1000, staleAfterMs: 3000, serverId: "s", ...more,
  });
}

/** receipts makes the receipts at a time of the server. */
export function receipts(at: number, ...rows: number[]): Init["liveness"] {
  return { workers: rows.map((row) => ({ row, sequenceId: BigInt(at), receivedMs: BigInt(at), validUntilMs: BigInt(at + 3000) })) };
}

/** full makes the full of some workers, all received at the time. */
export function full(version: bigint, at: number, workers: Worker[], more: Init = {}): WatchSnapshotsResponse {
  return message(version, at, {
    digest: digest(...workers), event: { case: "full", value: { workers, pools: [] } }, liveness: receipts(at, ...workers.map((w) => w.row)), ...more,
  });
}
