// Colours of the heatmap. Each scale goes one way in lightness, so that it can
// be read without telling hues apart.

/** RGB is a colour, each part 0 to 255. */
export type RGB = readonly [number, number, number];

/** Scale is a row of colours from the lowest to the highest value. */
export type Scale = readonly RGB[];

/** scales are those of the two themes: more is darker on light, lighter on dark. */
export const scales: Readonly<Record<"light" | "dark", Scale>> = {
  light: [[237, 240, 228], [247, 220, 148], [243, 172, 84], [221, 107, 50], [168, 46, 46], [92, 14, 52]],
  dark: [[27, 38, 74], [35, 74, 122], [34, 118, 141], [67, 161, 130], [163, 202, 92], [250, 232, 86]],
};

/** steps is how many colours are told apart. */
export const steps = 64;

/** at returns the colour of a share of the scale; shares are held within 0 and 1. */
export function at(scale: Scale, share: number): RGB {
  const place = Math.min(1, Math.max(0, share)) * (scale.length - 1);
  const i = Math.min(scale.length - 2, Math.floor(place));
  const low = scale[i] ?? [0, 0, 0];
  const high = scale[i + 1] ?? low;
  const part = place - i;
  const mix = (k: 0 | 1 | 2) => Math.round(low[k] + (high[k] - low[k]) * part);
  return [mix(0), mix(1), mix(2)];
}

/** css writes a colour for a style. */
export function css(c: RGB): string {
  return `rgb(${c[0]} ${c[1]} ${c[2]})`;
}

/** palette returns the colours of a scale as styles, steps of them. */
export function palette(scale: Scale): string[] {
  return Array.from({ length: steps }, (_, i) => css(at(scale, i / (steps - 1))));
}

/** step returns the place of a value in a palette from 0 to top. */
export function step(value: number, top: number): number {
  if (!(top > 0)) return 0;
  return Math.min(steps - 1, Math.max(0, Math.round((value / top) * (steps - 1))));
}

/** luminance is the relative luminance of a colour, 0 to 1, by WCAG 2. */
export function luminance(c: RGB): number {
  const part = (v: number) => (v <= 10.31475 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * part(c[0]) + 0.7152 * part(c[1]) + 0.0722 * part(c[2]);
}

/** roundUp returns the end of a scale that holds v: 1, 2 or 5 times a power of ten. */
export function roundUp(v: number): number {
  if (!(v > 0) || !Number.isFinite(v)) return 1;
  const unit = 10 ** Math.floor(Math.log10(v));
  for (const n of [1, 2, 5]) if (v <= n * unit) return n * unit;
  return 10 * unit;
}
