// The server's clock as far as messages tell it.

/** span is how long a message counts for the clock, milliseconds. */
const span = 120_000;

/**
 * ServerClock maps a local monotonic clock to that of the server. A message is
 * late by an unknown time, so of those of the last two minutes the one that was
 * late the least counts. It lives as long as one stream: between streams the
 * server may have stood still.
 */
export class ServerClock {
  #kept: { at: number; ahead: number }[] = [];

  /** learn takes a message that was sent at server and came in at local. */
  learn(server: number, local: number): void {
    const ahead = server - local;
    while (this.#kept.length > 0 && (this.#kept[0]?.at ?? 0) < local - span) this.#kept.shift();
    while (this.#kept.length > 0 && (this.#kept[this.#kept.length - 1]?.ahead ?? 0) <= ahead) this.#kept.pop();
    this.#kept.push({ at: local, ahead });
  }

  /** now is the server's clock at a local time; undefined before a message. */
  now(local: number): number | undefined {
    const best = this.#kept[0];
    return best && local + best.ahead;
  }

  /** forget drops all that is known. */
  forget(): void {
    this.#kept = [];
  }
}
