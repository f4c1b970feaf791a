// Pools and sums over all of them.

import type { Pool } from "./gen/loadplane/v1/common_pb";
import { byId, el, keep, setAttr, setText, workerLink } from "./dom";
import { aggregateFields, fieldOf } from "./fields";
import { compact, count, exact, percent, ratio, toNumber, unknownText, type Num } from "./format";
import { roleName } from "./names";
import { poolName } from "./replica";
import { compareText, type Row } from "./rows";
import { label, shortName } from "./text";

interface PoolColumn {
  readonly name: string;
  readonly short: string;
  readonly title: string;
  readonly kind: "text" | "number" | "share" | "worker";
  readonly text: (p: Pool) => string;
  readonly exact: (p: Pool) => string;
}

function counted(name: string, short: string, title: string, get: (p: Pool) => Num, show: (v: Num) => string = count): PoolColumn {
  const kind = show === percent ? "share" : "number";
  return { name, short, title, kind, text: (p) => show(get(p)), exact: (p) => exact(get(p)) };
}

function summed(name: string): PoolColumn {
  const f = fieldOf(aggregateFields, name);
  return counted(name, f.short, f.title, (p) => p.aggregate && f.get(p.aggregate), f.show);
}

const poolColumns: readonly PoolColumn[] = [
  { name: "model", short: "Model", title: "Model", kind: "text", text: (p) => label(p.key?.model ?? "") || "(no model)", exact: (p) => p.key?.model ?? "" },
  { name: "role", short: "Role", title: "Role", kind: "text", text: (p) => roleName(p.key?.role ?? 0), exact: (p) => roleName(p.key?.role ?? 0) },
  { name: "hottest_worker_id", short: "Hottest", title: "Fresh worker with the highest load, and its most loaded rank", kind: "worker", text: hottest, exact: (p) => p.hottestWorkerId ?? "" },
  counted("workers", "workers", "Workers in the pool", (p) => p.workers),
  counted("expected", "expected", "Workers that count for coverage", (p) => p.expected),
  counted("heard", "heard", "Workers with a report, whatever its age", (p) => p.heard),
  counted("fresh", "fresh", "Workers that are fresh", (p) => p.fresh),
  counted("coverage", "coverage", "Fresh workers over those expected", (p) => p.coverage, percent),
  summed("weighted_token_usage"),
  summed("num_running_reqs"),
  summed("num_waiting_reqs"),
  summed("gen_throughput"),
  summed("num_used_tokens"),
  summed("max_total_num_tokens"),
  counted("token_usage_imbalance", "imbal", "Token usage: largest over mean of the fresh workers", (p) => p.tokenUsageImbalance, ratio),
  counted("request_imbalance", "req imbal", "Requests: largest over mean of the fresh workers", (p) => p.requestImbalance, ratio),
];

function hottest(p: Pool): string {
  if (p.hottestWorkerId === undefined) return unknownText;
  return shortName(p.hottestWorkerId, 40) + (p.hottestRank === undefined ? "" : ` · rank ${p.hottestRank}`);
}

/** Pools shows a line for each pool. */
export class Pools {
  readonly #body = byId("pools-body", HTMLTableSectionElement);
  readonly #note = byId("pools-note", HTMLParagraphElement);
  readonly #lines = new Map<string, HTMLTableRowElement>();

  constructor() {
    const head = el("tr");
    for (const c of poolColumns) head.append(el("th", { scope: "col", class: c.kind, title: c.title }, c.short));
    byId("pools-head", HTMLTableSectionElement).append(head);
  }

  /** draw shows pools by their names; live says whether the stream is. */
  draw(all: ReadonlyMap<string, Pool>, live: boolean): void {
    this.#note.hidden = live;
    const pools = [...all.entries()].sort(([, a], [, b]) => compareText(a.key?.model ?? "", b.key?.model ?? "") || (a.key?.role ?? 0) - (b.key?.role ?? 0));
    const shown = pools.map(([name, pool]) => this.#fill(name, pool));
    keep(this.#body, shown);
    for (const name of this.#lines.keys()) if (!all.has(name)) this.#lines.delete(name);
  }

  #fill(name: string, pool: Pool): HTMLTableRowElement {
    let line = this.#lines.get(name);
    if (!line) {
      line = el("tr", { "data-pool": poolName(pool.key) });
      for (const c of poolColumns) line.append(el("td", { class: c.kind, "data-field": c.name }, c.kind === "number" || c.kind === "share" ? undefined : el(c.kind === "worker" ? "a" : "bdi")));
      this.#lines.set(name, line);
    }
    poolColumns.forEach((c, i) => fillCell(line.children[i], c, pool));
    return line;
  }
}

function fillCell(cell: Element | undefined, c: PoolColumn, p: Pool): void {
  if (!(cell instanceof HTMLElement)) return;
  setText(cell.firstElementChild ?? cell, c.text(p));
  setAttr(cell, "data-value", c.exact(p));
  if (c.kind === "share") cell.style.setProperty("--share", String(Math.min(1, Math.max(0, Number(c.exact(p) || "0")))));
  if (c.kind === "text" || c.kind === "worker") setAttr(cell, "title", label(c.exact(p), 300) || undefined);
  if (c.kind === "worker") setAttr(cell.firstElementChild ?? cell, "href", p.hottestWorkerId === undefined ? undefined : workerLink(p.hottestWorkerId));
}

interface Sum {
  readonly name: string;
  readonly title: string;
  readonly value: HTMLElement;
  readonly note: HTMLElement;
}

/** Sums shows the few numbers to look at first. */
export class Sums {
  readonly #sums = new Map<string, Sum>();

  constructor() {
    const box = byId("sums", HTMLElement);
    for (const [name, title] of [["fresh", "Fresh workers"], ["usage", "Fullest rank"], ["running", "Running"], ["waiting", "Waiting"], ["gen", "Generated tokens/s"], ["ranks", "Ranks"]] as const) {
      const value = el("b", { "data-sum": name });
      const note = el("small");
      box.append(el("div", { class: "sum" }, el("span", {}, title), value, note));
      this.#sums.set(name, { name, title, value, note });
    }
  }

  /** draw shows the sums over all workers, of what is fresh. */
  draw(rows: readonly Row[]): void {
    const fresh = rows.filter((r) => r.freshness === "fresh");
    const others = ["stale", "unreachable", "missing"].map((f) => [f, rows.filter((r) => r.freshness === f).length] as const);
    const notes = others.filter(([, n]) => n > 0).map(([f, n]) => `${n} ${f}`);
    this.#set("fresh", `${fresh.length} / ${rows.length}`, notes.join(", ") || "all of them");
    const [rank, where] = fullest(fresh);
    this.#set("usage", percent(rank), where);
    this.#sum("running", fresh, (r) => r.entry.worker.aggregate?.numRunningReqs, count);
    this.#sum("waiting", fresh, (r) => r.entry.worker.aggregate?.numWaitingReqs, count);
    this.#sum("gen", fresh, (r) => r.entry.worker.aggregate?.genThroughput, compact);
    this.#set("ranks", count(rows.reduce((n, r) => n + r.entry.worker.ranks.length, 0)), `of ${rows.length} workers`);
  }

  /** A sum is known only where all that are fresh tell their part. */
  #sum(name: string, fresh: readonly Row[], get: (r: Row) => Num, show: (v: Num) => string): void {
    const told = fresh.map(get).filter((v) => v !== undefined);
    const all = told.length === fresh.length && fresh.length > 0;
    const total = all ? told.reduce<number>((a, v) => a + toNumber(v), 0) : undefined;
    this.#set(name, show(total), all ? "of all that are fresh" : fresh.length === 0 ? "none is fresh" : `told by ${told.length} of ${fresh.length} fresh`);
  }

  #set(name: string, value: string, note: string): void {
    const s = this.#sums.get(name);
    if (!s) return;
    setText(s.value, value);
    setText(s.note, note);
  }
}

function fullest(fresh: readonly Row[]): [number | undefined, string] {
  let most: number | undefined;
  let where = fresh.length === 0 ? "none is fresh" : "no rank tells it";
  for (const r of fresh) {
    for (const rank of r.entry.worker.ranks) {
      if (rank.tokenUsage === undefined || rank.tokenUsage <= (most ?? -1)) continue;
      most = rank.tokenUsage;
      where = `${shortName(r.id, 32)} · rank ${rank.dpRank}`;
    }
  }
  return [most, where];
}
