// The page: one stream, and what it shows.

import { createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { byId, el, keep, setAttr, setText } from "./dom";
import { fieldOf, rankFields } from "./fields";
import { ago, compact, count, percent } from "./format";
import { SnapshotService } from "./gen/loadplane/v1/snapshot_pb";
import { WorkerService } from "./gen/loadplane/v1/worker_pb";
import { Heatmap } from "./heatmap";
import { History } from "./history";
import { plainView } from "./plain";
import { Pools, Sums } from "./pools";
import { recounted } from "./ranout";
import { Replica } from "./replica";
import { compareText, matches, rejudged, rowOf, rowsOf, type Query, type Row } from "./rows";
import { palette, scales } from "./scale";
import { Stream, type Phase } from "./stream";
import { Table } from "./table";
import { label } from "./text";
import { TokenDialog, withToken } from "./token";
import { WorkerView } from "./worker";

/** tickMs is how often ages and what ran out are looked at. */
const tickMs = 250;
/** calmMs is the time between two changes of sums, pools and table. */
const calmMs = 500;
/** judgeShare bounds the share of time that is spent on judging, as 1 of so many. */
const judgeShare = 8;
/** quietMs is how long the page waits for its first message before it says so. */
const quietMs = 1500;

const phaseTitles: Record<Phase, string> = {
  live: "", lost: "The stream is lost.", old: "The data is old.", denied: "Access is refused.",
};

class Page {
  // The parts below may ask for a frame while they are made.
  #rows: Row[] = [];
  #shown: Row[] = [];
  #phase: Phase = "lost";
  #why = "";
  #wasLive = false;
  #messageAt = -Infinity;
  /** How long ago the last message was, as it is shown. */
  #age = "";
  #frame = 0;
  /** The rows are to be judged anew; what else has to be drawn. */
  #stale = true;
  #heatAsked = false;
  #tableAsked = false;
  #judgeFrom = 0;
  #calmFrom = 0;
  readonly #began = performance.now();
  readonly #root = document.documentElement;
  readonly #replica = new Replica();
  readonly #transport = createConnectTransport({ baseUrl: location.origin, useBinaryFormat: true, interceptors: [withToken] });
  readonly #history = new History();
  readonly #heat = new Heatmap(fieldOf(rankFields, "token_usage"), () => {
    this.#heatAsked = true;
    this.#schedule();
  });
  readonly #table = new Table(() => {
    this.#tableAsked = true;
    this.#schedule();
  });
  readonly #pools = new Pools();
  readonly #sums = new Sums();
  readonly #worker = new WorkerView(createClient(WorkerService, this.#transport), this.#history);
  readonly #token = new TokenDialog(() => this.#stream.retry());
  readonly #stream = new Stream({
    client: createClient(SnapshotService, this.#transport),
    replica: this.#replica,
    now: () => performance.now(),
    applied: () => this.#applied(),
    phase: (phase, why) => this.#phased(phase, why),
  });

  start(): void {
    setAttr(this.#root, "data-state", "lost");
    this.#controls();
    this.#recolour();
    this.#route();
    addEventListener("hashchange", () => this.#route());
    addEventListener("online", () => this.#stream.retry());
    setInterval(() => this.#tick(), tickMs);
    Object.defineProperty(window, "loadplane", { value: Object.freeze({
      view: () => plainView(this.#replica, this.#rows, this.#phase),
      cells: () => this.#heat.cells(),
      drawing: () => ({ ...this.#heat.stats }),
    }) });
    void this.#stream.run(new AbortController().signal);
  }

  #controls(): void {
    const field = byId("heat-field", HTMLSelectElement);
    for (const f of rankFields) field.append(el("option", { value: f.name }, f.title));
    field.addEventListener("change", () => {
      this.#heat.field = fieldOf(rankFields, field.value);
      this.#recolour();
    });
    byId("filters", HTMLFormElement).addEventListener("submit", (e) => e.preventDefault());
    byId("filters", HTMLFormElement).addEventListener("input", () => this.#judgeNow());
    byId("banner-button", HTMLButtonElement).addEventListener("click", () => (this.#phase === "denied" ? this.#token.ask() : this.#stream.retry()));
    byId("token-button", HTMLButtonElement).addEventListener("click", () => this.#token.ask());
    byId("theme-button", HTMLButtonElement).addEventListener("click", () => {
      const theme = this.#root.dataset.theme === "dark" ? "light" : "dark";
      this.#root.dataset.theme = theme;
      localStorage.setItem("loadplane-theme", theme);
      this.#recolour();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (e) => {
      if (localStorage.getItem("loadplane-theme")) return;
      this.#root.dataset.theme = e.matches ? "dark" : "light";
      this.#recolour();
    });
  }

  #recolour(): void {
    const dark = this.#root.dataset.theme === "dark";
    setText(byId("theme-button", HTMLButtonElement), dark ? "Light theme" : "Dark theme");
    const colours = palette(scales[dark ? "dark" : "light"]);
    this.#heat.repaint(colours);
    const canvas = byId("legend-scale", HTMLCanvasElement);
    const ctx = canvas.getContext("2d");
    const width = canvas.width / colours.length;
    colours.forEach((c, i) => {
      if (!ctx) return;
      ctx.fillStyle = c;
      ctx.fillRect(i * width, 0, width + 1, canvas.height);
    });
    this.#judgeNow();
  }

  #route(): void {
    const m = /^#\/worker\/(.+)$/.exec(location.hash);
    let id: string | undefined;
    try {
      id = m?.[1] === undefined ? undefined : decodeURIComponent(m[1]);
    } catch {
      id = undefined;
    }
    const before = this.#worker.open;
    if (location.hash === "#main") return;
    this.#worker.show(id);
    byId("overview", HTMLDivElement).hidden = id !== undefined;
    document.title = id === undefined ? "loadplane" : `${label(id, 60)} · loadplane`;
    if (id !== before && id !== undefined) {
      scrollTo(0, 0);
      byId("worker", HTMLDivElement).querySelector("h1")?.focus({ preventScroll: true });
    }
    this.#judgeNow();
  }

  #applied(): void {
    this.#messageAt = performance.now();
    this.#stale = true;
    this.#schedule();
  }

  #phased(phase: Phase, why: string): void {
    if (phase === "denied") this.#token.ask();
    if (phase === this.#phase && why === this.#why) return;
    const before = this.#phase;
    this.#phase = phase;
    this.#why = why;
    setAttr(this.#root, "data-state", phase);
    if (phase === "denied") {
      byId("token-button", HTMLButtonElement).hidden = false;
    } else if (phase === "live") {
      this.#token.close();
      if (before !== "live") setText(byId("announce", HTMLDivElement), this.#wasLive ? "The stream is back." : "Live.");
      this.#wasLive = true;
    }
    this.#age = ago(performance.now() - this.#messageAt);
    this.#facts();
    this.#banner();
  }

  #banner(): void {
    const quiet = !this.#wasLive && this.#phase === "lost" && performance.now() - this.#began < quietMs;
    const banner = byId("banner", HTMLDivElement);
    banner.hidden = this.#phase === "live" || quiet;
    setAttr(banner, "data-phase", this.#phase);
    setText(byId("live-text", HTMLSpanElement), this.#phase === "lost" && !this.#wasLive ? "connecting" : this.#phase);
    if (banner.hidden) return;
    setText(byId("banner-title", HTMLElement), phaseTitles[this.#phase]);
    setText(byId("banner-text", HTMLSpanElement), this.#bannerText());
    setText(byId("banner-button", HTMLButtonElement), this.#phase === "denied" ? "Enter a token" : "Try now");
  }

  #bannerText(): string {
    const why = this.#why ? ` (${label(this.#why, 160)})` : "";
    if (this.#phase === "denied") return `The plane wants a valid credential${why}.`;
    if (!this.#wasLive) return `The plane does not answer${why}. Trying again.`;
    return `Last message ${this.#age}; workers turn grey as their reports run out${why}. Trying again.`;
  }

  #tick(): void {
    this.#stale = true;
    this.#schedule();
  }

  #schedule(): void {
    if (this.#frame || document.hidden) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      // Header and banner say the same age.
      this.#age = ago(performance.now() - this.#messageAt);
      if (this.#phase !== "live") this.#banner();
      this.#facts();
      if (this.#stale && performance.now() >= this.#judgeFrom) this.#judge();
      if (this.#worker.open === undefined && this.#heatAsked) this.#heat.draw();
      if (this.#worker.open === undefined && this.#tableAsked) this.#table.draw();
      this.#heatAsked = this.#tableAsked = false;
    });
  }

  /** judgeNow is for what people did: it waits for the next frame only. */
  #judgeNow(): void {
    this.#stale = true;
    this.#judgeFrom = this.#calmFrom = 0;
    this.#schedule();
  }

  /** judge judges all workers anew. */
  #judge(): void {
    this.#stale = false;
    const state = this.#replica.state;
    if (!state) return;
    const local = performance.now();
    const server = this.#replica.serverNow(local);
    this.#rows = rejudged(this.#rows, state, local, server) ?? rowsOf(state, local, server);
    this.#history.sample(this.#rows, local);
    const query = this.#query();
    this.#shown = this.#rows.filter((r) => matches(r, query));
    this.#heat.show(this.#shown);
    this.#heatAsked = true;
    if (local >= this.#calmFrom) {
      this.#calmFrom = local + calmMs;
      this.#calm();
    }
    this.#judgeFrom = performance.now() + judgeShare * (performance.now() - local);
  }

  #query(): Query {
    return {
      text: byId("filter-text", HTMLInputElement).value,
      freshness: byId("filter-freshness", HTMLSelectElement).value,
      role: byId("filter-role", HTMLSelectElement).value,
      model: byId("filter-model", HTMLSelectElement).value,
    };
  }

  /** models keeps the list of models to choose from. */
  #models(): void {
    const select = byId("filter-model", HTMLSelectElement);
    const names = [...new Set(this.#rows.flatMap((r) => r.models))].sort(compareText);
    const have = Array.from(select.options).slice(1).map((o) => o.value);
    if (names.length === have.length && names.every((n, i) => n === have[i])) return;
    const chosen = select.value;
    const options = names.map((n) => el("option", { value: n }, label(n, 60)));
    keep(select, [select.options[0] ?? el("option", { value: "" }, "all"), ...options]);
    select.value = names.includes(chosen) ? chosen : "";
  }

  /** calm shows what need not follow every message. */
  #calm(): void {
    const state = this.#replica.state;
    if (!state) return;
    setAttr(this.#root, "data-version", String(state.position.version));
    setText(byId("fact-version", HTMLElement), count(state.position.version));
    this.#models();
    this.#table.show(this.#shown);
    if (this.#worker.open !== undefined) return this.#showWorker(this.#worker.open);
    this.#sums.draw(this.#rows);
    const live = this.#phase === "live";
    this.#pools.draw(live ? state.pools : recounted(state.pools, this.#rows), live);
    this.#tableAsked = true;
    setText(byId("filter-count", HTMLSpanElement), `${count(this.#shown.length)} of ${count(this.#rows.length)} workers`);
    const empty = byId("grid-empty", HTMLParagraphElement);
    empty.hidden = this.#shown.length > 0;
    setText(empty, this.#rows.length === 0 ? "The plane knows no workers." : "No worker matches the filter.");
    const f = this.#heat.field;
    setText(byId("legend-high", HTMLSpanElement), f.top === 1 ? percent(1) : compact(this.#heat.top));
  }

  #showWorker(id: string): void {
    const local = performance.now();
    const server = this.#replica.serverNow(local);
    const state = this.#replica.state;
    const entry = state?.workers.get(id);
    this.#worker.draw({
      row: entry && rowOf(entry, local, server),
      serverMs: server,
      serverUnixMs: state && state.head.serverUnixMs + (local - this.#messageAt),
    });
  }

  #facts(): void {
    const state = this.#replica.state;
    if (!state) return;
    setAttr(this.#root, "data-lineage", state.position.lineage);
    setText(byId("fact-server", HTMLElement), label(state.head.serverId.slice(0, 12)));
    setAttr(byId("fact-server", HTMLElement), "title", label(state.head.serverId));
    setText(byId("fact-lineage", HTMLElement), label(state.position.lineage.slice(0, 12)));
    setAttr(byId("fact-lineage", HTMLElement), "title", label(state.position.lineage));
    setText(byId("fact-message", HTMLElement), this.#age);
    byId("warming", HTMLSpanElement).hidden = !state.head.warming;
  }
}

new Page().start();
