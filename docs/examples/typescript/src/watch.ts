// Follows a plane by Connect: node dist/watch.js http://127.0.0.1:7400
//
// Prints a JSON line for every message, and when a worker turned invalid
// because nothing was heard.

import { setTimeout as sleep } from "node:timers/promises";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { Freshness } from "./gen/loadplane/v1/common_pb.js";
import { SnapshotService } from "./gen/loadplane/v1/snapshot_pb.js";
import { Replica, valid, type View } from "./view.js";

// Milliseconds: how long a new stream may be silent, the random wait before a
// reconnect as it doubles, and how long a stream lasts that makes failures
// before it forgotten.
const [firstMessage, firstWindow, lastWindow, healthyAfter] = [5_000, 100, 5_000, 30_000];

/** Ended is how a stream ended, and how long to stay away, milliseconds. */
interface Ended {
  why: string;
  least: number;
  within: number;
}

// HTTP/1.1 has a connection for every stream, so that a silent one is left
// behind with it. HTTP/2 would share a session, which must then be aborted.
function connect(url: string) {
  return createClient(SnapshotService, createConnectTransport({ baseUrl: url, httpVersion: "1.1", readMaxBytes: 64 << 20 }));
}

/** follow holds one stream until it ends or is silent. */
async function follow(url: string, replica: Replica): Promise<Ended> {
  const stop = new AbortController();
  let watchdog = setTimeout(() => stop.abort(), firstMessage);
  try {
    const request = { resume: replica.resume(), clientId: "typescript" };
    for await (const m of connect(url).watchSnapshots(request, { signal: stop.signal })) {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => stop.abort(), 2.5 * (m.heartbeatIntervalMs || 1_000));
      replica.apply(m, performance.now());
      show(m.event.case ?? "", replica.view);
      if (m.event.case === "goAway") {
        return { why: `go_away: ${m.event.value.reason}`, least: 0, within: m.event.value.reconnectWithinMs };
      }
    }
    return { why: "closed", least: 0, within: 0 };
  } catch (error) {
    if (stop.signal.aborted) return { why: "silent", least: 0, within: 0 };
    const full = error instanceof ConnectError && error.code === Code.ResourceExhausted;
    return { why: String(error), least: full ? 1_000 : 0, within: 0 };
  } finally {
    clearTimeout(watchdog);
    stop.abort();
  }
}

let expiry: NodeJS.Timeout | undefined;

/** show prints a line, and the next one when a worker turns invalid. */
function show(event: string, view: View | undefined, why: string | null = null): void {
  clearTimeout(expiry);
  const now = performance.now();
  process.stdout.write(JSON.stringify({ event: event === "goAway" ? "go_away" : event, why, ...line(view, now) }) + "\n");
  const left = [...(view?.until.values() ?? [])].filter((t) => t > now).map((t) => t - now);
  if (left.length > 0) expiry = setTimeout(() => show("expired", view), Math.ceil(Math.min(...left)));
}

function line(view: View | undefined, now: number) {
  if (view === undefined) return {};
  return {
    lineage: view.cursor.lineage,
    epoch: Number(view.cursor.epoch),
    version: Number(view.cursor.version),
    warming: view.warming,
    digest: view.digest.toString(16).padStart(16, "0"),
    workers: [...view.workers.values()].sort((a, b) => (a.workerId < b.workerId ? -1 : 1)).map((w) => ({
      worker_id: w.workerId,
      freshness: (Freshness[w.freshness] ?? "unknown").toLowerCase(),
      valid: valid(view, w, now),
      valid_for_ms: Math.max(0, Math.floor((view.until.get(w.row) ?? now) - now)),
      // Unknown is null, which is not 0.
      total_requests: w.aggregate?.totalRequests === undefined ? null : Number(w.aggregate.totalRequests),
    })),
  };
}

async function main(url: string): Promise<never> {
  const replica = new Replica();
  for (let failures = 0; ; failures++) {
    const began = performance.now();
    const end = await follow(url, replica);
    show("lost", replica.view, end.why);
    if (performance.now() - began > healthyAfter) failures = 0;
    const window = end.within || Math.min(lastWindow, firstWindow * 2 ** failures);
    await sleep(end.least + Math.random() * window);
  }
}

const url = process.argv[2];
if (url === undefined) {
  process.stderr.write("usage: watch.js URL\n");
  process.exit(2);
}
await main(url);
