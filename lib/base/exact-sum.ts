// Sums that do not depend on the order of their terms.

/**
 * A sum of float64 numbers without rounding errors (Shewchuk's algorithm). Its value therefore does not depend
 * on the order of the terms, not even in the last digit.
 */
export class ExactSum {
  // Numbers whose bits do not overlap, in ascending order of magnitude. Their exact sum is the sum of all terms.
  #partials: number[] = [];

  /** Adds a finite number. */
  add(term: number): void {
    let x = term;
    let kept = 0;
    for (const partial of this.#partials) {
      const [large, small] = Math.abs(x) < Math.abs(partial) ? [partial, x] : [x, partial];
      const sum = large + small;
      const error = small - (sum - large);
      if (error !== 0) this.#partials[kept++] = error;
      x = sum;
    }
    this.#partials.length = kept;
    this.#partials.push(x);
  }

  /** Numbers whose exact sum is the sum of all terms so far. They can be added to another sum. */
  get partials(): readonly number[] {
    return this.#partials;
  }

  /** The exact sum, rounded once to float64. */
  get value(): number {
    const partials = this.#partials;
    let at = partials.length - 1;
    let sum = partials[at] ?? 0;
    let error = 0;
    // The partials do not overlap. So only the first one that does not fit into the sum can round it.
    while (error === 0 && at > 0) {
      const partial = partials[--at]!;
      const rounded = sum + partial;
      error = partial - (rounded - sum);
      sum = rounded;
    }
    // If the error is exactly half of the last digit, the sign of the next partial decides how the tie is broken.
    const next = partials[at - 1] ?? 0;
    if ((error < 0 && next < 0) || (error > 0 && next > 0)) {
      const doubled = error * 2;
      const moved = sum + doubled;
      if (moved - sum === doubled) sum = moved;
    }
    return sum;
  }
}
