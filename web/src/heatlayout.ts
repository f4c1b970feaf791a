// Where the cells of the heatmap are. No drawing.

/** Slot is one strip of cells: some ranks of one worker. */
export interface Slot {
  /** Number of the worker among those shown. */
  readonly worker: number;
  /** Number of the first rank of the strip among those of the worker. */
  readonly first: number;
  /** Ranks of the strip; 0 for a worker without ranks. */
  readonly ranks: number;
}

/** Layout places strips in rows, left to right. Lengths are CSS pixels. */
export interface Layout {
  readonly slots: readonly Slot[];
  /** Ranks that a strip has room for. */
  readonly perSlot: number;
  readonly perRow: number;
  readonly rows: number;
  readonly cellWidth: number;
  readonly cellHeight: number;
  readonly slotWidth: number;
  readonly rowHeight: number;
  /** Room for the name before a strip; 0 for none. */
  readonly labelWidth: number;
  readonly height: number;
}

/** pad is the room around everything, gap that between strips. */
export const pad = 8;
const gap = 14;
/** Most ranks of one strip. */
const widest = 16;
/** Above so many strips there are no names. */
const named = 160;

/** layOut places workers with so many ranks each in a width. */
export function layOut(ranks: readonly number[], width: number): Layout {
  const most = Math.max(1, ...ranks.slice(0, 1), ranks.reduce((a, b) => Math.max(a, b), 1));
  const labelled = ranks.length <= named;
  const cellWidth = labelled ? 24 : 11;
  const cellHeight = labelled ? 20 : 11;
  const labelWidth = labelled ? Math.min(176, Math.max(72, width * 0.36)) : 0;
  const space = labelled ? gap : 6;
  const room = Math.max(1, Math.floor((width - 2 * pad - labelWidth) / cellWidth));
  const perSlot = Math.min(most, widest, room);
  const slotWidth = labelWidth + perSlot * cellWidth + space;
  const perRow = Math.max(1, Math.floor((width - 2 * pad + space) / slotWidth));
  const slots = ranks.flatMap((n, worker) => strips(n, perSlot).map(([first, some]) => ({ worker, first, ranks: some })));
  const rows = Math.ceil(slots.length / perRow);
  const rowHeight = cellHeight + (labelled ? 4 : 3);
  return { slots, perSlot, perRow, rows, cellWidth, cellHeight, slotWidth, rowHeight, labelWidth, height: rows * rowHeight + 2 * pad };
}

function strips(ranks: number, perSlot: number): [number, number][] {
  if (ranks === 0) return [[0, 0]];
  return Array.from({ length: Math.ceil(ranks / perSlot) }, (_, i) => [i * perSlot, Math.min(perSlot, ranks - i * perSlot)]);
}

/** Spot is one cell: a strip and a place in it. */
export interface Spot {
  readonly slot: number;
  readonly place: number;
}

/** originOf is the corner of a strip's first cell. */
export function originOf(l: Layout, slot: number): { x: number; y: number } {
  return {
    x: pad + (slot % l.perRow) * l.slotWidth + l.labelWidth,
    y: pad + Math.floor(slot / l.perRow) * l.rowHeight,
  };
}

/** spotAt is the cell at a point; undefined between cells. */
export function spotAt(l: Layout, x: number, y: number): Spot | undefined {
  const row = Math.floor((y - pad) / l.rowHeight);
  const column = Math.floor((x - pad) / l.slotWidth);
  if (row < 0 || column < 0 || column >= l.perRow) return undefined;
  const slot = row * l.perRow + column;
  const s = l.slots[slot];
  if (!s) return undefined;
  const inside = x - originOf(l, slot).x;
  if (inside < 0) return { slot, place: 0 };
  const place = Math.floor(inside / l.cellWidth);
  if (place >= Math.max(s.ranks, s.ranks === 0 ? l.perSlot : 0)) return undefined;
  return { slot, place: s.ranks === 0 ? 0 : place };
}

/** moved is the cell that a key leads to from another one. */
export function moved(l: Layout, from: Spot, key: string): Spot | undefined {
  const last = l.slots.length - 1;
  const at = (slot: number, place: number): Spot => {
    const s = Math.min(last, Math.max(0, slot));
    return { slot: s, place: Math.min(Math.max(0, place), Math.max(0, (l.slots[s]?.ranks ?? 0) - 1)) };
  };
  switch (key) {
    case "ArrowRight": return from.place + 1 < (l.slots[from.slot]?.ranks ?? 0) ? at(from.slot, from.place + 1) : from.slot < last ? at(from.slot + 1, 0) : from;
    case "ArrowLeft": return from.place > 0 ? at(from.slot, from.place - 1) : from.slot > 0 ? at(from.slot - 1, Infinity) : from;
    case "ArrowDown": return from.slot + l.perRow <= last ? at(from.slot + l.perRow, from.place) : from;
    case "ArrowUp": return from.slot >= l.perRow ? at(from.slot - l.perRow, from.place) : from;
    case "PageDown": return at(Math.min(last, from.slot + 10 * l.perRow), from.place);
    case "PageUp": return at(Math.max(0, from.slot - 10 * l.perRow), from.place);
    case "Home": return at(0, 0);
    case "End": return at(last, Infinity);
    default: return undefined;
  }
}
