// Dot products of gradients: within each row in the order of its tokens, and exactly over the rows. So they have the same
// bits however the rows are divided into parts and shards.
import { ExactSum } from '../../base/exact-sum.js';

/** A sum over rows, which does not depend on how the rows are divided. */
export interface ProductSum {
  /** Numbers whose exact sum is that of all rows' finite dot products. */
  partials: readonly number[];
  /** The sum of the dot products that are not finite; 0 if there are none. */
  nonFinite: number;
}

/** Adds up the dot product of two gradients, or of a gradient with itself. */
export class DotProduct {
  readonly #rows = new ExactSum();
  #nonFinite = 0;

  /** @param offsets the index of each row's first token, followed by the number of tokens. */
  add(a: Float32Array, b: Float32Array, offsets: Int32Array): void {
    for (let row = 0; row + 1 < offsets.length; row++) {
      const end = offsets[row + 1]!;
      let sum = 0;
      // The product of two float32 numbers is exact in float64.
      for (let t = offsets[row]!; t < end; t++) sum += a[t]! * b[t]!;
      if (Number.isFinite(sum)) this.#rows.add(sum);
      else this.#nonFinite += sum;
    }
  }

  get sum(): ProductSum {
    return { partials: this.#rows.partials, nonFinite: this.#nonFinite };
  }
}

/** Returns the sum of the sums of all shards. */
export function totalOf(sums: readonly ProductSum[]): number {
  const exact = new ExactSum();
  let nonFinite = 0;
  for (const sum of sums) {
    for (const partial of sum.partials) exact.add(partial);
    nonFinite += sum.nonFinite;
  }
  return nonFinite === 0 ? exact.value : nonFinite;
}

/** Adds up the dot products of all pairs of different gradients. */
export class PairProducts {
  readonly #pairs: readonly (readonly [i: number, j: number, product: DotProduct])[];

  /** @param count the number of gradients. */
  constructor(count: number) {
    this.#pairs = pairsOf(count).map(([i, j]) => [i, j, new DotProduct()]);
  }

  add(gradients: readonly Float32Array[], offsets: Int32Array): void {
    for (const [i, j, product] of this.#pairs) product.add(gradients[i]!, gradients[j]!, offsets);
  }

  /** The sums, in the order of pairsOf(). */
  get sums(): ProductSum[] {
    return this.#pairs.map(([, , product]) => product.sum);
  }
}

/** Returns all pairs i < j of indices below `count`, ordered by i and then by j. */
export function pairsOf(count: number): [i: number, j: number][] {
  const indices = Array.from({ length: count }, (_, i) => i);
  return indices.flatMap((i) => indices.slice(i + 1).map((j): [number, number] => [i, j]));
}

/**
 * Returns the cosines of the angles between gradients. A cosine is null if one of the gradients is 0.
 * @param norms the Euclidean norm of each gradient.
 * @param shards the products that each shard has added up.
 */
export function cosinesOf(
  norms: readonly number[],
  shards: readonly (readonly ProductSum[])[],
): (number | null)[][] {
  // The cosine of a gradient with itself, unless it is 0 or NaN.
  const cosines = norms.map((own, i) =>
    norms.map((_, j): number | null => (i !== j ? null : own === 0 ? null : own > 0 ? 1 : Number.NaN)),
  );
  for (const [at, [i, j]] of pairsOf(norms.length).entries()) {
    const product = totalOf(shards.map((sums) => sums[at]!));
    const scale = norms[i]! * norms[j]!;
    const cosine = scale === 0 ? null : Math.min(Math.max(product / scale, -1), 1);
    cosines[i]![j] = cosine;
    cosines[j]![i] = cosine;
  }
  return cosines;
}
