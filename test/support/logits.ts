/** Draws logits and computes with them, for the tests of lib/logits. */
import fc from 'fast-check';
import type { Logits, LogitsOptions } from '../../lib/index.js';
import type { ReferenceLogits } from '../reference/logits.js';
import { fromHalf, toHalf } from './half.js';
import { generator } from './random.js';

export type LogitsDType = 'float32' | 'float16' | 'bfloat16';

/** Rows of logits, for the package and for the reference. */
export interface LogitsCase {
  logits: Logits;
  options: LogitsOptions & { temperature?: number | readonly number[] };
  reference: ReferenceLogits;
  gradLogprob: Float64Array;
  gradEntropy: Float64Array;
}

/** Stores numbers in a dtype, and returns them with the numbers that are then stored. */
export function stored(
  numbers: ArrayLike<number>,
  dtype: LogitsDType,
): { logits: Float32Array | { data: Uint16Array; dtype: 'float16' | 'bfloat16' }; values: number[] } {
  if (dtype === 'float32') {
    const logits = Float32Array.from(numbers);
    return { logits, values: Array.from(logits) };
  }
  const data = Uint16Array.from(numbers, (x) => toHalf(Math.fround(x), dtype));
  return { logits: { data, dtype }, values: Array.from(data, (bits) => fromHalf(bits, dtype)) };
}

export interface LogitsSpec {
  seed: number;
  rows: number;
  vocabulary: number;
  gap: number;
  dtype: LogitsDType;
  /** The size of the logits' differences, and a number that is added to all logits. */
  scale: number;
  shift: number;
  temperature: 'none' | 'one' | 'per row';
  softcap: boolean;
  support: boolean;
  /** The fractions of ignored rows and of logits of −Infinity. */
  ignored: number;
  infinite: number;
}

export const logitsSpec: fc.Arbitrary<LogitsSpec> = fc.record({
  seed: fc.nat(),
  rows: fc.oneof(fc.integer({ min: 0, max: 6 }), fc.constant(70)),
  vocabulary: fc.oneof(
    fc.integer({ min: 1, max: 5 }),
    fc.integer({ min: 6, max: 300 }),
    fc.constantFrom(64, 128, 4096, 4097, 9000),
  ),
  gap: fc.constantFrom(0, 0, 3),
  dtype: fc.constantFrom('float32', 'float16', 'bfloat16'),
  scale: fc.constantFrom(0, 0.01, 1, 3, 20),
  shift: fc.constantFrom(0, 0, -5, 1e4, -1e4),
  temperature: fc.constantFrom('none', 'one', 'per row'),
  softcap: fc.boolean(),
  support: fc.boolean(),
  ignored: fc.constantFrom(0, 0.3),
  infinite: fc.constantFrom(0, 0.2),
});

/** Makes the rows that a specification describes. Numbers that must not be read are NaN. */
export function makeLogits(spec: LogitsSpec): LogitsCase {
  const { uniform, normal, integer } = generator(spec.seed);
  const { rows, vocabulary } = spec;
  const rowStride = vocabulary + spec.gap;
  const numbers = new Float64Array(rows * rowStride).fill(Number.NaN);
  const targets: number[] = [];
  const tokenIds: number[] = [];
  const offsets = [0];
  for (let row = 0; row < rows; row++) {
    const target = integer(0, vocabulary - 1);
    const isIgnored = uniform() < spec.ignored;
    targets.push(isIgnored ? -100 : target);
    for (let token = 0; token < vocabulary; token++) {
      const isInfinite = token !== target && uniform() < spec.infinite;
      const isIn = !spec.support || token === target || uniform() < 0.3;
      if (spec.support && isIn && !isIgnored) tokenIds.push(token);
      const logit = isInfinite ? Number.NEGATIVE_INFINITY : normal() * spec.scale + spec.shift;
      if (!isIgnored && isIn) numbers[row * rowStride + token] = logit;
    }
    // The order of a support does not matter.
    if (spec.support && uniform() < 0.5) tokenIds.push(...tokenIds.splice(offsets.at(-1)!).reverse());
    offsets.push(tokenIds.length);
  }
  const { logits, values } = stored(numbers, spec.dtype);
  const one = () => 0.5 + uniform();
  const temperature =
    spec.temperature === 'none'
      ? undefined
      : spec.temperature === 'one'
        ? one()
        : targets.map((target) => (target === -100 ? 0 : one()));
  const softcap = spec.softcap ? 5 + 25 * uniform() : undefined;
  const support = spec.support ? { tokenIds, offsets } : undefined;
  const ofRow = () => Float64Array.from(targets, (target) => (target === -100 ? Number.NaN : normal()));
  const shared = { targets, softcap, support };
  return {
    logits,
    options: {
      shape: [rows, vocabulary],
      ...(spec.gap > 0 && { rowStride }),
      ...(temperature !== undefined && { temperature }),
      ...shared,
    },
    reference: { rows, vocabulary, rowStride, logits: values, temperature, ...shared },
    gradLogprob: ofRow(),
    gradEntropy: ofRow(),
  };
}

export const dataOf = (logits: Logits) =>
  (logits instanceof Float32Array ? logits : 'data' in logits ? logits.data : logits) as
    | Float32Array
    | Uint16Array;

/** Copies logits to other memory. */
export function copyOf<L extends Logits>(logits: L): L {
  return (
    'data' in logits ? { ...logits, data: logits.data.slice() } : (logits as Float32Array).slice()
  ) as L;
}
