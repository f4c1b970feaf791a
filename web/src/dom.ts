// Making and changing elements. Text enters the page here, and only as text.

type Child = Node | string | undefined;

/** el makes an element; attributes that are undefined are left out. */
export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K, attributes: Record<string, string | undefined> = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) e.setAttribute(name, value);
  for (const c of children) if (c !== undefined) e.append(c);
  return e;
}

/** byId finds an element of the page. */
export function byId<T extends HTMLElement>(id: string, type: new () => T): T {
  const e = document.getElementById(id);
  if (!(e instanceof type)) throw new Error(`the page has no ${id}`);
  return e;
}

/** setText changes a text only where it is another one. */
export function setText(e: Element, text: string): void {
  if (e.textContent !== text) e.textContent = text;
}

/** setAttr changes an attribute only where it is another one; undefined takes it away. */
export function setAttr(e: Element, name: string, value: string | undefined): void {
  if (value === undefined) e.removeAttribute(name);
  else if (e.getAttribute(name) !== value) e.setAttribute(name, value);
}

/** keep makes e have the children, moving as few as it can. */
export function keep(e: Element, children: readonly Element[]): void {
  children.forEach((c, i) => {
    if (e.children[i] !== c) e.insertBefore(c, e.children[i] ?? null);
  });
  while (e.children.length > children.length) e.lastElementChild?.remove();
}

/** workerLink is the address of the view of a worker. */
export function workerLink(id: string): string {
  return "#/worker/" + encodeURIComponent(id);
}

/** styleOf reads a colour of the theme. */
export function styleOf(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
