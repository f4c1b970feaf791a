// A small line chart of the last minutes.

import { el, setText, styleOf } from "./dom";
import { unknownText } from "./format";
import { span, type SeriesName } from "./history";
import { roundUp } from "./scale";

const height = 64;

/** Chart draws one series. Gaps stay gaps. */
export class Chart {
  readonly element: HTMLElement;
  readonly #canvas = el("canvas", { role: "img" });
  readonly #last = el("b");
  readonly #high = el("span", { class: "high" });

  constructor(readonly name: SeriesName, readonly title: string, readonly show: (v: number) => string, readonly top: number | undefined) {
    this.element = el("figure", { class: "chart" }, el("figcaption", {}, title, " ", this.#last), this.#high, this.#canvas, el("span", { class: "times", "aria-hidden": "true" }, el("span", {}, "5 min ago"), el("span", {}, "now")));
  }

  /** draw shows samples, oldest first; NaN is a gap. */
  draw(samples: readonly number[]): void {
    const known = samples.filter((v) => !Number.isNaN(v));
    const most = known.reduce((a, b) => Math.max(a, b), 0);
    const top = this.top ?? roundUp(most);
    const last = samples[samples.length - 1];
    setText(this.#last, last === undefined || Number.isNaN(last) ? unknownText : this.show(last));
    setText(this.#high, this.show(top));
    this.#canvas.setAttribute("aria-label", known.length === 0 ? `${this.title}: nothing known in the last 5 minutes` : `${this.title}: from ${this.show(Math.min(...known))} to ${this.show(most)} in the last 5 minutes`);
    const width = this.#canvas.clientWidth;
    if (width > 0) this.#lines(samples, top, width);
  }

  #lines(samples: readonly number[], top: number, width: number): void {
    const ratio = devicePixelRatio;
    this.#canvas.width = Math.round(width * ratio);
    this.#canvas.height = Math.round(height * ratio);
    const ctx = this.#canvas.getContext("2d");
    if (!ctx) return;
    ctx.scale(ratio, ratio);
    ctx.strokeStyle = styleOf("--rule");
    ctx.lineWidth = 1;
    ctx.beginPath();
    for (const y of [0.5, height / 2, height - 0.5]) {
      ctx.moveTo(0, Math.floor(y) + 0.5);
      ctx.lineTo(width, Math.floor(y) + 0.5);
    }
    ctx.stroke();
    const x = (i: number) => (i / (span - 1)) * (width - 2) + 1;
    const y = (v: number) => height - 2 - Math.min(1, v / top) * (height - 4);
    ctx.strokeStyle = ctx.fillStyle = styleOf("--accent");
    ctx.lineWidth = 1.5;
    ctx.lineJoin = "round";
    ctx.beginPath();
    samples.forEach((v, i) => {
      if (Number.isNaN(v)) return;
      const before = samples[i - 1];
      if (before === undefined || Number.isNaN(before)) ctx.moveTo(x(i) - 0.01, y(v));
      ctx.lineTo(x(i), y(v));
      if ((before === undefined || Number.isNaN(before)) && Number.isNaN(samples[i + 1] ?? NaN)) ctx.fillRect(x(i) - 1, y(v) - 1, 2, 2);
    });
    ctx.stroke();
  }
}
