// The bearer token: asked for in a dialog, kept for this tab only.

import type { Interceptor } from "@connectrpc/connect";
import { byId, setText } from "./dom";

const key = "loadplane-token";

/** withToken adds the token to every request, where there is one. */
export const withToken: Interceptor = (next) => (request) => {
  const token = sessionStorage.getItem(key);
  if (token) request.header.set("Authorization", `Bearer ${token}`);
  return next(request);
};

/** TokenDialog asks for the token. */
export class TokenDialog {
  readonly #dialog = byId("token-dialog", HTMLDialogElement);
  readonly #input = byId("token-input", HTMLInputElement);
  readonly #text = byId("token-text", HTMLParagraphElement);

  constructor(entered: () => void) {
    byId("token-form", HTMLFormElement).addEventListener("submit", (e) => {
      e.preventDefault();
      const token = this.#input.value.trim();
      if (token) sessionStorage.setItem(key, token);
      else sessionStorage.removeItem(key);
      this.#input.value = "";
      this.#dialog.close();
      entered();
    });
    byId("token-cancel", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
  }

  /** ask opens the dialog. */
  ask(): void {
    if (this.#dialog.open) return;
    const held = sessionStorage.getItem(key) !== null;
    setText(this.#text, (held ? "The plane refused the token of this tab." : "This plane answers only requests with a bearer token.") + " The token is kept for this tab and forgotten when the tab closes.");
    this.#dialog.showModal();
    this.#input.focus();
  }

  /** close closes it. */
  close(): void {
    if (this.#dialog.open) this.#dialog.close();
  }
}
