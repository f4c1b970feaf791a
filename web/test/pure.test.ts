import { create } from "@bufbuild/protobuf";
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { ServerClock } from "../src/clock";
import { aggregateFields, rankFields } from "../src/fields";
import { age, ago, compact, count, duration, exact, percent, ratio, seconds, unknownText } from "../src/format";
import { AggregateSchema, Dialect, Freshness, PoolSchema, RankLoadSchema, Role, Status } from "../src/gen/loadplane/v1/common_pb";
import { layOut, moved, originOf, spotAt } from "../src/heatlayout";
import { History, span, stepMs } from "../src/history";
import { dialectName, freshnessName, roleName, statusName } from "../src/names";
import { recounted } from "../src/ranout";
import { poolName, Replica } from "../src/replica";
import { columns, hottestFirst, matches, rowsOf, sorted, type Query, type Row } from "../src/rows";
import { at, luminance, palette, roundUp, scales, step, steps } from "../src/scale";
import { label, shorten, shortName, visible } from "../src/text";
import { full, receipts, worker } from "./make";

describe("numbers", () => {
  test("unknown is a dash, never 0", () => {
    for (const show of [compact, count, percent, ratio, seconds, duration, age]) assert.equal(show(undefined), unknownText);
    for (const show of [compact, count, percent, ratio, seconds]) assert.equal(show(NaN), unknownText);
    assert.equal(exact(undefined), "");
  });
  test("in few digits", () => {
    const cases: [number | bigint, string][] = [[0, "0"], [999, "999"], [1000n, "1.00k"], [12_345, "12.3k"], [999_949, "1.00M"], [999_960n, "1.00M"], [123_456_789n, "123M"], [0.126, "0.13"], [12.34, "12.3"], [345.6, "346"], [2n ** 50n, "1.13P"]];
    for (const [v, want] of cases) assert.equal(compact(v), want, String(v));
  });
  test("of time that passed, in whole seconds", () => {
    const cases: [number, string][] = [[0, "just now"], [1499, "just now"], [1500, "2 s ago"], [2499, "2 s ago"], [2500, "3 s ago"], [9949, "10 s ago"], [9950, "10 s ago"], [119_499, "119 s ago"], [120_000, "2 min ago"]];
    for (const [ms, want] of cases) assert.equal(ago(ms), want, String(ms));
  });
  test("with all digits", () => {
    assert.equal(exact(9007199254740993n), "9007199254740993");
    assert.equal(count(1234567n), "1\u202f234\u202f567");
    assert.equal(count(12), "12");
  });
  test("shares and times", () => {
    assert.equal(percent(0), "0%");
    assert.equal(percent(0.034), "3.4%");
    assert.equal(percent(0.625), "63%");
    assert.equal(percent(1.2), "120%");
    assert.equal(duration(320), "320 ms");
    assert.equal(duration(1500), "1.5 s");
    assert.equal(duration(-20), "−20 ms");
    assert.equal(duration(90_000), "90 s");
    assert.equal(duration(600_000), "10 min");
    assert.equal(age(70), "0.1 s");
  });
});

describe("text from outside", () => {
  test("what does not show is shown as its number", () => {
    assert.equal(visible("a\u202eb"), "a<U+202E>b");
    assert.equal(visible("a\nb\0"), "a<U+000A>b<U+0000>");
    assert.equal(visible("\u200b\u2066\ufeff\u061c"), "<U+200B><U+2066><U+FEFF><U+061C>");
    assert.equal(visible("\ud800"), "<U+D800>");
    assert.equal(visible("\u{e0041}"), "<U+E0041>");
    assert.equal(visible("\u3164\u034f\u2028"), "<U+3164><U+034F><U+2028>");
  });
  test("what shows stays", () => {
    for (const s of ["<script>alert(1)</script>", "http://10.0.0.1:30000", "Zürich 中文 שלום 🙂", "a b"]) assert.equal(visible(s), s);
  });
  test("long names are cut in the middle, between characters", () => {
    assert.equal(shorten("abcdefghij", 5), "ab…ij");
    assert.equal(Array.from(label("🙂".repeat(1000), 96)).length, 96);
    assert.equal(shorten("short", 5), "short");
  });
  test("the scheme is left out of short names", () => {
    assert.equal(shortName("http://a:1"), "a:1");
    assert.equal(shortName("https://a:1"), "https://a:1");
    assert.equal(shortName("http://"), "http://");
  });
});

describe("colours", () => {
  for (const [theme, scale] of Object.entries(scales)) {
    test(`of the ${theme} theme go one way in lightness`, () => {
      const lights = Array.from({ length: steps }, (_, i) => luminance(at(scale, i / (steps - 1))));
      const sign = Math.sign((lights[steps - 1] ?? 0) - (lights[0] ?? 0));
      lights.forEach((l, i) => assert.ok(i === 0 || sign * (l - (lights[i - 1] ?? 0)) > 0, `step ${i}`));
      const [low, high] = [Math.min(...lights), Math.max(...lights)];
      assert.ok((high + 0.05) / (low + 0.05) > 7, "the ends are far from each other");
    });
  }
  test("steps are held within the scale", () => {
    assert.equal(step(0, 1), 0);
    assert.equal(step(1, 1), steps - 1);
    assert.equal(step(7, 1), steps - 1);
    assert.equal(step(-1, 1), 0);
    assert.equal(step(5, 0), 0);
    assert.equal(new Set(palette(scales.light)).size, steps);
  });
  test("the end of a scale is a round number", () => {
    for (const [v, want] of [[0, 1], [NaN, 1], [1, 1], [1.2, 2], [3, 5], [7, 10], [143, 200], [5001, 10_000], [0.03, 0.05]] as const) assert.equal(roundUp(v), want, String(v));
  });
});

describe("words", () => {
  test("of the wire", () => {
    assert.deepEqual([Role.REGULAR, Role.PREFILL, Role.DECODE, 99 as Role].map(roleName), ["plain", "prefill", "decode", "unknown"]);
    assert.deepEqual([Freshness.FRESH, Freshness.STALE, Freshness.MISSING, Freshness.UNREACHABLE, 99 as Freshness].map(freshnessName), ["fresh", "stale", "missing", "unreachable", "unknown"]);
    assert.deepEqual([Dialect.PUSH, Dialect.LOADSTAT, Dialect.UNSPECIFIED, 99 as Dialect].map(dialectName), ["push", "loadstat", "undecided", "unknown"]);
    assert.deepEqual([Status.HEALTHY, Status.UNSPECIFIED].map(statusName), ["healthy", "unknown"]);
  });
  test("all numbers of the wire are fields", () => {
    const camel = (s: string) => s.replace(/_([a-z])/g, (_, c: string) => c.toUpperCase());
    const rank = new Set(RankLoadSchema.fields.map((f) => f.localName));
    rank.delete("dpRank");
    assert.deepEqual(new Set(rankFields.map((f) => camel(f.name))), rank);
    const sum = new Set(AggregateSchema.fields.map((f) => f.localName));
    for (const f of ["rankCount", "hottestRank", "hottestRankReason"]) sum.delete(f);
    assert.deepEqual(new Set(aggregateFields.map((f) => camel(f.name))), sum);
    for (const f of rankFields) assert.equal(f.get(create(RankLoadSchema, { [camel(f.name)]: f.name.includes("reqs") || f.name.includes("tokens") || f.name === "max_running_requests" ? 3n : 3 })) == 3, true, f.name);
  });
});

function rows(): Row[] {
  const r = new Replica();
  r.apply(full(1n, 1000, [
    worker(1, 5, { models: ["m"], role: Role.DECODE, zone: "z1", labels: { gpu: "H100" } }),
    worker(2, 50, { models: ["n", "m"], role: Role.REGULAR }),
    worker(3, 7, { models: ["n"], role: Role.REGULAR, aggregate: {} }),
    worker(4, 9, { models: ["m"], role: Role.REGULAR, freshness: Freshness.UNREACHABLE, freshnessReason: "engine_unreachable" }),
  ]), 0);
  const s = r.state;
  assert.ok(s);
  return rowsOf(s, 500, r.serverNow(500));
}

describe("rows", () => {
  const all: Query = { text: "", freshness: "", role: "", model: "" };
  const ids = (of: readonly Row[]) => of.map((r) => r.id);
  test("come by role, model and id", () => assert.deepEqual(ids(rows()), ["w1", "w4", "w3", "w2"]));
  test("are judged at the time", () => {
    assert.deepEqual(rows().map((r) => r.ageMs), [500, 500, 500, 500]);
    const r = new Replica();
    r.apply(full(1n, 1000, [worker(1)]), 0);
    const s = r.state;
    assert.ok(s);
    assert.equal(rowsOf(s, 2999, r.serverNow(2999))[0]?.freshness, "fresh");
    const late = rowsOf(s, 3000, r.serverNow(3000))[0];
    assert.deepEqual([late?.freshness, late?.reason], ["stale", "age"]);
  });
  test("are filtered", () => {
    const by = (q: Partial<Query>) => ids(rows().filter((r) => matches(r, { ...all, ...q }))).sort();
    assert.deepEqual(by({}), ["w1", "w2", "w3", "w4"]);
    assert.deepEqual(by({ text: "  h100 Z1 " }), ["w1"]);
    assert.deepEqual(by({ text: "gpu=h100 w2" }), []);
    assert.deepEqual(by({ role: "plain", model: "m" }), ["w2", "w4"]);
    assert.deepEqual(by({ freshness: "not fresh" }), ["w4"]);
    assert.deepEqual(by({ freshness: "fresh", model: "n" }), ["w2", "w3"]);
  });
  test("are sorted, the unknown last in both directions", () => {
    const by = (column: string, down: boolean) => ids(sorted(rows(), { column, down }));
    assert.deepEqual(by("num_running_reqs", false), ["w1", "w2", "w3", "w4"]);
    assert.deepEqual(by("num_running_reqs", true), ["w2", "w1", "w3", "w4"]);
    assert.deepEqual(by("zone", true), ["w1", "w2", "w3", "w4"]);
    assert.deepEqual(by("worker_id", true), ["w4", "w3", "w2", "w1"]);
  });
  test("are sorted by the hottest at first, what is not fresh last", () => {
    const r = new Replica();
    const used = (row: number, maxRankTokenUsage: number, more = {}) => worker(row, row, { aggregate: { maxRankTokenUsage }, ...more });
    r.apply(full(1n, 1000, [used(1, 0.4), used(2, 0.9), used(3, 0.99, { freshness: Freshness.STALE }), used(4, 0.95, { freshness: Freshness.STALE }), worker(5), used(6, 0.4)]), 0);
    const s = r.state;
    assert.ok(s);
    const order = (at: number) => ids(sorted(rowsOf(s, at, r.serverNow(at)), hottestFirst));
    assert.deepEqual(order(500), ["w2", "w1", "w6", "w5", "w3", "w4"]);
    assert.deepEqual(order(9000), ["w3", "w4", "w2", "w1", "w6", "w5"], "nothing is fresh");
  });
  test("show every column, unknown as a dash", () => {
    const unknown = rows().find((r) => r.id === "w3");
    assert.ok(unknown);
    for (const c of columns.filter((one) => one.kind === "share" || one.name.startsWith("num_"))) {
      assert.equal(c.text(unknown), unknownText);
      assert.equal(c.exact(unknown), "");
    }
  });
});

describe("pools without a stream", () => {
  const pool = (model: string, fresh: number) => create(PoolSchema, {
    key: { model, role: Role.REGULAR }, workers: 2, expected: 2, heard: 2, fresh, coverage: fresh / 2,
    aggregate: { numRunningReqs: 9n }, hottestWorkerId: "w1", hottestRank: 0, tokenUsageImbalance: 1.5,
  });
  const of = (at: number) => {
    const r = new Replica();
    const early = worker(1, 1, { models: ["m"], role: Role.REGULAR });
    const late = worker(2, 2, { models: ["m", "n"], role: Role.REGULAR });
    const nameless = worker(3, 3, { role: Role.REGULAR });
    r.apply(full(1n, 1000, [early, late, nameless], { liveness: { workers: [...receipts(0, 1)?.workers ?? [], ...receipts(1000, 2, 3)?.workers ?? []] } }), 0);
    const s = r.state;
    assert.ok(s);
    const pools = new Map([pool("m", 2), pool("n", 1), pool("", 1), pool("other", 0)].map((p) => [poolName(p.key), p]));
    return { pools, then: recounted(pools, rowsOf(s, at, r.serverNow(at))), name: (model: string) => poolName({ model, role: Role.REGULAR }) };
  };
  test("stay while nothing ran out", () => {
    const { pools, then } = of(0);
    assert.deepEqual(Array.from(then), Array.from(pools));
  });
  test("lose what ran out, and what was known of it", () => {
    const { pools, then, name } = of(2500);
    const m = then.get(name("m"));
    assert.deepEqual([m?.fresh, m?.coverage, m?.workers, m?.expected, m?.heard], [1, 0.5, 2, 2, 2]);
    assert.deepEqual([m?.aggregate, m?.hottestWorkerId, m?.hottestRank, m?.tokenUsageImbalance], [undefined, undefined, undefined, undefined]);
    for (const model of ["n", "", "other"]) assert.equal(then.get(name(model)), pools.get(name(model)), model);
  });
  test("end with none that is fresh", () => {
    const { then, name } = of(4000);
    for (const model of ["m", "n", ""]) assert.deepEqual([then.get(name(model))?.fresh, then.get(name(model))?.coverage], [0, 0], model);
  });
  test("of planes that tell no count stay", () => {
    const told = create(PoolSchema, { key: { model: "m", role: Role.REGULAR } });
    assert.equal(recounted(new Map([["a", told]]), []).get("a"), told);
  });
});

describe("heatmap", () => {
  test("every rank has one cell, and the cell is where it says", () => {
    for (const [ranks, width] of [[[4, 1, 0, 20, 3], 700], [Array.from({ length: 5000 }, () => 8), 1240], [[512, 1], 380], [[1], 20]] as const) {
      const l = layOut(ranks, width);
      const seen = new Map<string, number>();
      l.slots.forEach((s, slot) => {
        const { x, y } = originOf(l, slot);
        for (let place = 0; place < Math.max(1, s.ranks); place++) {
          const spot = spotAt(l, x + (place + 0.5) * l.cellWidth, y + 1);
          assert.deepEqual(spot, { slot, place });
          const key = `${s.worker} ${s.first + place}`;
          assert.ok(!seen.has(key));
          seen.set(key, slot);
        }
      });
      assert.equal(seen.size, ranks.reduce((n, r) => n + Math.max(1, r), 0));
    }
  });
  test("keys lead through all cells and stop at the ends", () => {
    const l = layOut([3, 0, 20, 2], 400);
    let spot = { slot: 0, place: 0 };
    const path = [spot];
    for (let next = moved(l, spot, "ArrowRight"); next && (next.slot !== spot.slot || next.place !== spot.place); next = moved(l, spot, "ArrowRight")) path.push((spot = next));
    assert.equal(path.length, 3 + 1 + 20 + 2);
    assert.deepEqual(spot, moved(l, spot, "End"));
    assert.deepEqual(moved(l, spot, "Home"), { slot: 0, place: 0 });
    assert.deepEqual(moved(l, { slot: 0, place: 0 }, "ArrowUp"), { slot: 0, place: 0 });
    assert.equal(moved(l, spot, "x"), undefined);
  });
  test("thousands of workers are drawn small and without names", () => {
    assert.equal(layOut(Array.from({ length: 5000 }, () => 8), 1240).labelWidth, 0);
    assert.ok(layOut([4, 4], 1240).labelWidth > 0);
  });
});

describe("history", () => {
  test("keeps five minutes, with gaps", () => {
    assert.equal(span * stepMs, 300_000);
    const h = new History();
    const fresh = rows();
    assert.equal(h.sample(fresh, 0), true);
    assert.equal(h.sample(fresh, stepMs - 1), false, "not due");
    assert.equal(h.sample(fresh, stepMs), true);
    assert.equal(h.sample(fresh, 4 * stepMs), true);
    assert.deepEqual(h.of("w1", "num_running_reqs").slice(-5), [5, 5, NaN, NaN, 5]);
    assert.deepEqual(h.of("w4", "num_running_reqs").slice(-1), [NaN], "not fresh is a gap");
    assert.deepEqual(h.of("w3", "num_running_reqs").slice(-1), [NaN], "unknown is a gap");
    assert.equal(h.of("w1", "gen_throughput").length, span);
    h.sample([], 5 * stepMs);
    assert.ok(h.of("w1", "num_running_reqs").every(Number.isNaN), "a worker that left is forgotten");
    h.sample(fresh, 1e9);
    assert.equal(h.of("w1", "num_running_reqs").filter((v) => !Number.isNaN(v)).length, 1);
  });
});

describe("the server's clock", () => {
  test("is that of the message that was late the least, of two minutes", () => {
    const c = new ServerClock();
    assert.equal(c.now(0), undefined);
    c.learn(1000, 10);
    c.learn(1500, 600); // 90 ms later
    assert.equal(c.now(600), 1590);
    c.learn(2000, 1000); // 10 ms earlier
    assert.equal(c.now(1000), 2000);
    c.learn(131_000, 130_500);
    assert.equal(c.now(130_500), 131_000, "the best one is too old to count");
    c.forget();
    assert.equal(c.now(0), undefined);
  });
});
