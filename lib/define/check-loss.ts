// Checks that a policy loss has the properties that training relies on. It is meant for the test suites of users who
// define their own losses.
import type { NativeBatch } from '../../binding.js';
import { describeValue, guardedAsync, LossError } from '../base/errors.js';
import { takeNow } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import { COLUMNS, type ColumnName, type InputName, inputRow, ROW_DATA } from '../batch/columns.js';
import { PER_ROW } from '../batch/convert.js';
import { sumCounts } from '../batch/counts.js';
import { KeyMapper } from '../batch/key-mapper.js';
import { BatchReader } from '../batch/reader.js';
import { PolicyLossFn } from '../losses/policy-loss-fn.js';
import { drawRows, packed, padded, type RowData, type Rows, slice, withPoison } from './check-rows.js';
import { type Comparison, differenceQuotients } from './finite-differences.js';

/** The result of one check of {@link checkLoss}. */
export interface LossCheck {
  /** What was checked, such as 'gradient'. */
  readonly name: string;
  /** Whether the loss passed. It passes a check that was skipped. */
  readonly ok: boolean;
  /** Whether the check was skipped, because it does not apply to the loss. */
  readonly skipped: boolean;
  /** What was found, in words. */
  readonly detail: string;
}

/** The results of {@link checkLoss}. `String(report)` lists them, one in each line. */
export interface LossReport {
  /** Whether the loss passed all checks. */
  readonly ok: boolean;
  /** The checks in the order in which they were made. */
  readonly checks: readonly LossCheck[];
  /** Returns the checks as text, one in each line. */
  toString(): string;
}

type AnyLoss = PolicyLossFn<object>;

interface Computed {
  loss: number;
  metrics: object;
  grad: Float32Array;
}

/**
 * Checks a policy loss on a batch:
 *
 * - finite: the loss and the gradient are finite;
 * - certain tokens: they are finite where the probability of a token is 1 under all policies;
 * - far ratios: they are finite where two policies differ by 20 nats at a token;
 * - advantages of 0: they are not NaN where a ratio overflows in a row whose advantages are 0;
 * - gradient: it agrees with finite differences of the loss, at up to 32 tokens. Tokens at a kink of the loss are left
 *   out. Values inside `sg` are held constant. Skipped for losses of the native module that stop gradients;
 * - mask: values of masked tokens change nothing, and the gradient there is 0;
 * - padding and packing: the loss is the same with more padding and with packed rows;
 * - parts: two halves of the batch add up to the whole, and merge() returns the same bits as one call;
 * - sync and async, and repetition: all calls return the same bits.
 *
 * @param fn the loss: one that you defined, or one of this package's own.
 * @param batch a small batch of float32 columns. The gradient check computes the loss 128 times. By default, a batch is
 * drawn that has all columns; it is the same in each call.
 * @returns a promise of the results. It rejects with a LossError if the batch is invalid.
 *
 * @example
 * ```ts
 * const report = await checkLoss(new MyLoss({ low: 0.1 }));
 * assert.ok(report.ok, String(report));
 * ```
 */
export function checkLoss(fn: PolicyLossFn<object>, batch?: Batch): Promise<LossReport> {
  return guardedAsync(async () => {
    if (!(fn instanceof PolicyLossFn))
      throw new LossError('ERR_INVALID_INPUT', {
        at: 'checkLoss',
        expected: 'a policy loss',
        received: describeValue(fn),
      });
    const rows = batch === undefined ? drawRows(fn.reads.columns) : readRows(fn, batch);
    const base = compute(fn, padded(rows));
    return reportOf([
      { name: 'finite', ...finiteness(base) },
      checkCertain(fn, rows),
      checkFar(fn, rows),
      checkZero(fn, rows),
      checkGradient(fn, rows, base),
      checkMask(fn, rows, base),
      checkPadding(fn, rows, base),
      checkPacking(fn, rows, base),
      checkParts(fn, rows, base),
      await checkAsync(fn, rows, base),
      checkRepetition(fn, rows, base),
    ]);
  });
}

// What a check found. `skipped` is false if absent.
type Found = Omit<LossCheck, 'skipped'> & Partial<LossCheck>;

function skipped(name: string, reason: string): Found {
  return { name, ok: true, skipped: true, detail: reason };
}

function reportOf(found: readonly Found[]): LossReport {
  const checks = found.map((each) => ({ skipped: false, ...each }));
  return {
    ok: checks.every(({ ok }) => ok),
    checks,
    toString: () =>
      checks
        .map((check) => {
          const outcome = check.skipped ? 'skipped' : check.ok ? 'ok' : 'FAILED';
          return `${outcome.padEnd(7)} ${check.name}: ${check.detail}`;
        })
        .join('\n'),
  };
}

// Reads a caller's batch into padded rows.
function readRows(fn: AnyLoss, batch: Batch): Rows {
  const { columns: all, optional, rowColumns, expertMask, step: readsStep, rowsOfPair } = fn.reads;
  const finder = new BatchReader(KeyMapper.get(fn.backend), { inputs: [] });
  const columns = all.filter((name) => !optional.includes(name) || finder.has(batch, name));
  const inputs: InputName[] = [...columns, ...rowColumns, 'action_mask'];
  if (expertMask) inputs.push('expert_mask');
  if (readsStep) inputs.push('step');
  const { native, layout, step } = takeNow(
    new BatchReader(KeyMapper.get(fn.backend), { inputs, rowsOfPair }).read(batch),
  );
  const { rows, rowLength } = layout;
  const starts = Array.from({ length: rows }, (_, b) => layout.offsets?.[b] ?? b * rowLength);
  const lengths = starts.map((start, b) => (layout.offsets ? layout.offsets[b + 1]! - start : rowLength));
  const pad = <T extends Float32Array | Uint8Array>(values: T, out: T): T => {
    for (let b = 0; b < rows; b++)
      out.set(values.subarray(starts[b]!, starts[b]! + lengths[b]!), b * rowLength);
    return out;
  };
  const size = rows * rowLength;
  return {
    rows,
    columns: rowLength,
    floats: new Map(
      columns.map((name) => {
        const values = floatsOf(native, name);
        const perRow = native.dtypes[COLUMNS.indexOf(name)] === PER_ROW;
        if (perRow)
          return [name, Float32Array.from({ length: size }, (_, i) => values[Math.floor(i / rowLength)]!)];
        return [name, pad(values, new Float32Array(size))];
      }),
    ),
    numbers: new Map(
      rowColumns.flatMap((name) => {
        const values = native.rowData?.[ROW_DATA.indexOf(name)];
        if (!values) return [];
        return [[name, rowDataOf(inputRow(name).type, values)] as const];
      }),
    ),
    mask: pad(native.mask!, new Uint8Array(size)),
    expert: native.expert,
    step,
  };
}

// Returns what a caller passes for rows that were read as these values.
function rowDataOf(type: string, values: Float64Array): RowData {
  if (type === 'ids') return idsOf(values);
  return type === 'flags' ? Uint8Array.from(values) : values;
}

// Returns an id for each row that is equal within a group or pair, given the next row of each row's group.
function idsOf(next: Float64Array): Int32Array {
  const ids = Int32Array.from(next);
  for (let row = ids.length - 1; row >= 0; row--) if (next[row]! > row) ids[row] = ids[next[row]!]!;
  return ids;
}

function floatsOf(native: NativeBatch, name: ColumnName): Float32Array {
  const values = native.data[COLUMNS.indexOf(name)];
  if (values instanceof Float32Array) return values;
  throw new LossError('ERR_INVALID_INPUT', {
    at: 'checkLoss',
    key: name,
    expected: 'a column of float32 values',
    received: '16-bit floats',
  });
}

function compute(fn: AnyLoss, batch: Batch): Computed {
  return fn.computeSync(batch, { grad: true }) as Computed;
}

function finiteness({ loss, grad }: Computed, isGood: (x: number) => boolean = Number.isFinite) {
  const bad = grad.findIndex((x) => !isGood(x));
  const ok = isGood(loss) && bad < 0;
  const ofGrad = bad < 0 ? 'the gradient is finite' : `the gradient at token ${bad} is ${grad[bad]}`;
  return { ok, detail: ok ? `the loss is ${loss}` : `the loss is ${loss}, ${ofGrad}` };
}

const isLogprob = (name: ColumnName) => name.endsWith('logprob');

// Returns the rows with another value of a column at some tokens.
function changed(rows: Rows, name: ColumnName, change: (x: number, i: number) => number): Rows {
  return { ...rows, floats: new Map([...rows.floats, [name, rows.floats.get(name)!.map(change)]]) };
}

// Returns whether a token is the first unmasked one of its row.
function isFirst({ columns, mask }: Rows, i: number): boolean {
  const begin = i - (i % columns);
  return mask.subarray(begin, i + 1).findIndex((x) => x !== 0) === i - begin;
}

const isInEvenRow = ({ columns }: Rows, i: number) => Math.floor(i / columns) % 2 === 0;

function checkCertain(fn: AnyLoss, rows: Rows): Found {
  const certain = [...rows.floats.keys()]
    .filter(isLogprob)
    .reduce((all, name) => changed(all, name, (x, i) => (isFirst(rows, i) ? 0 : x)), rows);
  const { ok, detail } = finiteness(compute(fn, padded(certain)));
  return { name: 'certain tokens', ok, detail: ok ? 'finite where all logprobs are 0' : detail };
}

// The log-ratio of a far token, and one whose exponential float32 cannot hold.
const FAR = 20;
const OVERFLOWING = 100;

// Yields the rows with the far token of a column, for each log-probability that the loss reads. A far token has a low
// probability under one of the policies. It is the first unmasked token of each second row.
function* farRows(fn: AnyLoss, rows: Rows, distance: number): Generator<readonly [ColumnName, Rows]> {
  for (const name of rows.floats.keys())
    if (isLogprob(name) && (fn.reads.columns as readonly ColumnName[]).includes(name))
      yield [
        name,
        changed(rows, name, (x, i) => (isInEvenRow(rows, i) && isFirst(rows, i) ? x - distance : x)),
      ];
}

function checkFar(fn: AnyLoss, rows: Rows): Found {
  const name = 'far ratios';
  for (const [column, far] of farRows(fn, rows, FAR)) {
    const { ok, detail } = finiteness(compute(fn, padded(far)));
    if (!ok) return { name, ok, detail: `with a ${column} that is ${FAR} nats lower, ${detail}` };
  }
  return { name, ok: true, detail: `finite where a logprob is ${FAR} nats lower` };
}

function checkZero(fn: AnyLoss, rows: Rows): Found {
  const name = 'advantages of 0';
  if (!fn.reads.columns.includes('advantages')) return skipped(name, 'the loss reads no advantages');
  const zero = changed(rows, 'advantages', (x, i) => (isInEvenRow(rows, i) ? 0 : x));
  for (const [column, far] of farRows(fn, zero, OVERFLOWING)) {
    // A lower logprob makes ratios 0.
    if (column === 'logprob') continue;
    const { ok, detail } = finiteness(compute(fn, padded(far)), (x) => !Number.isNaN(x));
    if (!ok) return { name, ok, detail: `with a ${column} that is ${OVERFLOWING} nats lower, ${detail}` };
  }
  return { name, ok: true, detail: 'not NaN where a ratio overflows' };
}

function checkGradient(fn: AnyLoss, rows: Rows, base: Computed): Found {
  const name = 'gradient';
  const logprobs = rows.floats.get('logprob')!;
  const unread = COLUMNS.find((column) => isLogprob(column) && !fn.reads.columns.includes(column));
  const smooth = fn.stopsGradient ? unread && fn.correction === undefined && fn.frozen(unread) : fn;
  if (!smooth)
    return skipped(name, 'the loss stops gradients, and its stopped values cannot be held constant');
  const constant = unread ? ([[unread, logprobs]] as const) : [];
  const lossAt = (logprob: Float32Array) =>
    smooth.computeSync(
      padded({ ...rows, floats: new Map([...rows.floats, ...constant, ['logprob', logprob]]) }),
    ).loss;
  return { name, ...verdict(differenceQuotients(rows, base, lossAt)) };
}

function verdict({ compared, kinks, worst }: Comparison): { ok: boolean; detail: string } {
  const left = kinks > 0 ? `; ${kinks} at kinks left out` : '';
  if (compared === 0) return { ok: kinks === 0, detail: `no token could be compared${left}` };
  const { token, expected, received, excess } = worst!;
  const detail = `${compared} tokens compared${left}; the largest difference is at token ${token}: ${expected.toPrecision(6)} by finite differences, ${received.toPrecision(6)} in the gradient`;
  return { ok: excess <= 1, detail };
}

function checkMask(fn: AnyLoss, rows: Rows, base: Computed): Found {
  const name = 'mask';
  const leaks = base.grad.findIndex((x, i) => rows.mask[i] === 0 && x !== 0);
  if (leaks >= 0)
    return { name, ok: false, detail: `the gradient at the masked token ${leaks} is ${base.grad[leaks]}` };
  for (const poison of [Number.NaN, Number.POSITIVE_INFINITY, -1e30]) {
    const names = [...rows.floats.keys()].filter(
      (column) => !(fn.readsMaskedAdvantages && column === 'advantages'),
    );
    const difference = differentBits(base, compute(fn, padded(withPoison(rows, names, poison))));
    if (difference) return { name, ok: false, detail: `with ${poison} at the masked tokens, ${difference}` };
  }
  return { name, ok: true, detail: 'values of masked tokens change nothing' };
}

function checkPadding(fn: AnyLoss, rows: Rows, base: Computed): Found {
  const name = 'padding';
  if (fn.readsRowLength) return skipped(name, 'the loss is divided by the length of the rows');
  const wider = rows.columns + 3;
  const { loss, grad } = compute(fn, padded(rows, wider));
  const cut = base.grad.map((_, i) => grad[Math.floor(i / rows.columns) * wider + (i % rows.columns)]!);
  return compared(name, base, { loss, grad: cut }, 'three more masked columns change nothing');
}

function checkPacking(fn: AnyLoss, rows: Rows, base: Computed): Found {
  const { batch, positions } = packed(rows);
  const { loss, grad } = compute(fn, batch);
  const unpacked = new Float32Array(base.grad.length);
  positions.forEach((position, i) => {
    unpacked[position] = grad[i]!;
  });
  return compared('packing', base, { loss, grad: unpacked }, 'packed rows give the same');
}

function checkParts(fn: AnyLoss, rows: Rows, base: Computed): Found {
  const name = 'parts';
  const middle = fn.readsPairs ? 2 * Math.floor(rows.rows / 4) : Math.floor(rows.rows / 2);
  const batches = [slice(rows, 0, middle), slice(rows, middle, rows.rows)].map((part) => padded(part));
  try {
    const normalizer = sumCounts(batches.map((part) => fn.countSync(part)));
    const results = batches.map((part) => fn.computeSync(part, { grad: true, normalizer, part: true }));
    const loss = results.reduce((sum, part) => sum + part.loss, 0);
    const grad = Float32Array.from(results.flatMap((part) => [...part.grad!]));
    const merged = fn.merge(
      results.map(({ part }) => part!),
      normalizer,
    ).loss;
    if (!Object.is(merged, base.loss))
      return { name, ok: false, detail: `merge() returns the loss ${merged}, and one call ${base.loss}` };
    return compared(name, base, { loss, grad }, 'two halves add up to the whole');
  } catch (error) {
    if (!(error instanceof LossError) || error.code !== 'ERR_INVALID_OPTION') throw error;
    return skipped(name, 'the loss needs the whole batch');
  }
}

async function checkAsync(fn: AnyLoss, rows: Rows, base: Computed): Promise<Found> {
  const result = (await fn.compute(padded(rows), { grad: true })) as Computed;
  const difference = differentBits(base, result);
  return { name: 'sync and async', ok: !difference, detail: difference ?? 'both return the same bits' };
}

function checkRepetition(fn: AnyLoss, rows: Rows, base: Computed): Found {
  const difference = differentBits(base, compute(fn, padded(rows)));
  return { name: 'repetition', ok: !difference, detail: difference ?? 'a second call returns the same bits' };
}

// Describes the first difference between two results that should have the same bits; undefined if there is none.
function differentBits(expected: Computed, received: Computed): string | undefined {
  if (!Object.is(expected.loss, received.loss))
    return `the loss is ${received.loss} and not ${expected.loss}`;
  const token = expected.grad.findIndex((x, i) => !Object.is(x, received.grad[i]));
  if (token >= 0)
    return `the gradient at token ${token} is ${received.grad[token]} and not ${expected.grad[token]}`;
  for (const [name, value] of Object.entries(expected.metrics)) {
    const other = (received.metrics as Record<string, number>)[name];
    if (!Object.is(value, other)) return `the metric ${name} is ${other} and not ${value}`;
  }
  return undefined;
}

// Compares two results that may differ by the rounding of sums in another order.
function compared(
  name: string,
  expected: Computed,
  received: { loss: number; grad: Float32Array },
  success: string,
): Found {
  const largest = expected.grad.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  const isClose = (a: number, b: number, size: number) => Object.is(a, b) || Math.abs(a - b) <= 1e-6 * size;
  const token = expected.grad.findIndex((x, i) => !isClose(x, received.grad[i]!, largest));
  if (token >= 0)
    return {
      name,
      ok: false,
      detail: `the gradient at token ${token} is ${received.grad[token]} and not ${expected.grad[token]}`,
    };
  const ok = isClose(expected.loss, received.loss, Math.max(Math.abs(expected.loss), largest));
  return { name, ok, detail: ok ? success : `the loss is ${received.loss} and not ${expected.loss}` };
}
