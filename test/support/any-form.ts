/** Checks that a function's result has the same bits in whatever form it is requested. */
import assert from 'node:assert/strict';
import type { RewardedBatch } from '../reference/advantage.js';
import { FLOAT_COLUMNS, rowPositions } from '../reference/batch.js';
import { takeRows } from '../reference/objective.js';
import type { Computed, Countable } from './countable.js';
import { inHalf, layOut } from './draw.js';
import { generator } from './random.js';
import { packedBatch, paddedBatch, unpack } from './subject.js';
import { assertSameArray } from './tolerance.js';

// Per batch: its padded versions and its versions in 16 bits, by what distinguishes them.
const versions = new WeakMap<RewardedBatch, Map<unknown, unknown>>();

/** Returns a version of a batch, which is made once. */
function version<T>(batch: RewardedBatch, key: unknown, make: () => T): T {
  const known = versions.get(batch) ?? new Map();
  versions.set(batch, known);
  if (!known.has(key)) known.set(key, make());
  return known.get(key) as T;
}

/** Returns the batch with more columns, which are masked and hold zeros. */
function widened(batch: RewardedBatch, columns: number): RewardedBatch {
  const wide: RewardedBatch = { ...batch, columns };
  for (const name of [...FLOAT_COLUMNS, 'actionMask'] as const) {
    const column = batch[name];
    if (!column) continue;
    const out = new Float64Array(batch.rows * columns);
    for (let b = 0; b < batch.rows; b++)
      for (const at of rowPositions(batch, b)) out[b * columns + (at - b * batch.columns)] = column[at]!;
    wide[name] = out;
  }
  delete wide.rowLengths;
  return wide;
}

/** Returns the first `length` tokens of row `row` of a padded column. */
export const tokensOf = (column: Float32Array, columns: number, row: number, length: number) =>
  column.subarray(row * columns, row * columns + length);

export function assertSameNumbers(actual: Computed, expected: Computed, what: string): void {
  assert.deepStrictEqual(
    { loss: actual.loss, metrics: actual.metrics },
    { loss: expected.loss, metrics: expected.metrics },
    what,
  );
}

function assertSame(actual: Computed, expected: Computed, what: string): void {
  assertSameNumbers(actual, expected, what);
  for (const key of ['grad', 'gradEntropy'] as const)
    if (expected[key]) assertSameArray(actual[key]!, expected[key], `${key}, ${what}`);
}

/** Divides the rows into parts at random. Two rows of a pair stay together. */
function divided(batch: RewardedBatch, unit: number, seed: number): RewardedBatch[] {
  const { integer } = generator(seed);
  const parts = Array.from({ length: integer(1, 4) }, (): number[] => []);
  for (let row = 0; row < batch.rows; row += unit) {
    const part = parts[integer(0, parts.length - 1)]!;
    for (let k = 0; k < unit; k++) part.push(row + k);
  }
  return parts.filter((rows) => rows.length > 0).map((rows) => takeRows(batch, rows));
}

/**
 * Asserts that a function gives the same bits for a packed batch with and without gradients, synchronously or not, for
 * padded rows with any padding, for 16-bit columns and for their widened values, and for any division into parts.
 * @param unit the number of rows that must stay in the same part, or 'whole' if the batch cannot be divided.
 */
export async function assertSameInAnyForm(
  fn: Countable,
  batch: RewardedBatch,
  unit: number | 'whole' = 1,
): Promise<void> {
  const packed = version(batch, 'packed', () => packedBatch(batch));
  const whole = fn.sync(packed);
  assertSameNumbers(fn.sync(packed, undefined, { grad: false }), whole, 'without gradients');

  // The aggregation seq-mean-token-sum-norm depends on the number of columns, so all calls get the largest one.
  // A batch that cannot be divided takes no counts, so it keeps its number of columns.
  const most = batch.columns + (unit === 'whole' ? 0 : 1500);
  const counts = unit === 'whole' ? undefined : { ...fn.countSync(packed), columns: most };
  const normalized = fn.sync(packed, counts);
  for (const columns of new Set([batch.columns, Math.min(batch.columns + 37, most), most])) {
    const padded = fn.sync(
      version(batch, columns, () => paddedBatch(widened(batch, columns))),
      counts,
    );
    assertSameNumbers(padded, normalized, `padded to ${columns}`);
    for (const key of ['grad', 'gradEntropy'] as const) {
      const [of, expected] = [padded[key], normalized[key]];
      assert.equal(of === undefined, expected === undefined, key);
      if (!of || !expected) continue;
      const unpacked = unpack(batch, expected);
      for (let b = 0; b < batch.rows; b++) {
        const length = batch.rowLengths![b]!;
        assertSameArray(
          tokensOf(of, columns, b, length),
          tokensOf(unpacked, batch.columns, b, length),
          `${key} of row ${b}, padded to ${columns}`,
        );
      }
    }
  }

  for (const dtype of ['float16', 'bfloat16'] as const) {
    const { laid, wide } = version(batch, dtype, () => {
      const { rounded, laid } = inHalf(batch, dtype);
      return { laid, wide: layOut(rounded) };
    });
    assertSame(fn.sync(laid), fn.sync(wide), dtype);
  }

  assertSame(await fn.async(packed), whole, 'asynchronous');
  if (unit === 'whole') return;
  for (const seed of [1, 2, 3]) {
    const parts = version(batch, `parts ${seed} ${unit}`, () => divided(batch, unit, seed).map(layOut)).map(
      (part) => fn.sync(part, counts, { part: true }),
    );
    const merged = fn.merge(parts.map(({ part }) => part!).reverse(), counts!);
    assertSameNumbers(merged, normalized, `merged from ${parts.length} parts`);
  }
}
