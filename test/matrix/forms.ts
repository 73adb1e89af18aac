/**
 * The forms in which a result can be requested, as points on axes, and the assertion that a function gives the same bits
 * in each of them. A failure names the function, the batch, and the axes on which the form differs from the base.
 */
import assert from 'node:assert/strict';
import { type Batch, type DeviceBatch, type Normalizer, setThreads, upload } from '../../lib/index.js';
import type { RewardedBatch } from '../reference/advantage.js';
import { FLOAT_COLUMNS, rowPositions } from '../reference/batch.js';
import { takeRows } from '../reference/objective.js';
import { inHalf, layOut } from '../support/draw.js';
import { assertRounded, type Half } from '../support/half.js';
import { HOSTILE, poison } from '../support/poison.js';
import { generator } from '../support/random.js';
import { inMemoryOf } from '../support/result-memory.js';
import { pack } from '../support/subject.js';
import { assertArray, assertNumber, assertSameArray } from '../support/tolerance.js';
import { layAny } from './reference.js';
import type { Axis, Gradients, Options, Result, Tested } from './tested.js';

export interface Form {
  /** Packed rows, or padded rows with so many masked tokens at the end of the longest one. */
  layout: 'packed' | 0 | 37 | 1500;
  /** The dtype of the columns. 16-bit columns are compared with their widened values. */
  columns: 'float32' | Half;
  /** The values of masked tokens: as they were drawn, or this number. */
  masked: 'drawn' | number;
  gradients: Gradients;
  /** The seed of a division into parts. */
  parts: 'one' | number;
  call: 'sync' | 'async';
  threads: number;
  /** The bytes that the memory of the results has before. */
  memory: 'any' | 255;
  device: 'cpu' | 'cuda:0' | 'uploaded';
  /** The seed of the order in which the warps of the emulated device take turns. */
  warps: string;
}

export const BASE: Form = {
  layout: 'packed',
  columns: 'float32',
  masked: 'drawn',
  gradients: 'float32',
  parts: 'one',
  call: 'sync',
  threads: 1,
  memory: 'any',
  device: 'cpu',
  warps: 'in order',
};

export const AXES: { readonly [A in keyof Form]: readonly Form[A][] } = {
  layout: [0, 37, 1500],
  columns: ['float16', 'bfloat16'],
  masked: HOSTILE,
  gradients: ['none', 'all', 'bfloat16', 'float16'],
  parts: [1, 2, 3],
  call: ['async'],
  threads: [2, 3, 8],
  memory: [255],
  device: ['uploaded'],
  warps: ['1', '2', '3'],
};
/** The axes of calls on a device. The memory of results is that of the device. */
export const OF_DEVICES = ['layout', 'columns', 'masked', 'gradients', 'parts', 'call', 'device'] as const;
/** The axes that every call has. */
const OF_CALLS: readonly string[] = ['call', 'threads', 'device', 'warps'];
/** The largest relative error that rounding may cause in a sum of float32 terms, whatever the order of summation. */
export const SUM_RELATIVE = 1e-6;

/** How to choose forms; see variations(). */
interface Choice {
  /** Determines the values that are drawn. */
  seed: number;
  /** The number of forms that differ on all axes. */
  combined: number;
  /** The axes of which only one value is drawn, because other batches have all. */
  brief?: readonly (keyof Form)[];
  base?: Form;
}

/** Lists forms that differ from `base` on one axis each, and some that differ on all axes. */
export function variations(
  { axes, hostOnly }: Tested,
  among: readonly (keyof Form)[],
  { seed, combined, brief = [], base = BASE }: Choice,
): Form[] {
  const own = among.filter(
    (axis) => (OF_CALLS.includes(axis) && !(hostOnly && axis === 'device')) || axes.includes(axis as Axis),
  );
  const { integer } = generator(seed);
  const values = (axis: keyof Form): readonly Form[typeof axis][] => AXES[axis];
  const drawn = (axis: keyof Form) => values(axis)[integer(0, values(axis).length - 1)];
  // Combined forms share few versions of a batch, because it takes longer to make a version than to compute it.
  const fixed: Partial<Form> = { masked: Number.NaN, layout: 37 };
  const alone = own.flatMap((axis) =>
    (brief.includes(axis) ? [drawn(axis)] : values(axis)).map((value) => ({ ...base, [axis]: value })),
  );
  const together = Array.from({ length: combined }, () => ({
    ...base,
    ...Object.fromEntries(own.map((axis) => [axis, fixed[axis] ?? drawn(axis)])),
  }));
  return [...alone, ...together];
}

/** Describes on which axes a form differs from the base. */
const describeForm = (form: Form): string =>
  Object.entries(form)
    .filter(([axis, value]) => !Object.is(value, BASE[axis as keyof Form]))
    .map(([axis, value]) => `${axis}: ${value}`)
    .join(', ');

/** Adds what was tested to the message of an error, and to its stack, which Mocha prints. */
export async function within<T>(what: string, work: () => T | Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof Error) {
      const { message, stack } = error;
      error.message = `${what}: ${message}`;
      error.stack = stack?.replace(message, () => error.message) ?? error.message;
    }
    throw error;
  }
}

const { env } = process;
const TOKEN_COLUMNS = ['tokenLevelRewards', 'sumPiSquared', 'rolloutIsWeights', 'attentionMask'] as const;

/** Returns a batch with padded rows of so many columns. The padding is masked and holds zeros. */
function padded(batch: RewardedBatch, columns: number): RewardedBatch {
  const wide: RewardedBatch = { ...batch, columns };
  for (const name of [...FLOAT_COLUMNS, ...TOKEN_COLUMNS, 'actionMask'] as const) {
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

function poisoned(tested: Tested, batch: RewardedBatch, value: number): RewardedBatch {
  const { unread } = tested;
  if (!unread) return poison(batch, value, tested.readsSigns);
  const hostile = (key: keyof RewardedBatch) =>
    Array.from(batch[key] as ArrayLike<number>, (x, i) => (batch.actionMask[i] ? x : value));
  return {
    ...batch,
    ...Object.fromEntries(unread.flatMap((key) => (batch[key] ? [[key, hostile(key)]] : []))),
  };
}

// Versions of a batch, which many functions are computed on.
const versions = new WeakMap<RewardedBatch, Map<string, unknown>>();

function version<T>(batch: RewardedBatch, key: string, make: () => T): T {
  const known = versions.get(batch) ?? new Map<string, unknown>();
  versions.set(batch, known);
  if (!known.has(key)) known.set(key, make());
  return known.get(key) as T;
}

const laidOut = (batch: RewardedBatch) => version(batch, 'laid out', () => layOut(batch));

/** Returns a batch in a form. `widened` has the same values in float32. */
function laid(tested: Tested, batch: RewardedBatch, form: Form): { laid: Batch; widened: RewardedBatch } {
  const { layout, masked, columns } = form;
  const kind = masked === 'drawn' ? '' : `${masked} ${tested.readsSigns ?? false} ${tested.unread ?? ''}`;
  return version(batch, `${layout} ${columns} ${kind}`, () => {
    const wide = layout === 'packed' ? batch : padded(batch, batch.columns + layout);
    const changed = masked === 'drawn' ? wide : poisoned(tested, wide, masked);
    if (columns === 'float32') return { laid: layAny(changed), widened: batch };
    return { laid: inHalf(changed, columns).laid, widened: inHalf(batch, columns).rounded };
  });
}

/** Divides the rows into parts at random. Rows of a unit stay together. */
function divided(rows: number, unit: number, seed: number): number[][] {
  const { integer } = generator(seed);
  const parts = Array.from({ length: integer(1, 4) }, (): number[] => []);
  for (let row = 0; row < rows; row += unit) {
    const part = parts[integer(0, parts.length - 1)]!;
    for (let k = 0; k < unit; k++) part.push(row + k);
  }
  return parts.filter((part) => part.length > 0);
}

type Values = Float32Array | Uint16Array;
const valuesOf = (column: Result['tokens'][string]): Values =>
  column instanceof Float32Array ? column : (column.data as Uint16Array);

/** Returns the values of a batch's own tokens, without padding. */
function withoutPadding<T extends Values>(batch: RewardedBatch, values: T, layout: Form['layout']): T {
  if (layout === 'packed') return values;
  const columns = batch.columns + layout;
  const out = new (values.constructor as new (length: number) => T)(
    batch.rowLengths!.reduce((sum, length) => sum + length, 0),
  );
  let at = 0;
  for (let b = 0; b < batch.rows; b++) {
    const length = batch.rowLengths![b]!;
    out.set(values.subarray(b * columns, b * columns + length), at);
    at += length;
  }
  return out;
}

/** Asserts that the gradient of the padding is exactly 0. */
function assertZeroPadding(batch: RewardedBatch, { tokens }: Result, layout: Form['layout']): void {
  if (layout === 'packed') return;
  const columns = batch.columns + layout;
  for (const [key, column] of Object.entries(tokens)) {
    const values = valuesOf(column);
    for (let b = 0; b < batch.rows; b++)
      for (let i = b * columns + batch.rowLengths![b]!; i < (b + 1) * columns; i++)
        if (!Object.is(values[i], 0)) assert.fail(`${key}[${i}] is ${values[i]} in the padding`);
  }
}

function assertSame(actual: Result, expected: Result, batch: RewardedBatch, form: Form): void {
  assert.deepStrictEqual(actual.numbers, expected.numbers);
  for (const [key, values] of Object.entries(expected.tokens)) {
    const found = actual.tokens[key];
    if (form.gradients === 'none') {
      assert.equal(found, undefined, key);
      continue;
    }
    assert.ok(found, `no ${key}`);
    if (found instanceof Float32Array)
      assertSameArray(withoutPadding(batch, found, form.layout), values as Float32Array, key);
    else {
      const data = withoutPadding(batch, found.data as Uint16Array, form.layout);
      assertRounded({ data, dtype: found.dtype }, values as Float32Array, form.gradients as Half, key);
    }
  }
  for (const [key, values] of Object.entries(actual.rows)) assert.deepStrictEqual(values, expected.rows[key]);
}

/** Asserts that the gradient of masked tokens is exactly 0. */
function assertZeroUnderMask(batch: RewardedBatch, { tokens }: Result): void {
  const mask = version(batch, 'mask', () => pack(batch, batch.actionMask));
  for (const [key, column] of Object.entries(tokens))
    valuesOf(column).forEach((g, i) => {
      if (!mask[i]) assert.ok(Object.is(g, 0), `${key}[${i}] is ${g} under the mask`);
    });
}

/** Asserts that the numbers of two results differ only by rounding errors of sums. */
function assertCloseNumbers(actual: Result, expected: Result): void {
  assert.deepEqual(Object.keys(actual.numbers), Object.keys(expected.numbers));
  for (const [key, value] of Object.entries(expected.numbers))
    assertNumber(actual.numbers[key], value, key, 1);
}

/** Asserts that a result of a device is that of the CPU: bit by bit for tokens, and within rounding errors for sums. */
export function assertLikeCpu(tested: Tested, actual: Result, expected: Result): void {
  assertCloseNumbers(actual, expected);
  assertTokensLikeCpu(tested, actual, expected);
}

/** Does the same for a golden case, whose few tokens leave less room for the rounding errors of sums. */
export function assertGoldenLikeCpu(tested: Tested, actual: Result, expected: Result): void {
  assert.deepEqual(Object.keys(actual.numbers), Object.keys(expected.numbers));
  for (const [key, value] of Object.entries(expected.numbers))
    assertNumber(actual.numbers[key], value, key, 0, key === 'loss' ? 2e-6 : 1e-5);
  assertTokensLikeCpu(tested, actual, expected);
}

function assertTokensLikeCpu({ differsOnDevices }: Tested, actual: Result, expected: Result): void {
  const assertTokens = differsOnDevices ? assertArray : assertSameArray;
  for (const [key, values] of Object.entries(expected.tokens))
    assertTokens(valuesOf(actual.tokens[key]!), valuesOf(values), key);
  assert.deepStrictEqual(actual.rows, expected.rows);
}

/** Asserts that two results are equal to the last bit. */
export function assertEqual(actual: Result, expected: Result): void {
  assert.deepStrictEqual(actual.numbers, expected.numbers);
  assert.deepEqual(Object.keys(actual.tokens), Object.keys(expected.tokens));
  for (const [key, values] of Object.entries(expected.tokens))
    assertSameArray(valuesOf(actual.tokens[key]!), valuesOf(values), key);
  assert.deepStrictEqual(actual.rows, expected.rows);
}

/** Computes a batch in a form, which has no parts. */
async function compute(
  tested: Tested,
  batch: Batch,
  { call, threads, memory, device, gradients, warps }: Form,
  more: Options,
): Promise<Result> {
  const options = { ...more, gradients };
  const on = (given: Batch | DeviceBatch) =>
    call === 'sync' ? tested.sync(given, options) : tested.async(given, options);
  setThreads(threads);
  if (warps !== BASE.warps) env.POLICY_LOSS_EMULATION_SHUFFLE = warps;
  else delete env.POLICY_LOSS_EMULATION_SHUFFLE;
  if (device === 'cuda:0') return tested.async(batch, { ...options, device });
  if (device === 'uploaded') {
    using resident = await upload(batch, 'cuda:0');
    return await on(resident);
  }
  return memory === 'any' || gradients === 'none' ? on(batch) : inMemoryOf(memory, () => on(batch));
}

/** Computes a batch in parts. Compares the merged numbers, and the gradients of the parts. */
async function assertParts(
  tested: Tested,
  batch: RewardedBatch,
  form: Form,
  normalizer: Normalizer,
  expected: Result,
): Promise<void> {
  const { unit, merge } = tested.parts!;
  const parts = divided(batch.rows, unit, form.parts as number);
  const results: Result[] = [];
  const sums = Object.fromEntries(
    Object.entries(expected.tokens).map(([key, values]) => [key, new Float64Array(valuesOf(values).length)]),
  );
  const starts = batch.rowLengths!.map((_, b) =>
    batch.rowLengths!.slice(0, b).reduce((sum, length) => sum + length, 0),
  );
  for (const rows of parts) {
    const key = `part ${rows}`;
    const part = version(batch, key, () => ({
      ...takeRows(batch, rows),
      rowLengths: rows.map((b) => batch.rowLengths![b]!),
      columns: batch.columns,
    }));
    const result = await compute(tested, laid(tested, part, form).laid, form, { normalizer, part: true });
    results.push(result);
    const isHalf = form.gradients === 'float16' || form.gradients === 'bfloat16';
    if (isHalf) {
      const full = tested.sync(laid(tested, part, form).laid, { normalizer, gradients: 'all' });
      for (const [name, values] of Object.entries(full.tokens))
        assertRounded(result.tokens[name] as never, values as Float32Array, form.gradients as Half, name);
    } else if (form.gradients !== 'none')
      for (const [name, sum] of Object.entries(sums)) {
        const values = withoutPadding(part, valuesOf(result.tokens[name]!), form.layout);
        let at = 0;
        for (const b of rows)
          for (let t = 0; t < batch.rowLengths![b]!; t++) sum[starts[b]! + t] = values[at++]!;
      }
  }
  const merged = merge(results.map(({ part }) => part!).reverse(), normalizer);
  if (form.device === 'cpu') assert.deepStrictEqual(merged.numbers, expected.numbers);
  else assertCloseNumbers(merged, expected);
  if (form.gradients !== 'float32' && form.gradients !== 'all') return;
  for (const [name, sum] of Object.entries(sums)) {
    const values = expected.tokens[name] as Float32Array;
    const largest = values.reduce((most, g) => Math.max(most, Math.abs(g)), 0);
    sum.forEach((g, i) => {
      if (!(Math.abs(g - values[i]!) <= SUM_RELATIVE * largest))
        assert.fail(`${name}[${i}] of ${parts.length} parts is ${g}, expected ${values[i]}`);
    });
  }
}

/** Asserts that a function gives the same bits for a packed batch in all these forms. */
export async function assertForms(
  tested: Tested,
  batch: RewardedBatch,
  forms: readonly Form[],
  what: string,
): Promise<void> {
  const packed = laid(tested, batch, BASE).laid;
  // The aggregation seq-mean-token-sum-norm depends on the number of columns, so calls with other numbers of columns, or for
  // parts, get the largest one. A batch that cannot be divided takes no counts, so it keeps its number of columns.
  const counts = new Map<Form['columns'], Normalizer>();
  const countsOf = ({ columns }: Form, given: RewardedBatch): Normalizer => {
    const known = counts.get(columns) ?? {
      ...tested.parts!.count(columns === 'float32' ? packed : laidOut(given)),
      columns: batch.columns + 1500,
    };
    counts.set(columns, known);
    return known;
  };
  const bases = new Map<string, Result>();
  const isLoss = tested.axes.includes('gradients');
  for (const drawn of forms) {
    const form = { ...drawn };
    if (isLoss && !tested.parts && form.layout !== 'packed') form.layout = 0;
    const isNormalized = tested.parts !== undefined && (form.layout !== 'packed' || form.parts !== 'one');
    await within(`${tested.title}, ${what}, ${describeForm(form)}`, async () => {
      const given = laid(tested, batch, form);
      const normalizer = isNormalized ? countsOf(form, given.widened) : undefined;
      const isAll = form.gradients !== 'float32';
      const key = `${form.columns} ${isNormalized} ${isAll}`;
      setThreads(1);
      const expected =
        bases.get(key) ??
        tested.sync(form.columns === 'float32' ? packed : laidOut(given.widened), {
          ...(normalizer && { normalizer }),
          ...(isAll && { gradients: 'all' }),
        });
      if (isLoss && !bases.has(key)) assertZeroUnderMask(batch, expected);
      bases.set(key, expected);
      const more: Options = normalizer ? { normalizer } : {};
      if (form.parts !== 'one') return assertParts(tested, batch, form, normalizer!, expected);
      const result = await compute(tested, given.laid, form, more);
      if (isLoss) assertZeroPadding(batch, result, form.layout);
      if (form.device === 'cpu') return assertSame(result, expected, batch, form);
      const there = { ...form, device: form.device === 'uploaded' ? 'cuda:0' : 'cpu' } as const;
      const other = await compute(tested, given.laid, there, more);
      if (form.device === 'uploaded') assertEqual(result, other);
      else assertLikeCpu(tested, result, other);
    });
  }
}
