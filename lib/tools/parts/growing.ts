// Lists of numbers in typed arrays: one that grows as numbers are added, and one that joins others. They are used to keep
// one number per row of large files.

/** A typed array that grows, or is joined from others. */
export type Numbers = Float64Array | Int32Array | Uint32Array | Uint8Array;

/** A list of numbers that grows as numbers are added. A typed array holds the numbers. */
export class Growing<A extends Numbers> {
  #data: A;
  #length = 0;
  readonly #make: (length: number) => A;

  /** @param make returns a typed array of zeros with the given length. */
  constructor(make: (length: number) => A) {
    this.#make = make;
    this.#data = make(0);
  }

  get length(): number {
    return this.#length;
  }

  /** A view of the numbers added so far. Do not keep it: adding numbers may move the list to another buffer. */
  get values(): A {
    return this.#data.subarray(0, this.#length) as A;
  }

  push(value: number): void {
    if (this.#length === this.#data.length) this.#grow(this.#length + 1);
    this.#data[this.#length++] = value;
  }

  append(values: ArrayLike<number>): void {
    const end = this.#length + values.length;
    if (end > this.#data.length) this.#grow(end);
    this.#data.set(values, this.#length);
    this.#length = end;
  }

  // The array grows by at least half of its length, so that each number is copied only a few times.
  #grow(length: number): void {
    const data = this.#make(Math.max(length, Math.ceil(this.#data.length * 1.5), 1024));
    data.set(this.#data);
    this.#data = data;
  }
}

/**
 * Joins arrays, the first one first.
 * @param make returns a typed array of zeros with the given length.
 */
export function joinNumbers<A extends Numbers>(arrays: readonly A[], make: (length: number) => A): A {
  const joined = make(arrays.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const array of arrays) {
    joined.set(array, at);
    at += array.length;
  }
  return joined;
}
