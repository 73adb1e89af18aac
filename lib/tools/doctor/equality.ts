// Counts the tokens at which two columns are equal.

/** Returns the number of a row's tokens, and of those at which two columns are equal. */
export function equalTokens(a: Float32Array, b: Float32Array): [tokens: number, equal: number] {
  let equal = 0;
  for (let t = 0; t < a.length; t++) if (a[t] === b[t]) equal++;
  return [a.length, equal];
}

/** Adds up, over rows, what equalTokens() returns. */
export class Equality {
  tokens = 0;
  equalTokens = 0;

  add(tokens: number, equal: number): void {
    this.tokens += tokens;
    this.equalTokens += equal;
  }

  /** Whether there are tokens, and all are equal. */
  get isWhole(): boolean {
    return this.tokens > 0 && this.equalTokens === this.tokens;
  }

  get evidence() {
    return { tokens: this.tokens, equalTokens: this.equalTokens };
  }
}
