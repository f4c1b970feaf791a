// The table of workers. Only lines that can be seen exist.

import { el, byId, keep, setAttr, setText, workerLink } from "./dom";
import { label } from "./text";
import { columns, hottestFirst, sorted, type Column, type Order, type Row } from "./rows";

/** lineHeight is the height of one line, CSS pixels; app.css has it too. */
const lineHeight = 30;
/** spare is how many lines exist beyond those that can be seen. */
const spare = 6;
/** settleMs is how long lines keep their places at least, as long as they are the same. */
const settleMs = 3000;

interface Line {
  readonly element: HTMLElement;
  readonly cells: readonly HTMLElement[];
  readonly link: HTMLAnchorElement;
  readonly name: HTMLElement;
}

/** Table shows rows in the element grid. */
export class Table {
  readonly #grid = byId("grid", HTMLDivElement);
  readonly #body = byId("grid-body", HTMLDivElement);
  readonly #heads = new Map<string, HTMLElement>();
  readonly #lines: Line[] = [];
  #rows: Row[] = [];
  #order: Order = hottestFirst;
  #sortedAt = -Infinity;
  #asked: readonly Row[] = [];

  constructor(readonly redraw: () => void) {
    const head = el("div", { class: "line", role: "row", "aria-rowindex": "1" });
    columns.forEach((c, i) => head.append(this.#head(c, i)));
    byId("grid-head", HTMLDivElement).append(head);
    this.#grid.addEventListener("scroll", redraw, { passive: true });
    new ResizeObserver(redraw).observe(this.#grid);
    this.#body.addEventListener("keydown", (e) => this.#key(e));
    this.#body.addEventListener("click", (e) => {
      if (e.target instanceof Element && !e.target.closest("a") && getSelection()?.isCollapsed !== false) {
        e.target.closest(".line")?.querySelector("a")?.click();
      }
    });
    this.#sort(hottestFirst);
  }

  /** show takes the rows to show with the next draw. */
  show(rows: readonly Row[]): void {
    this.#asked = rows;
    const settled = performance.now() < this.#sortedAt + settleMs;
    if (rows.length === this.#rows.length && (settled || this.#body.matches(":hover, :focus-within"))) {
      // Lines keep their places for a time, and while somebody points at one of them.
      const byName = new Map(rows.map((r) => [r.id, r]));
      const same = this.#rows.map((r) => byName.get(r.id)).filter((r) => r !== undefined);
      if (same.length === rows.length) {
        this.#rows = same;
        return;
      }
    }
    this.#rows = sorted(rows, this.#order);
    this.#sortedAt = performance.now();
  }

  #head(c: Column, i: number): HTMLElement {
    const head = el("div", { role: "columnheader", class: `cell ${c.kind}`, "aria-colindex": String(i + 1), "data-column": c.name, title: c.title },
      el("button", { type: "button" }, c.short));
    head.addEventListener("click", () => {
      const down = this.#order.column === c.name ? !this.#order.down : c.kind === "number" || c.kind === "share";
      this.#sort({ column: c.name, down });
    });
    this.#heads.set(c.name, head);
    return head;
  }

  #sort(order: Order): void {
    this.#order = order;
    for (const [name, head] of this.#heads) setAttr(head, "aria-sort", name !== order.column ? undefined : order.down ? "descending" : "ascending");
    this.#rows = sorted(this.#asked, order);
    this.#sortedAt = performance.now();
    this.redraw();
  }

  /** draw brings the lines that can be seen up to date. */
  draw(): void {
    const total = this.#rows.length;
    this.#body.style.height = `${total * lineHeight}px`;
    setAttr(this.#grid, "aria-rowcount", String(total + 1));
    setAttr(this.#grid, "aria-colcount", String(columns.length));
    const first = Math.max(0, Math.floor(this.#grid.scrollTop / lineHeight) - spare);
    const last = Math.min(total, Math.ceil((this.#grid.scrollTop + this.#grid.clientHeight) / lineHeight) + spare);
    const shown: HTMLElement[] = [];
    for (let i = first; i < last; i++) {
      const row = this.#rows[i];
      if (row) shown.push(this.#fill(i, row));
    }
    // Lines that left go first, so that those that stay need not move.
    const stay = new Set<Element>(shown);
    for (const line of Array.from(this.#body.children)) if (!stay.has(line)) line.remove();
    keep(this.#body, shown);
  }

  #fill(index: number, row: Row): HTMLElement {
    const line = this.#line(index % Math.max(64, Math.ceil(this.#grid.clientHeight / lineHeight) + 2 * spare + 2));
    line.element.style.transform = `translateY(${index * lineHeight}px)`;
    setAttr(line.element, "aria-rowindex", String(index + 2));
    setAttr(line.element, "data-index", String(index));
    setAttr(line.element, "data-freshness", row.freshness);
    setAttr(line.element, "data-worker", row.id);
    setAttr(line.link, "href", workerLink(row.id));
    columns.forEach((c, i) => fillCell(line, i, c, row));
    return line.element;
  }

  #line(n: number): Line {
    const held = this.#lines[n];
    if (held) return held;
    const name = el("bdi");
    const link = el("a", {}, name);
    const cells = columns.map((c, i) => el("div", { role: i === 0 ? "rowheader" : "cell", class: `cell ${c.kind}`, "data-field": c.name, "aria-colindex": String(i + 1) }));
    cells[0]?.append(link);
    const element = el("div", { class: "line", role: "row" }, ...cells);
    return (this.#lines[n] = { element, cells, link, name });
  }

  /** Arrow keys go from line to line. */
  #key(e: KeyboardEvent): void {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[e.key];
    const from = e.target instanceof Element ? e.target.closest("[data-index]") : undefined;
    if (by === undefined || !from) return;
    e.preventDefault();
    const index = Math.min(this.#rows.length - 1, Math.max(0, Number(from.getAttribute("data-index")) + by));
    const { scrollTop, clientHeight } = this.#grid;
    if (index * lineHeight < scrollTop) this.#grid.scrollTop = index * lineHeight;
    if ((index + 3) * lineHeight > scrollTop + clientHeight) this.#grid.scrollTop = (index + 3) * lineHeight - clientHeight;
    this.draw();
    this.#body.querySelector<HTMLElement>(`[data-index="${index}"] a`)?.focus({ preventScroll: true });
  }
}

function fillCell(line: Line, i: number, c: Column, row: Row): void {
  const cell = line.cells[i];
  if (!cell) return;
  setText(c.kind === "name" ? line.name : cell, c.text(row));
  setAttr(cell, "data-worker", row.id);
  setAttr(cell, "data-value", c.exact(row));
  if (c.kind === "name" || c.kind === "text") setAttr(cell, "title", c.kind === "name" ? label(row.id, 300) : c.text(row));
  if (c.kind === "share") {
    const share = Number(c.exact(row) || "0");
    cell.style.setProperty("--share", String(Math.min(1, Math.max(0, share))));
  }
}
