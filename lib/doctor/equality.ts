// Counts the tokens at which two columns are equal.
import type { Row } from './row.js';

/** Counts, over rows, the tokens at which two columns have equal values. */
export class Equality {
  tokens = 0;
  equalTokens = 0;
  readonly #a: (row: Row) => Float32Array;
  readonly #b: (row: Row) => Float32Array;

  /** @param a returns the values of one column, `b` those of the other. */
  constructor(a: (row: Row) => Float32Array, b: (row: Row) => Float32Array) {
    this.#a = a;
    this.#b = b;
  }

  add(row: Row): void {
    const [a, b] = [this.#a(row), this.#b(row)];
    this.tokens += a.length;
    for (let t = 0; t < a.length; t++) if (a[t] === b[t]) this.equalTokens++;
  }

  /** Whether there are tokens, and all are equal. */
  get isWhole(): boolean {
    return this.tokens > 0 && this.equalTokens === this.tokens;
  }

  get evidence() {
    return { tokens: this.tokens, equalTokens: this.equalTokens };
  }
}
