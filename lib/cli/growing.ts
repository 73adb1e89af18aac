// Lists of numbers that grow and take no more room than their numbers need.

type Numbers = Float64Array | Int32Array | Uint32Array | Uint8Array;

/** A typed array that numbers are added to. */
export class Growing<A extends Numbers> {
  #data: A;
  #length = 0;
  readonly #make: (length: number) => A;

  /** @param make makes the array, of zeros. */
  constructor(make: (length: number) => A) {
    this.#make = make;
    this.#data = make(0);
  }

  get length(): number {
    return this.#length;
  }

  /** The numbers so far; those that are added later may be elsewhere. */
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

  // By half at least, so that each number is moved a few times only.
  #grow(least: number): void {
    const data = this.#make(Math.max(least, Math.ceil(this.#data.length * 1.5), 1024));
    data.set(this.#data);
    this.#data = data;
  }
}
