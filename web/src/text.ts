// Text that came from outside, as people may safely read it.

// What does not show, or changes how its neighbours show: controls, marks of
// direction, characters without width, lone surrogates and the like.
const hidden = /\p{Cc}|\p{Cf}|\p{Co}|\p{Cs}|\p{Cn}|\p{Zl}|\p{Zp}|\p{Default_Ignorable_Code_Point}/gu;

/**
 * visible returns s with every character that does not show replaced by its
 * number, such as <U+202E>.
 */
export function visible(s: string): string {
  return s.replace(hidden, (c) => {
    const code = c.codePointAt(0) ?? 0;
    return `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
  });
}

/** shorten cuts s in its middle to at most limit code points. */
export function shorten(s: string, limit: number): string {
  if (s.length <= limit) return s;
  const points = Array.from(s);
  if (points.length <= limit) return s;
  const tail = Math.floor((limit - 1) / 2);
  return points.slice(0, limit - 1 - tail).join("") + "…" + points.slice(points.length - tail).join("");
}

/** shortName is label without what all names of a plaintext fleet begin with. */
export function shortName(id: string, limit = 96): string {
  return label(id.replace(/^http:\/\/(?=.)/, ""), limit);
}

/** label is the short and safe form of a name, for a cell. */
export function label(s: string, limit = 96): string {
  return shorten(visible(s), limit);
}
