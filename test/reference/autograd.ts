/**
 * Computes gradients of formulas over float64 arrays in reverse mode, like a small PyTorch autograd. The reference
 * states each loss only as a formula and computes its gradient here. The engine's derivatives were derived by hand, so
 * a mistake in them cannot be in the reference as well.
 *
 * The tape also records two things that finite differences need (`centralDifference` in index.ts). The first is each
 * value under `detach()`. A later run can reuse these values, so that they stay constant when an input moves. The
 * second is each choice of a formula, such as inside or outside a clip range, or the larger of two values. If two runs
 * make different choices, a kink lies between their inputs, and their difference is not a slope.
 */

export class Tape {
  readonly detached: Float64Array[] = [];
  readonly branches: number[] = [];
  /** Whether a formula has found that rounding decides a choice, which may not show in the branches. */
  isOnEdge = false;
  /** With noise: the largest and the smallest finite absolute value of all results and derivatives, except for 0. */
  largest = 0;
  smallest = Number.POSITIVE_INFINITY;
  /** Whether the tape records what gradients and magnitudes need. */
  readonly differentiates: boolean;
  /** Whether the tape records branches. */
  readonly #branches: boolean;
  readonly #replayed: Float64Array[] | undefined;
  readonly #noise: (() => number) | undefined;
  readonly #steps: (() => void)[] = [];

  /**
   * @param replayed detached values of an earlier run of the same formula. They replace the values that this run
   * detaches.
   * @param noise draws factors close to 1. The result and the derivative of every operation are multiplied by them, as
   * rounding would. So the results of several runs show how far rounding errors can move them.
   * @param differentiates whether `backward` will run.
   * @param branches whether `branches` will be read.
   */
  constructor(replayed?: Float64Array[], noise?: () => number, differentiates = true, branches = true) {
    this.#replayed = replayed;
    this.#noise = noise;
    this.differentiates = differentiates;
    this.#branches = branches;
  }

  /** Makes a tape for values and branches only, which are computed much faster without gradients and magnitudes. */
  static ofBranches(replayed?: Float64Array[]): Tape {
    return new Tape(replayed, undefined, false);
  }

  /** Makes a tape for values, gradients and magnitudes only. */
  static ofGradients(): Tape {
    return new Tape(undefined, undefined, true, false);
  }

  /** Records the branches that `count` elements take. */
  choose(count: number, branchOf: (i: number) => number): void {
    if (!this.#branches) return;
    for (let i = 0; i < count; i++) this.branches.push(branchOf(i));
  }

  /** Multiplies numbers by the tape's noise in place, and returns them. */
  disturb(numbers: Float64Array): Float64Array {
    if (!this.#noise) return numbers;
    for (let i = 0; i < numbers.length; i++) {
      numbers[i]! *= this.#noise();
      const size = Math.abs(numbers[i]!);
      if (size === 0 || !Number.isFinite(size)) continue;
      this.largest = Math.max(this.largest, size);
      this.smallest = Math.min(this.smallest, size);
    }
    return numbers;
  }

  /** Makes a variable of these numbers, which must not change later. */
  leaf(value: ArrayLike<number>): Variable {
    return new Variable(this, value instanceof Float64Array ? value : new Float64Array(value));
  }

  step(backward: () => void): void {
    if (this.differentiates) this.#steps.push(backward);
  }

  record(value: Float64Array): Float64Array {
    const kept = this.#replayed?.[this.detached.length] ?? value;
    this.detached.push(kept);
    return kept;
  }

  /** Computes `grad` of every variable on which `output` depends. `output` must have a single element. */
  backward(output: Variable): void {
    output.grad[0] = 1;
    for (const step of this.#steps.toReversed()) step();
  }
}

export type Operand = Variable | number;

export class Variable {
  readonly tape: Tape;
  readonly value: Float64Array;
  #grad: Float64Array | undefined;
  /**
   * Set if this variable is a sum, or is computed from one: the sum of the absolute values of the terms, carried
   * through later operations to first order. It bounds the error that comes from terms rounded to float32. That error
   * stays as large when the terms cancel.
   */
  magnitude: Float64Array | undefined;

  constructor(tape: Tape, value: Float64Array) {
    this.tape = tape;
    this.value = value;
  }

  /** The derivative of the output with respect to each element. It is 0 until `Tape.backward` has run. */
  get grad(): Float64Array {
    this.#grad ??= new Float64Array(this.value.length);
    return this.#grad;
  }

  get magnitudes(): Float64Array {
    return this.magnitude ?? mapped(this.value, Math.abs);
  }

  get length(): number {
    return this.value.length;
  }

  /** The value of a variable with one element. */
  get item(): number {
    return this.value[0]!;
  }

  neg(): Variable {
    return this.mul(-1);
  }
  exp(): Variable {
    return this.#map(Math.exp, (_x, y) => y);
  }
  expm1(): Variable {
    return this.#map(Math.expm1, (x) => Math.exp(x));
  }
  log(): Variable {
    return this.#map(Math.log, (x) => 1 / x);
  }
  log1p(): Variable {
    return this.#map(Math.log1p, (x) => 1 / (1 + x));
  }
  sqrt(): Variable {
    return this.#map(Math.sqrt, (_x, y) => 0.5 / y);
  }
  tanh(): Variable {
    return this.#map(Math.tanh, (x) => 1 / Math.cosh(x) ** 2);
  }
  square(): Variable {
    return this.#map(
      (x) => x * x,
      (x) => 2 * x,
    );
  }
  sigmoid(): Variable {
    return this.#map(sigmoid, (x, y) => y * sigmoid(-x));
  }
  logSigmoid(): Variable {
    return this.#map(
      (x) => Math.min(x, 0) - Math.log1p(Math.exp(-Math.abs(x))),
      (x) => sigmoid(-x),
    );
  }
  /** Returns absolute values. Their derivative at 0 is 0. */
  abs(): Variable {
    this.tape.choose(this.length, (i) => Math.sign(this.value[i]!));
    return this.#map(Math.abs, Math.sign);
  }
  /** Returns −1, 0 or 1. The result has no gradient. */
  sign(): Variable {
    const signs = mapped(this.value, Math.sign);
    this.tape.choose(this.length, (i) => signs[i]!);
    return new Variable(this.tape, signs);
  }
  /** Limits each value to [low, high]. The derivative is 1 inside and on the bounds, and 0 outside. */
  clip(low: number, high: number): Variable {
    this.tape.choose(this.length, (i) => {
      const x = this.value[i]!;
      return x < low ? -1 : x > high ? 1 : 0;
    });
    return this.#map(
      (x) => Math.min(Math.max(x, low), high),
      (x) => (x >= low && x <= high ? 1 : 0),
    );
  }

  /** Returns max(0, x). The derivative at 0 is 0, as in torch.relu. */
  relu(): Variable {
    this.tape.choose(this.length, (i) => Math.sign(this.value[i]!));
    return this.#map(
      (x) => Math.max(x, 0),
      (x) => (x > 0 ? 1 : 0),
    );
  }

  add(other: Operand): Variable {
    return this.#zip(
      other,
      (x, y) => x + y,
      () => 1,
      () => 1,
    );
  }
  sub(other: Operand): Variable {
    return this.#zip(
      other,
      (x, y) => x - y,
      () => 1,
      () => -1,
    );
  }
  mul(other: Operand): Variable {
    return this.#zip(
      other,
      (x, y) => x * y,
      (_x, y) => y,
      (x) => x,
    );
  }
  div(other: Operand): Variable {
    return this.#zip(
      other,
      (x, y) => x / y,
      (_x, y) => 1 / y,
      (x, y) => -x / (y * y),
    );
  }
  /** Divides by a count. It is exact, so the magnitude counts only the errors of this variable. */
  per(count: number): Variable {
    const out = this.#map(
      (x) => x / count,
      () => 1 / count,
    );
    if (this.magnitude) out.magnitude = mapped(this.magnitude, (x) => x / count);
    return out;
  }
  pow(other: Operand): Variable {
    return this.#zip(
      other,
      (x, y) => x ** y,
      (x, y) => (y === 0 ? 0 : y * x ** (y - 1)),
      (x, y) => x ** y * Math.log(x),
    );
  }
  /** Returns the larger of two values. On a tie, each of them gets half of the gradient, as in torch.maximum. */
  max(other: Operand): Variable {
    this.#note(other);
    return this.#zip(
      other,
      (x, y) => Math.max(x, y),
      (x, y) => share(x - y),
      (x, y) => share(y - x),
    );
  }
  min(other: Operand): Variable {
    this.#note(other);
    return this.#zip(
      other,
      (x, y) => Math.min(x, y),
      (x, y) => share(y - x),
      (x, y) => share(x - y),
    );
  }

  /** Returns the same values as constants, so that no gradient flows through them. */
  detach(): Variable {
    return new Variable(this.tape, this.tape.record(this.value));
  }

  /** Returns 1 where the condition holds and 0 elsewhere. The result has no gradient. */
  test(holds: (x: number, i: number) => boolean): Variable {
    const flags = mapped(this.value, (x, i) => (holds(x, i) ? 1 : 0));
    this.tape.choose(this.length, (i) => flags[i]!);
    return new Variable(this.tape, flags);
  }

  /**
   * Returns `then` where this variable is 1, and `otherwise` where it is 0. NaN in an operand has no effect where the
   * other operand is chosen.
   */
  choose(then: Operand, otherwise: Operand): Variable {
    const everywhere = (x: Operand) => (typeof x === 'number' ? this.tape.leaf(this.value.map(() => x)) : x);
    return everywhere(then).#zip(
      everywhere(otherwise),
      (x, y, i) => (this.value[i] ? x : y),
      (_x, _y, i) => (this.value[i] ? 1 : 0),
      (_x, _y, i) => (this.value[i] ? 0 : 1),
    );
  }

  sum(): Variable {
    return this.sumBy(new Int32Array(this.length), 1);
  }

  /** Sums the elements of each group. Element i belongs to group `groupOf[i]`. */
  sumBy(groupOf: ArrayLike<number>, groups: number): Variable {
    const out = new Variable(this.tape, summed(this.value, groupOf, groups));
    if (this.tape.differentiates) out.magnitude = summed(this.magnitudes, groupOf, groups);
    this.tape.disturb(out.value);
    this.tape.step(() => {
      const [grad, above] = [this.grad, this.tape.disturb(out.grad)];
      for (let i = 0; i < grad.length; i++) grad[i]! += above[groupOf[i]!]!;
    });
    return out;
  }

  /**
   * Returns the largest element of each group, or the smallest if `sign` is −1, and 0 for an empty group. The first
   * element that attains it gets the gradient.
   */
  extremeBy(groupOf: ArrayLike<number>, groups: number, sign: 1 | -1): Variable {
    const places = new Int32Array(groups).fill(-1);
    this.value.forEach((x, i) => {
      const group = groupOf[i]!;
      if (places[group]! < 0 || sign * (x - this.value[places[group]!]!) > 0) places[group] = i;
    });
    this.tape.choose(groups, (group) => places[group]!);
    const out = new Variable(
      this.tape,
      Float64Array.from(places, (place) => (place < 0 ? 0 : this.value[place]!)),
    );
    this.tape.step(() => {
      const [grad, above] = [this.grad, out.grad];
      places.forEach((place, group) => {
        if (place >= 0) grad[place]! += above[group]!;
      });
    });
    return out;
  }

  /** Returns a variable whose element i is element index[i] of this variable. */
  gather(index: ArrayLike<number>): Variable {
    const out = new Variable(this.tape, new Float64Array(index.length));
    for (let i = 0; i < index.length; i++) out.value[i] = this.value[index[i]!]!;
    this.tape.step(() => {
      const [grad, above] = [this.grad, out.grad];
      for (let i = 0; i < above.length; i++) grad[index[i]!]! += above[i]!;
    });
    return out;
  }

  #map(f: (x: number) => number, df: (x: number, y: number) => number): Variable {
    const out = new Variable(this.tape, this.tape.disturb(mapped(this.value, f)));
    if (this.magnitude) {
      out.magnitude = mapped(
        out.value,
        (y, i) =>
          Math.abs(y) + (this.magnitude![i]! && Math.abs(df(this.value[i]!, y)) * this.magnitude![i]!),
      );
    }
    this.tape.step(() => {
      const [grad, above, x, y] = [this.grad, this.tape.disturb(out.grad), this.value, out.value];
      for (let i = 0; i < above.length; i++) if (above[i]) grad[i]! += above[i]! * df(x[i]!, y[i]!);
    });
    return out;
  }

  /**
   * Combines two operands element by element. If an operand has a single element, that element is combined with every
   * element of the other.
   */
  #zip(
    other: Operand,
    f: (x: number, y: number, i: number) => number,
    dx: (x: number, y: number, i: number) => number,
    dy: (x: number, y: number, i: number) => number,
  ): Variable {
    const that = typeof other === 'number' ? this.tape.leaf([other]) : other;
    const length = this.length === 1 ? that.length : this.length;
    if (that.length !== length && that.length !== 1)
      throw new Error(`operand: expected ${length} or 1 elements, got ${that.length}`);
    // With a step of 0, the single element of an operand is used every time.
    const [stepX, stepY] = [this.length === 1 ? 0 : 1, that.length === 1 ? 0 : 1];
    const [xs, ys] = [this.value, that.value];
    const out = new Variable(this.tape, new Float64Array(length));
    for (let i = 0; i < length; i++) out.value[i] = f(xs[i * stepX]!, ys[i * stepY]!, i);
    this.tape.disturb(out.value);
    if (this.magnitude || that.magnitude) {
      const [mine, theirs] = [this.magnitudes, that.magnitudes];
      out.magnitude = mapped(out.value, (_, i) => {
        const [x, y] = [xs[i * stepX]!, ys[i * stepY]!];
        return Math.abs(dx(x, y, i)) * mine[i * stepX]! + Math.abs(dy(x, y, i)) * theirs[i * stepY]!;
      });
    }
    this.tape.step(() => {
      const [above, gradX, gradY] = [this.tape.disturb(out.grad), this.grad, that.grad];
      for (let i = 0; i < length; i++) {
        const g = above[i]!;
        if (g === 0) continue; // A branch that was not taken may have an infinite derivative.
        const x = xs[i * stepX]!;
        const y = ys[i * stepY]!;
        const [byX, byY] = [dx(x, y, i), dy(x, y, i)];
        if (byX) gradX[i * stepX]! += g * byX;
        if (byY) gradY[i * stepY]! += g * byY;
      }
    });
    return out;
  }

  #note(other: Operand): void {
    this.tape.choose(this.length, (i) => {
      const y = typeof other === 'number' ? other : other.value[other.length === 1 ? 0 : i]!;
      return Math.sign(this.value[i]! - y);
    });
  }
}

/** Sums the numbers of each group. */
function summed(values: Float64Array, groupOf: ArrayLike<number>, groups: number): Float64Array {
  const sums = new Float64Array(groups);
  for (let i = 0; i < values.length; i++) sums[groupOf[i]!]! += values[i]!;
  return sums;
}

/** Applies a function to each number. Much faster than Float64Array.map for short arrays. */
function mapped(values: Float64Array, f: (x: number, i: number) => number): Float64Array {
  const out = new Float64Array(values.length);
  for (let i = 0; i < out.length; i++) out[i] = f(values[i]!, i);
  return out;
}

const share = (ahead: number) => (ahead > 0 ? 1 : ahead < 0 ? 0 : 0.5);
const sigmoid = (x: number) => (x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x)));
