// The heatmap: every rank of every worker as a cell on one canvas. Only rows
// that can be seen are drawn, and of those only cells that changed.

import type { RankLoad } from "./gen/loadplane/v1/common_pb";
import type { Field } from "./fields";
import { toNumber } from "./format";
import { layOut, moved, originOf, pad, spotAt, type Layout, type Spot } from "./heatlayout";
import type { Row } from "./rows";
import { roundUp, step, steps } from "./scale";
import { byId, keep, setText, styleOf, el, workerLink } from "./dom";
import { label, shortName } from "./text";

/** Looks of a cell that are not colours of the scale. */
const grey = steps;
const hatched = steps + 1;
const undrawn = -1;

/** Cell is a cell that can be seen, for tests. */
export interface Cell {
  readonly worker: string;
  readonly rank: number | undefined;
  readonly kind: "value" | "stale" | "unknown";
  readonly value: string;
  /** Middle of the cell in the window, CSS pixels. */
  readonly x: number;
  readonly y: number;
}

interface Paint {
  readonly scale: readonly string[];
  readonly grey: string;
  readonly line: string;
  readonly ground: string;
  readonly text: string;
  readonly faint: string;
  readonly focus: string;
}

/** Heatmap draws into the element heat. */
export class Heatmap {
  readonly #box = byId("heat", HTMLDivElement);
  readonly #space = byId("heat-space", HTMLDivElement);
  readonly #canvas = byId("heat-canvas", HTMLCanvasElement);
  readonly #tip = byId("tip", HTMLDivElement);
  readonly #spoken = byId("heat-cell", HTMLDivElement);
  readonly #draw2d = this.#canvas.getContext("2d");
  #rows: readonly Row[] = [];
  #layout: Layout = layOut([], 300);
  #shape = "";
  #ranks: readonly number[] = [];
  #drawn = new Int16Array(0);
  #labels: string[] = [];
  #whole = true;
  #at: Spot | undefined;
  #hover = false;
  #paint: Paint | undefined;
  #top = 1;
  /** Time that the last drawing took, milliseconds, and cells drawn by it. */
  readonly stats = { ms: 0, cells: 0 };

  constructor(public field: Field<RankLoad>, readonly redraw: () => void) {
    this.#box.addEventListener("scroll", () => { this.#whole = true; redraw(); }, { passive: true });
    new ResizeObserver(() => { this.#shape = ""; redraw(); }).observe(this.#box);
    this.#box.addEventListener("pointermove", (e) => this.#point(e));
    this.#box.addEventListener("pointerleave", () => this.#leave());
    this.#box.addEventListener("click", (e) => { this.#point(e); this.#open(); });
    this.#box.addEventListener("keydown", (e) => this.#key(e));
    this.#box.addEventListener("focus", () => this.#focused());
    this.#box.addEventListener("blur", () => this.#leave());
  }

  /** top is the value at the upper end of the scale. */
  get top(): number {
    return this.#top;
  }

  /** show takes the workers to draw with the next draw. */
  show(rows: readonly Row[]): void {
    const changed = rows.length !== this.#rows.length || rows.some((r, i) => {
      const old = this.#rows[i];
      return r.id !== old?.id || r.entry.worker.ranks.length !== this.#ranks[i];
    });
    this.#rows = rows;
    if (changed) {
      this.#ranks = rows.map((r) => r.entry.worker.ranks.length);
      this.#shape = "";
    }
    const top = this.field.top ?? roundUp(this.#highest());
    if (top !== this.#top) this.#whole = true;
    this.#top = top;
  }

  /** repaint takes new colours or another field. */
  repaint(paint: readonly string[]): void {
    this.#paint = {
      scale: paint, grey: styleOf("--cell-grey"), line: styleOf("--cell-line"), ground: styleOf("--panel"),
      text: styleOf("--text"), faint: styleOf("--faint"), focus: styleOf("--focus"),
    };
    this.#whole = true;
  }

  #highest(): number {
    let most = 0;
    for (const r of this.#rows) {
      if (r.freshness !== "fresh") continue;
      for (const rank of r.entry.worker.ranks) {
        const v = toNumber(this.field.get(rank));
        if (v > most) most = v;
      }
    }
    return most;
  }

  /** draw brings the canvas up to date. */
  draw(): void {
    const began = performance.now();
    this.stats.cells = 0;
    this.#fit();
    const ctx = this.#draw2d;
    if (!ctx || !this.#paint || this.#box.clientHeight === 0) return;
    const l = this.#layout;
    const scrolled = this.#box.scrollTop;
    const firstRow = Math.max(0, Math.floor((scrolled - pad) / l.rowHeight));
    const lastRow = Math.min(l.rows - 1, Math.floor((scrolled + this.#box.clientHeight - pad) / l.rowHeight));
    const ratio = devicePixelRatio;
    ctx.setTransform(ratio, 0, 0, ratio, 0, -Math.round(scrolled * ratio));
    if (this.#whole) this.#clear(ctx, scrolled);
    for (let slot = firstRow * l.perRow; slot < Math.min(l.slots.length, (lastRow + 1) * l.perRow); slot++) this.#strip(ctx, this.#paint, slot);
    this.#whole = false;
    this.#mark();
    this.stats.ms = performance.now() - began;
  }

  #clear(ctx: CanvasRenderingContext2D, scrolled: number): void {
    ctx.fillStyle = this.#paint?.ground ?? "";
    ctx.fillRect(0, scrolled - 1, this.#box.clientWidth, this.#box.clientHeight + 2);
    this.#drawn.fill(undrawn);
    this.#labels = [];
  }

  /** fit lays the cells out anew where workers, ranks or the width changed. */
  #fit(): void {
    const width = this.#box.clientWidth;
    const shape = `${width} ${devicePixelRatio}`;
    if (shape !== this.#shape) {
      const kept = this.#cellName(this.#at);
      this.#shape = shape;
      this.#layout = layOut(this.#ranks, width);
      this.#space.style.height = `${this.#layout.height}px`;
      this.#drawn = new Int16Array(this.#layout.slots.length * Math.max(1, this.#layout.perSlot));
      this.#at = kept && this.#find(kept);
      this.#whole = true;
    }
    const ratio = devicePixelRatio;
    const height = Math.min(this.#box.clientHeight, Math.max(1, this.#layout.height));
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.#canvas.width === w && this.#canvas.height === h) return;
    this.#canvas.width = w;
    this.#canvas.height = h;
    this.#canvas.style.width = `${width}px`;
    this.#canvas.style.height = `${height}px`;
    this.#whole = true;
  }

  #strip(ctx: CanvasRenderingContext2D, paint: Paint, slot: number): void {
    const l = this.#layout;
    const s = l.slots[slot];
    const row = s && this.#rows[s.worker];
    if (!s || !row) return;
    const { x, y } = originOf(l, slot);
    if (l.labelWidth > 0) this.#label(ctx, paint, slot, row, s.first);
    const cells = Math.max(1, s.ranks);
    for (let i = 0; i < cells; i++) {
      const look = this.#look(row, s.ranks === 0 ? undefined : row.entry.worker.ranks[s.first + i]);
      const at = slot * l.perSlot + i;
      if (this.#drawn[at] === look) continue;
      this.#drawn[at] = look;
      this.stats.cells++;
      const width = s.ranks === 0 ? l.perSlot * l.cellWidth : l.cellWidth;
      fillCell(ctx, paint, look, { x: x + i * l.cellWidth, y, width: width - 1, height: l.cellHeight - 1 });
    }
  }

  #label(ctx: CanvasRenderingContext2D, paint: Paint, slot: number, row: Row, first: number): void {
    const l = this.#layout;
    const state = row.freshness + (first === 0 ? row.id : "");
    if (this.#labels[slot] === state) return;
    this.#labels[slot] = state;
    const { x, y } = originOf(l, slot);
    ctx.fillStyle = paint.ground;
    ctx.fillRect(x - l.labelWidth, y - 2, l.labelWidth - 1, l.rowHeight);
    if (first > 0) return;
    ctx.fillStyle = row.freshness === "fresh" ? paint.text : paint.faint;
    ctx.font = "12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
    ctx.textBaseline = "middle";
    ctx.direction = "ltr";
    ctx.fillText(fitText(ctx, shortName(row.id, 64), l.labelWidth - 10), x - l.labelWidth, y + l.cellHeight / 2);
  }

  #look(row: Row, rank: RankLoad | undefined): number {
    if (row.freshness !== "fresh") return grey;
    const v = rank ? toNumber(this.field.get(rank)) : NaN;
    return Number.isNaN(v) ? hatched : step(v, this.#top);
  }

  // What can be pointed at.

  #cellName(spot: Spot | undefined): { id: string; place: number } | undefined {
    const s = spot && this.#layout.slots[spot.slot];
    const row = s && this.#rows[s.worker];
    return row && { id: row.id, place: s.first + spot.place };
  }

  #find(name: { id: string; place: number }): Spot | undefined {
    const l = this.#layout;
    const worker = this.#rows.findIndex((r) => r.id === name.id);
    const slot = l.slots.findIndex((s) => s.worker === worker && name.place < s.first + Math.max(1, s.ranks));
    const first = l.slots[slot]?.first ?? 0;
    return slot < 0 ? undefined : { slot, place: name.place - first };
  }

  #point(e: PointerEvent | MouseEvent): void {
    const box = this.#box.getBoundingClientRect();
    this.#hover = true;
    this.#at = spotAt(this.#layout, e.clientX - box.left, e.clientY - box.top + this.#box.scrollTop);
    this.#mark();
  }

  #leave(): void {
    this.#hover = false;
    if (document.activeElement !== this.#box) this.#at = undefined;
    this.#mark();
  }

  #focused(): void {
    if (!this.#box.matches(":focus-visible")) return;
    this.#at ??= this.#layout.slots.length > 0 ? { slot: 0, place: 0 } : undefined;
    this.#mark();
    this.#speak();
  }

  #key(e: KeyboardEvent): void {
    if (e.ctrlKey || e.altKey || e.metaKey) return;
    if (e.key === "Enter") return this.#open();
    if (e.key === "Escape") return this.#leave();
    const next = moved(this.#layout, this.#at ?? { slot: 0, place: 0 }, e.key);
    if (!next || this.#layout.slots.length === 0) return;
    e.preventDefault();
    this.#at = next;
    const { y } = originOf(this.#layout, next.slot);
    const { scrollTop, clientHeight } = this.#box;
    if (y - pad < scrollTop) this.#box.scrollTop = y - pad;
    else if (y + this.#layout.rowHeight + pad > scrollTop + clientHeight) this.#box.scrollTop = y + this.#layout.rowHeight + pad - clientHeight;
    this.#mark();
    this.#speak();
  }

  #open(): void {
    const name = this.#cellName(this.#at);
    if (name) location.hash = workerLink(name.id);
  }

  #speak(): void {
    setText(this.#spoken, this.#describe().join(", "));
  }

  #describe(): string[] {
    const s = this.#at && this.#layout.slots[this.#at.slot];
    const row = s && this.#rows[s.worker];
    if (!row || !this.#at) return [];
    const rank = s.ranks === 0 ? undefined : row.entry.worker.ranks[s.first + this.#at.place];
    const value = rank ? this.field.show(this.field.get(rank)) : "no ranks";
    const state = row.freshness === "fresh" ? "fresh" : `${row.freshness}${row.reason ? `: ${label(row.reason, 40)}` : ""}`;
    return [label(row.id, 120), rank ? `rank ${rank.dpRank}` : "", `${this.field.title}: ${rank && this.field.get(rank) === undefined ? "unknown" : value}`, state].filter((t) => t !== "");
  }

  /** mark shows the tip beside the cell, and a frame around it. */
  #mark(): void {
    const spot = this.#at;
    this.#tip.hidden = !spot || !(this.#hover || document.activeElement === this.#box);
    if (!spot || this.#tip.hidden) return;
    keep(this.#tip, this.#describe().map((t, i) => tipLine(this.#tip.children[i], t)));
    const box = this.#box.getBoundingClientRect();
    const { x, y } = originOf(this.#layout, spot.slot);
    const left = box.left + x + spot.place * this.#layout.cellWidth;
    const top = box.top + y - this.#box.scrollTop;
    const width = this.#tip.offsetWidth;
    this.#tip.style.left = `${Math.max(8, Math.min(innerWidth - width - 8, left))}px`;
    const below = top + this.#layout.cellHeight + 8;
    const height = this.#tip.offsetHeight;
    this.#tip.style.top = `${below + height > innerHeight ? top - height - 8 : below}px`;
    this.#frame(left - box.left, y);
  }

  #frame(left: number, top: number): void {
    this.#space.style.setProperty("--at-x", `${left}px`);
    this.#space.style.setProperty("--at-y", `${top}px`);
    this.#space.style.setProperty("--at-w", `${this.#layout.cellWidth - 1}px`);
    this.#space.style.setProperty("--at-h", `${this.#layout.cellHeight - 1}px`);
  }

  /** cells are those that can be seen, as they were drawn last. */
  cells(): Cell[] {
    const l = this.#layout;
    const box = this.#box.getBoundingClientRect();
    const out: Cell[] = [];
    l.slots.forEach((s, slot) => {
      const row = this.#rows[s.worker];
      const { x, y } = originOf(l, slot);
      const top = y - this.#box.scrollTop;
      if (!row || top + l.cellHeight < 0 || top > this.#box.clientHeight) return;
      for (let i = 0; i < Math.max(1, s.ranks); i++) {
        const look = this.#drawn[slot * l.perSlot + i] ?? undrawn;
        const rank = row.entry.worker.ranks[s.first + i];
        const value = rank && this.field.get(rank);
        out.push({
          worker: row.id, rank: rank?.dpRank, kind: look === grey ? "stale" : look === hatched ? "unknown" : "value",
          value: value === undefined ? "" : String(value),
          x: box.left + x + (i + 0.5) * l.cellWidth, y: box.top + top + l.cellHeight / 2,
        });
      }
    });
    return out;
  }
}

function tipLine(held: Element | undefined, text: string): Element {
  const line = held ?? el("bdi");
  setText(line, text);
  return line;
}

interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

function fillCell(ctx: CanvasRenderingContext2D, paint: Paint, look: number, b: Box): void {
  ctx.fillStyle = look === grey ? paint.grey : look === hatched ? paint.ground : (paint.scale[look] ?? "");
  ctx.fillRect(b.x, b.y, b.width, b.height);
  if (look !== hatched) return;
  ctx.save();
  ctx.beginPath();
  ctx.rect(b.x, b.y, b.width, b.height);
  ctx.clip();
  ctx.strokeStyle = paint.line;
  ctx.lineWidth = 1;
  ctx.strokeRect(b.x + 0.5, b.y + 0.5, b.width - 1, b.height - 1);
  ctx.beginPath();
  for (let d = -b.height; d < b.width; d += 5) {
    ctx.moveTo(b.x + d, b.y + b.height);
    ctx.lineTo(b.x + d + b.height, b.y);
  }
  ctx.stroke();
  ctx.restore();
}

/** fitText cuts a text at its front, where names are alike, to fit a width. */
function fitText(ctx: CanvasRenderingContext2D, text: string, width: number): string {
  if (ctx.measureText(text).width <= width) return text;
  const points = Array.from(text);
  const one = ctx.measureText("m").width;
  let keepLast = Math.max(1, Math.floor(width / one) - 1);
  while (keepLast > 1 && ctx.measureText("…" + points.slice(-keepLast).join("")).width > width) keepLast--;
  return "…" + points.slice(-keepLast).join("");
}
