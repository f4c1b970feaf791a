// Numbers as people read them. Unknown is a dash, never 0.

import { label } from "./text";

/** Num is a number of the wire: a 64-bit one, a float, or unknown. */
export type Num = bigint | number | undefined;

/** unknownText stands where nothing is known. */
export const unknownText = "–";

/** toNumber is v for drawing and order; NaN where unknown. */
export function toNumber(v: Num): number {
  return v === undefined ? NaN : Number(v);
}

/** exact is v with all its digits, for tests and titles; empty where unknown. */
export function exact(v: Num): string {
  return v === undefined ? "" : String(v);
}

/** count groups the digits of a whole number. */
export function count(v: Num): string {
  if (v === undefined) return unknownText;
  if (typeof v === "number" && !Number.isFinite(v)) return unknownText;
  const digits = (typeof v === "bigint" ? v : BigInt(Math.round(v))).toString();
  return digits.replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

const units: readonly [number, string][] = [
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

/** compact is v in three or four digits, such as 12.3k. */
export function compact(v: Num): string {
  const n = toNumber(v);
  if (!Number.isFinite(n)) return unknownText;
  const size = Math.abs(n);
  for (const [i, [unit, name]] of units.entries()) {
    if (size < unit * 0.99995) continue;
    const text = (n / unit).toFixed(size < unit * 9.995 ? 2 : size < unit * 99.95 ? 1 : 0);
    const above = units[i - 1];
    return text === "1000" && above ? "1.00" + above[1] : text + name;
  }
  if (Number.isInteger(n)) return String(n);
  return n.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

/** percent is a share as a percentage. */
export function percent(v: Num): string {
  const n = toNumber(v);
  if (!Number.isFinite(n)) return unknownText;
  const p = n * 100;
  return (p > 0 && p < 10 ? p.toFixed(1) : p.toFixed(0)) + "%";
}

/** ratio is a factor such as 1.25×. */
export function ratio(v: Num): string {
  const n = toNumber(v);
  return Number.isFinite(n) ? n.toFixed(2) + "×" : unknownText;
}

/** duration is a time in milliseconds, in its largest useful unit. */
export function duration(ms: number | undefined): string {
  if (ms === undefined || !Number.isFinite(ms)) return unknownText;
  const sign = ms < 0 ? "−" : "";
  const size = Math.abs(ms);
  if (size < 1000) return `${sign}${Math.round(size)} ms`;
  if (size < 9950) return `${sign}${(size / 1000).toFixed(1)} s`;
  const s = Math.round(size / 1000);
  if (s < 120) return `${sign}${s} s`;
  const m = Math.round(s / 60);
  if (m < 120) return `${sign}${m} min`;
  return `${sign}${Math.round(m / 60)} h`;
}

/** ago says how long ago something was, in whole seconds or more. */
export function ago(ms: number): string {
  if (ms < 1500) return "just now";
  return ms < 9950 ? `${Math.round(ms / 1000)} s ago` : `${duration(ms)} ago`;
}

/** age is a time in milliseconds that is usually some seconds, and never jumps in width. */
export function age(ms: number | undefined): string {
  return ms === undefined || ms >= 9950 ? duration(ms) : `${(ms / 1000).toFixed(1)} s`;
}

/** seconds is a time in seconds. */
export function seconds(v: Num): string {
  return duration(v === undefined ? undefined : toNumber(v) * 1000);
}

/** list joins names that came from outside. */
export function list(names: readonly string[]): string {
  return names.length === 0 ? unknownText : names.map((n) => label(n)).join(", ");
}
