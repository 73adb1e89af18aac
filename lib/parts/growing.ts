// A typed array that grows as numbers are added, for one number per row of a large file.

type Numbers = Float64Array | Int32Array | Uint32Array | Uint8Array;

/** A growing list of numbers in a typed array. */
export class Growing<A extends Numbers> {
  #data: A;
  #length = 0;
  readonly #make: (length: number) => A;

  /** @param make makes an array of zeros. */
  constructor(make: (length: number) => A) {
    this.#make = make;
    this.#data = make(0);
  }

  get length(): number {
    return this.#length;
  }

  /** A view of the numbers so far. The next addition may move them to another buffer. */
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

  // Growing by at least half keeps the number of times that each value is copied small.
  #grow(length: number): void {
    const data = this.#make(Math.max(length, Math.ceil(this.#data.length * 1.5), 1024));
    data.set(this.#data);
    this.#data = data;
  }
}
