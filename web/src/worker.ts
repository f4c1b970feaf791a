// The view of one worker.

import { Code, ConnectError, type Client } from "@connectrpc/connect";
import type { ExplainWorkerResponse, WorkerService, Check, Diagnostic, WorkerInfo } from "./gen/loadplane/v1/worker_pb";
import { Chart } from "./chart";
import { byId, el, keep, setAttr, setText } from "./dom";
import { aggregateFields, rankFields } from "./fields";
import { age, compact, count, duration, exact, list, percent, toNumber, unknownText } from "./format";
import type { History, SeriesName } from "./history";
import { dialectName, statusName, verdictName } from "./names";
import type { Row } from "./rows";
import { label, visible } from "./text";

/** explainEvery is the time between two questions while the view is open, milliseconds. */
const explainEvery = 2000;

const charts: readonly [SeriesName, string, (v: number) => string, number | undefined][] = [
  ["weighted_token_usage", "Token usage", percent, 1],
  ["num_running_reqs", "Running requests", count, undefined],
  ["num_waiting_reqs", "Waiting requests", count, undefined],
  ["gen_throughput", "Generated tokens/s", compact, undefined],
];

/** Now is what a view needs of the page at one time. */
export interface Now {
  readonly row: Row | undefined;
  readonly serverMs: number | undefined;
  readonly serverUnixMs: number | undefined;
}

/** WorkerView shows one worker in the element worker while it is open. */
export class WorkerView {
  readonly #box = byId("worker", HTMLDivElement);
  readonly #title = el("bdi");
  readonly #state = el("span", { class: "pill" });
  readonly #summary = el("p", { class: "summary" });
  readonly #facts = el("dl", { class: "details" });
  readonly #ranks = el("table", { class: "ranks" });
  readonly #sums = el("dl", { class: "sums all" });
  readonly #checks = el("ul", { class: "checks" });
  readonly #checksNote = el("p", { class: "note" });
  readonly #events = el("ul", { class: "events" });
  readonly #eventsTitle = el("h2", { hidden: "" }, "What happened last");
  readonly #charts: readonly Chart[];
  #id: string | undefined;
  #info: WorkerInfo | undefined;
  #asking: AbortController | undefined;
  #timer: ReturnType<typeof setInterval> | undefined;

  constructor(readonly client: Client<typeof WorkerService>, readonly history: History) {
    this.#charts = charts.map(([name, title, show, top]) => new Chart(name, title, show, top));
    const ranks = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Ranks" }, this.#ranks);
    this.#box.append(
      el("p", {}, el("a", { href: "#/", class: "back" }, "← All workers")),
      el("h1", { tabindex: "-1" }, this.#title, " ", this.#state),
      this.#summary,
      el("div", { class: "charts" }, ...this.#charts.map((c) => c.element)),
      el("section", {}, el("h2", {}, "Ranks"), ranks),
      el("section", {}, el("h2", {}, "All ranks together"), this.#sums),
      el("div", { class: "columns" },
        el("section", {}, el("h2", {}, "Worker"), this.#facts),
        el("section", {}, el("h2", {}, "Checks"), this.#checksNote, this.#checks, this.#eventsTitle, this.#events)),
    );
  }

  /** open is the worker that is shown; undefined for none. */
  get open(): string | undefined {
    return this.#id;
  }

  /** show opens the view of a worker, or closes it. */
  show(id: string | undefined): void {
    if (id === this.#id) return;
    this.#id = id;
    this.#info = undefined;
    clearInterval(this.#timer);
    this.#asking?.abort();
    this.#asking = undefined;
    this.#box.hidden = id === undefined;
    if (id === undefined) return;
    keep(this.#checks, []);
    keep(this.#events, []);
    this.#eventsTitle.hidden = true;
    setText(this.#summary, "");
    setText(this.#title, label(id, 200));
    setText(this.#checksNote, "Asking the plane …");
    this.#timer = setInterval(() => void this.#explain(id), explainEvery);
    void this.#explain(id);
  }

  /** draw brings the view up to date. */
  draw(now: Now): void {
    if (this.#id === undefined) return;
    setAttr(this.#box, "data-worker", this.#id);
    this.#drawState(now.row);
    for (const c of this.#charts) c.draw(this.history.of(this.#id, c.name));
    keepPairs(this.#facts, now.row ? this.#factsOf(now.row, now) : []);
    const ranks = now.row?.entry.worker.ranks ?? [];
    drawRanks(this.#ranks, now.row, this.#id);
    const a = now.row?.entry.worker.aggregate;
    keepPairs(this.#sums, aggregateFields.map((f) => [f.title, a ? f.show(f.get(a)) : unknownText, f.name, a ? exact(f.get(a)) : ""]));
    this.#ranks.hidden = ranks.length === 0;
  }

  #drawState(row: Row | undefined): void {
    const word = row?.freshness ?? "gone";
    setAttr(this.#state, "data-freshness", word);
    setAttr(this.#state, "data-field", "freshness");
    setAttr(this.#state, "data-value", word);
    setText(this.#state, row ? (row.reason ? `${word} · ${label(row.reason, 40)}` : word) : "not in the view");
  }

  #factsOf(row: Row, now: Now): Pair[] {
    const w = row.entry.worker;
    const r = row.entry.receipt;
    const info = this.#info;
    const left = r && now.serverMs !== undefined ? Number(r.validUntilMs) - now.serverMs : undefined;
    const sample = r?.oldestSampleUnixMs !== undefined && now.serverUnixMs !== undefined ? now.serverUnixMs - Number(r.oldestSampleUnixMs) : undefined;
    const pairs: (Pair | undefined)[] = [
      ["URL", label(w.url, 300), "url", w.url],
      ["Models", list(w.models), "models", w.models.join(",")],
      ["Role", row.role, "role", row.role],
      ["Zone", w.zone === undefined ? unknownText : label(w.zone), "zone", w.zone ?? ""],
      ["Labels", list(Object.entries(w.labels).map(([k, v]) => `${k}=${v}`)), "labels", ""],
      ["Discovered by", info ? label(info.discoveredBy) : unknownText, "discovered_by", info?.discoveredBy ?? ""],
      ["Dialect", dialectName(w.dialect) + (info?.dialectWhy ? `: ${label(info.dialectWhy, 300)}` : ""), "dialect", dialectName(w.dialect)],
      info?.engine === undefined ? undefined : ["Engine", label(`${info.engine} ${info.engineVersion ?? ""}`.trim()), "engine", info.engine],
      ["Engine says", statusName(w.status), "status", statusName(w.status)],
      ["Source instance", label(w.sourceInstanceId) || unknownText, "source_instance_id", w.sourceInstanceId],
      ["Sequence", r ? count(r.sequenceId) : unknownText, "sequence_id", r ? String(r.sequenceId) : ""],
      ["Age of the last report", age(row.ageMs), "age_ms", row.ageMs?.toFixed(0) ?? ""],
      ["Valid for", left === undefined ? unknownText : left > 0 ? age(left) : "ran out", "valid_for_ms", left?.toFixed(0) ?? ""],
      ["Age of the oldest sample, by both wall clocks", duration(sample), "sample_age_ms", sample?.toFixed(0) ?? ""],
      ["Clock skew of the engine", info?.clockSkewMs === undefined ? unknownText : duration(Number(info.clockSkewMs)), "clock_skew_ms", exact(info?.clockSkewMs)],
      ["Report interval", duration(w.reportIntervalMs), "report_interval_ms", String(w.reportIntervalMs)],
      ["Draining", w.draining ? "yes" : "no", "draining", String(w.draining)],
      ["Partial", w.partial ? "yes: a field is unknown on some rank" : "no", "partial", String(w.partial)],
      ["Flags", list(w.flags), "flags", w.flags.join(",")],
      r?.lastError === undefined ? undefined : ["Last error of the engine", label(r.lastError, 1024), "last_error", r.lastError],
    ];
    return pairs.filter((p) => p !== undefined);
  }

  async #explain(id: string): Promise<void> {
    if (this.#asking || document.hidden) return;
    const asking = new AbortController();
    this.#asking = asking;
    try {
      const answer = await this.client.explainWorker({ workerId: id }, { signal: asking.signal, timeoutMs: 5000 });
      if (this.#id === id) this.#take(answer);
    } catch (err) {
      if (this.#id === id) this.#failed(ConnectError.from(err));
    } finally {
      if (this.#asking === asking) this.#asking = undefined;
    }
  }

  #take(answer: ExplainWorkerResponse): void {
    this.#info = answer.worker;
    setText(this.#summary, visible(answer.summary));
    setText(this.#checksNote, answer.checks.length === 0 ? "The plane has no checks for this worker." : "");
    keep(this.#checks, answer.checks.map((c, i) => checkLine(this.#checks.children[i], c)));
    this.#eventsTitle.hidden = answer.diagnostics.length === 0;
    keep(this.#events, answer.diagnostics.map((d, i) => eventLine(this.#events.children[i], d, answer.serverClockMs)));
  }

  #failed(err: ConnectError): void {
    const why = err.code === Code.Unimplemented ? "This plane does not explain workers."
      : err.code === Code.NotFound ? "The plane knows no worker of this name."
      : `The checks are not known: ${label(err.rawMessage, 200)}`;
    setText(this.#checksNote, why);
    if (err.code === Code.Unimplemented || err.code === Code.NotFound) keep(this.#checks, []);
  }
}

/** Pair is a line of a list: title, text, name on the wire and exact value. */
type Pair = readonly [title: string, text: string, name: string, value: string];

function keepPairs(dl: HTMLElement, pairs: readonly Pair[]): void {
  keep(dl, pairs.map(([title, text, name, value], i) => {
    const line = dl.children[i] ?? el("div", {}, el("dt"), el("dd", {}, el("bdi")));
    const [dt, dd] = line.children;
    if (dt) setText(dt, title);
    if (dd) {
      setText(dd.firstElementChild ?? dd, text);
      setAttr(dd, "data-field", name);
      setAttr(dd, "data-value", value);
    }
    return line;
  }));
}

/** reuse takes an element that is held, with texts in its parts. */
function reuse(held: Element | undefined, parts: readonly [string, string][]): Element {
  const e = held ?? el("li", {}, ...parts.map(([part]) => el("bdi", { class: part })));
  parts.forEach(([, text], i) => {
    const part = e.children[i];
    if (part) setText(part, text);
  });
  return e;
}

function checkLine(held: Element | undefined, c: Check): Element {
  const verdict = verdictName(c.verdict);
  const limit = c.limit === undefined ? "" : `limit ${label(c.limit, 200)}`;
  const advice = [c.reason && `(${c.reason})`, c.advice].filter((t) => t).map((t) => label(String(t), 400)).join(" ");
  const e = reuse(held, [["verdict", verdict], ["name", label(c.name)], ["value", label(c.value, 400)], ["limit", limit], ["advice", advice]]);
  setAttr(e, "data-verdict", verdict);
  setAttr(e, "data-check", c.name);
  return e;
}

function eventLine(held: Element | undefined, d: Diagnostic, serverMs: bigint): Element {
  const ago = duration(Math.max(0, Number(serverMs - d.atMs))) + " ago";
  const times = d.count > 1 ? `${d.count} times` : "";
  return reuse(held, [["ago", ago], ["name", label(d.event)], ["reason", label(d.reason ?? "")], ["value", label(d.detail ?? "", 400)], ["times", times]]);
}

/** shownRanks is the most ranks that the table lists. */
const shownRanks = 512;

/** drawRanks fills the table of ranks: those fields that any rank knows, and the usual ones. */
function drawRanks(table: HTMLTableElement, row: Row | undefined, id: string): void {
  const ranks = row?.entry.worker.ranks.slice(0, shownRanks) ?? [];
  const fields = rankFields.filter((f, i) => i < 10 || ranks.some((r) => f.get(r) !== undefined));
  const shape = fields.map((f) => f.name).join();
  if (table.dataset.shape !== shape) {
    const heads = fields.map((f) => el("th", { scope: "col", title: f.title }, f.short));
    table.replaceChildren(el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "rank"), ...heads)), el("tbody"));
    table.dataset.shape = shape;
  }
  const body = table.tBodies[0];
  if (!body) return;
  keep(body, ranks.map((rank, i) => {
    const line = body.children[i] ?? el("tr", {}, el("th", { scope: "row" }), ...fields.map((f) => el("td", { "data-field": f.name, class: f.top === 1 ? "share" : "number" })));
    setAttr(line, "data-rank", String(rank.dpRank));
    setAttr(line, "data-worker", id);
    setAttr(line, "data-freshness", row?.freshness);
    if (line.firstElementChild) setText(line.firstElementChild, String(rank.dpRank));
    fields.forEach((f, k) => {
      const cell = line.children[k + 1];
      if (!(cell instanceof HTMLElement)) return;
      const v = f.get(rank);
      setText(cell, f.show(v));
      setAttr(cell, "data-value", exact(v));
      setAttr(cell, "title", v === undefined ? "unknown" : exact(v));
      if (f.top === 1) cell.style.setProperty("--share", String(Math.min(1, Math.max(0, toNumber(v) || 0))));
    });
    return line;
  }));
}
