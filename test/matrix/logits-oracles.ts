/** What the matrix asserts of the losses from logits. */
import assert from 'node:assert/strict';
import { cpus } from 'node:os';
import fc from 'fast-check';
import { type Batch, LOGITS_LOSS_FN, setThreads } from '../../lib/index.js';
import { IN_ONE_CALL } from '../../lib/losses/units.js';
import { Tape } from '../reference/autograd.js';
import { Tokens } from '../reference/batch.js';
import { sftFormulas } from '../reference/families/sft.js';
import { type Args, formulas, type ReferenceBatch } from '../reference/index.js';
import { camelCase, renamed } from '../support/batch-keys.js';
import { LOGITS_ARGUMENTS, requiredArgs } from '../support/draw-arguments.js';
import { cutRows, goldenBatch, type LogitsLossCase } from '../support/golden.js';
import { assertRounded, type Half } from '../support/half.js';
import {
  everyPosition,
  type LogitsBatchSpec,
  layLogits,
  makeLogitsBatch,
  poisonedLogits,
  roundedLogits,
  someRows,
  unpacked,
  widened,
} from '../support/logits-losses.js';
import { HOSTILE } from '../support/poison.js';
import { generator } from '../support/random.js';
import { assertArray, assertNumber, assertSameArray } from '../support/tolerance.js';
import { SUM_RELATIVE, within } from './forms.js';
import { COUNTS_MASKED, caseBatch, evaluateLogits } from './logits-reference.js';
import type { Place } from './oracles.js';

const SEED = Number(process.env.FC_SEED ?? 2025);
/** The relative bound of gradients with respect to logits. */
const RELATIVE = 5e-5;
/**
 * Gradients are products with logarithms, which are up to 30 in drawn batches. Their rounding errors of 30·6e-8 are four times
 * what the bound allows for small elements of a gradient.
 */
const LARGEST_LOGARITHM = 4;

/** The least weight of a token in drawn batches and with drawn arguments, by which gradients are multiplied. */
const LEAST_WEIGHT = 1 / 200;

type HalfGradient = { data: Uint16Array; dtype: Half };
interface Computed {
  loss: number;
  metrics: Record<string, number>;
  gradLogits?: Float32Array | HalfGradient;
  /** The gradient of a loss of probabilities. */
  gradProbs?: Float32Array | HalfGradient;
  part?: Float64Array;
}
type Options = Record<string, unknown>;

/** A loss with arguments. */
export interface Tested {
  name: string;
  args: Args;
  title: string;
  fn: ReturnType<typeof LOGITS_LOSS_FN.create>;
  sync(batch: Batch, options?: Options): Computed;
  async(batch: Batch, options?: Options): Promise<Computed>;
}

export function testedLogits(name: string, args: Args, title = name): Tested {
  const fn = LOGITS_LOSS_FN.create(name, args);
  const wanted = (options: Options = {}) => ({ gradLogits: true, ...options }) as never;
  const result = ({ gradProbs, ...computed }: Computed): Computed =>
    gradProbs ? { ...computed, gradLogits: gradProbs } : computed;
  return {
    name,
    args,
    title,
    fn,
    sync: (batch, options) => result(fn.computeSync(batch, wanted(options)) as Computed),
    async: async (batch, options) => result((await fn.compute(batch, wanted(options))) as Computed),
  };
}

/** Every loss with its default arguments, and with some that are drawn. */
export const everyLogitsLoss = (samples = 2, vocabulary = SMALL.vocabulary): Tested[] =>
  LOGITS_LOSS_FN.names().flatMap((name) => {
    const drawn = fc.sample(LOGITS_ARGUMENTS[name]!, { seed: 5, numRuns: samples });
    return [requiredArgs(LOGITS_LOSS_FN.get(name).declaration), ...drawn].map((args, i) =>
      testedLogits(name, fitted(args, vocabulary), `${name} #${i}`),
    );
  });

/** The columns that losses can do without, which change what they compute. */
const OPTIONAL: Readonly<Record<string, readonly (keyof ReferenceBatch)[]>> = {
  'swift/gkd': ['teacherTopkIds'],
  'swift/sft': ['tokenWeights'],
  'roll/distill': ['distillMask'],
  'nemo/distill': ['sampleMask'],
  'trl/sdft': ['oldLogprob'],
  'trl/sdpo': ['selfDistillationMask'],
  'openrlhf/prm': ['targetProbs'],
};

/** Makes drawn arguments such that they fit a batch and each other. */
function fitted(args: Args, vocabulary: number): Args {
  const { target_vocab_size, use_teacher_server, distillation_mode, use_extended_uld } = args;
  return {
    ...args,
    // The teacher is as wide as the student.
    ...(target_vocab_size ? { target_vocab_size: vocabulary } : {}),
    // Merging tokens needs tokenizers.
    ...(use_extended_uld ? { use_extended_uld: false } : {}),
    // A server has no logits of the whole vocabulary.
    ...(use_teacher_server && distillation_mode === 'full_logits' ? { use_teacher_server: false } : {}),
  };
}

/** Draws a batch for a loss with arguments. Some of the columns that the loss can do without are absent. */
export function drawLogits(
  { name, args }: Pick<Tested, 'name' | 'args'>,
  spec: LogitsBatchSpec,
): ReferenceBatch {
  const batch = makeLogitsBatch(spec);
  const { uniform } = generator(spec.seed + 0xab5e);
  for (const column of OPTIONAL[name] ?? []) if (uniform() < 0.5) delete batch[column];
  const ids = args.reward_token_ids as number[] | null | undefined;
  if (ids?.length !== 2) delete batch.targetProbs;
  if (!(name in sftFormulas)) return batch;
  const label = (id: number) => (uniform() < 0.1 ? -100 : ids ? ids[id % ids.length]! : id);
  batch.targets = Float64Array.from(batch.targets!, label);
  return batch;
}

/** Computes a batch by all kinds of calls on a place, and asserts that they give the same bits. */
async function everywhere(on: Tested, batch: Batch, place: Place): Promise<Computed> {
  if (place !== 'cpu') return on.async(batch, { device: place });
  const result = on.sync(batch);
  await within('call: async', async () => assertSame(await on.async(batch), result));
  return result;
}

interface Expected {
  loss: number;
  metrics: Readonly<Record<string, number>>;
  grad: ArrayLike<number>;
  magnitude?: { loss: number; metrics: Record<string, number> };
  /** Counts as an element of the gradient in the bounds for small elements. */
  gradMagnitude?: number;
}

const gradOf = ({ gradLogits }: Computed): Float32Array => {
  assert.ok(gradLogits instanceof Float32Array, 'no gradient');
  return gradLogits;
};

/** Asserts that a result is what is expected. The gradient of packed rows is compared in the padded layout. */
function assertExpected(batch: ReferenceBatch, actual: Computed, expected: Expected): void {
  const { loss, metrics, grad, magnitude, gradMagnitude } = expected;
  // Logarithms of 0, which are not read, leave no bound.
  const bound = (size = 0) => (Number.isFinite(size) ? size : 0);
  assertNumber(actual.loss, loss, 'loss', bound(magnitude?.loss));
  assert.deepEqual(Object.keys(actual.metrics).sort(), Object.keys(metrics).sort());
  for (const [name, value] of Object.entries(metrics))
    assertNumber(actual.metrics[name], value, name, bound(magnitude?.metrics[name]));
  const given = gradOf(actual);
  assertArray(batch.rowLengths ? unpacked(batch, given) : given, grad, 'gradLogits', RELATIVE, gradMagnitude);
}

/** Asserts that a loss computes what a framework did, from padded and from packed rows, and under every name of a key. */
export async function assertLogitsGolden(golden: LogitsLossCase, place: Place): Promise<void> {
  const { fn, args, inputs } = golden;
  const { loss, metrics, grad_logits, grad_probs } = golden.expected;
  const expected: Expected = { loss, metrics, grad: (grad_logits ?? grad_probs)!.data };
  const on = testedLogits(fn, args);
  const batch = caseBatch(golden);
  const given = goldenBatch(inputs);
  const computed = await everywhere(on, given, place);
  await within('layout: padded', () => assertExpected(batch, computed, expected));
  await within('keys: camelCase', async () =>
    assertSame(await everywhere(on, renamed(given, camelCase), place), computed),
  );
  if (COUNTS_MASKED.includes(fn)) return;
  await within('masked: NaN', async () => {
    const values = poisonedLogits(batch, Number.NaN);
    const poisoned: Record<string, unknown> = { ...layLogits(values) };
    // A GPU may add up 16-bit logits in another order, so these stay what they are.
    const halves: Record<string, unknown> = { ...layLogits(values, 'bfloat16') };
    for (const [key, tensor] of Object.entries(inputs))
      if (tensor?.dtype === 'uint16') poisoned[camelCase(key)] = halves[camelCase(key)];
    assertSame(await everywhere(on, poisoned, place), computed);
  });
  const cut = cutRows(batch);
  await within('layout: packed', async () =>
    assertExpected(cut, await everywhere(on, layLogits(cut), place), expected),
  );
}

/** Returns whether rounding errors of logits could move a token across a threshold of the formula. */
function isOnEdge(name: string, args: Args, batch: ReferenceBatch): boolean {
  const branches = (seed: number) => {
    const { uniform } = generator(seed);
    const moved = new Float64Array(batch.logits!).map(
      (x) => x + (seed && 4e-6 * (uniform() - 0.5) * (1 + Math.abs(x))),
    );
    // Where student and teacher have the same logit, it is rounded in the same way.
    const same = (t: number, i: number) => (t === batch.logits![i] ? moved[i]! : t);
    const { teacherLogits } = batch;
    const isAsWide = teacherLogits?.length === moved.length;
    const x = new Tokens(Tape.ofBranches(), {
      ...batch,
      logits: moved,
      ...(isAsWide && { teacherLogits: new Float64Array(teacherLogits).map(same) }),
    });
    formulas.logits[name]!(x, args);
    return x.tape.branches.join();
  };
  const own = branches(0);
  return own !== '' && [1, 2, 3, 4].some((seed) => branches(seed) !== own);
}

/** Asserts that a result is the reference's. Masked values are NaN. */
async function assertAgrees(on: Tested, drawn: ReferenceBatch, place: Place): Promise<boolean> {
  const { name, args } = on;
  // The reference of most losses has no weights; assertWeighted() compares them with sums of losses.
  const { tokenWeights: _, ...plain } = drawn;
  const batch = name === 'swift/sft' ? drawn : plain;
  if (isOnEdge(name, args, batch)) return false;
  const expected = evaluateLogits(name)(args, batch);
  // A student that excludes what the teacher has is infinitely far from it.
  if (!Number.isFinite(expected.loss)) return false;
  const hostile = COUNTS_MASKED.includes(name) ? batch : poisonedLogits(batch, Number.NaN);
  const other = evaluateLogits(name)(args, withOtherStudent(batch));
  const gradMagnitude =
    LARGEST_LOGARITHM * Math.max(largest(expected.grad), largest(other.grad), LEAST_WEIGHT);
  const computed = await everywhere(on, layLogits(hostile), place);
  assertExpected(batch, computed, { ...expected, gradMagnitude });
  return true;
}

/**
 * Returns the batch with other logits of the student. Where student and teacher are close, the terms of a gradient cancel;
 * with these, they do not.
 */
function withOtherStudent(batch: ReferenceBatch): ReferenceBatch {
  return { ...batch, logits: new Float64Array(batch.logits!).reverse() };
}

const largest = (values: ArrayLike<number>): number =>
  new Float64Array(values).reduce((most, x) => (Number.isFinite(x) ? Math.max(most, Math.abs(x)) : most), 0);

const drawnSpec: fc.Arbitrary<LogitsBatchSpec> = fc
  .record({
    seed: fc.nat(),
    rows: fc.integer({ min: 1, max: 5 }),
    columns: fc.integer({ min: 1, max: 12 }),
    vocabulary: fc.oneof(fc.integer({ min: 20, max: 70 }), fc.constantFrom(128, 300)),
    listed: fc.integer({ min: 1, max: 8 }),
    values: fc.constantFrom('moderate', 'wide', 'equal', 'infinite'),
    mask: fc.constantFrom('ones', 'prefix', 'random', 'emptyrows', 'zero'),
    packed: fc.boolean(),
  })
  .map(({ packed, ...spec }) => (packed ? { ...spec, rowLengths: lengthsOf(spec) } : spec)) as never;

/** Row lengths of which one is the largest. */
function lengthsOf({ seed, rows, columns }: Pick<LogitsBatchSpec, 'seed' | 'rows' | 'columns'>): number[] {
  const { integer } = generator(seed);
  return Array.from({ length: rows }, (_, b) => (b === 0 ? columns : integer(1, columns)));
}

/**
 * Compares a loss with its reference on batches and with arguments that are drawn at random. Of a batch on an edge, another
 * one takes the place.
 */
export async function assertDrawnLogits(name: string, place: Place, runs: number): Promise<void> {
  await fc.assert(
    fc.asyncProperty(LOGITS_ARGUMENTS[name]!, drawnSpec, async (args, spec) => {
      const on = testedLogits(name, fitted(args, spec.vocabulary));
      fc.pre(await assertAgrees(on, drawLogits(on, spec), place));
    }),
    { numRuns: runs, seed: SEED, maxSkipsPerRun: 1 },
  );
}

/** A large vocabulary, in which rows of logits consist of several tiles, and many tokens. */
const LARGE: readonly LogitsBatchSpec[] = [
  { seed: 3, rows: 1, columns: 1, vocabulary: 20_011, listed: 64, values: 'moderate', mask: 'ones' },
  { seed: 4, rows: 3, columns: 600, vocabulary: 13, listed: 4, values: 'wide', mask: 'random' },
];

export async function assertLargeLogits(name: string, place: Place): Promise<void> {
  const args = requiredArgs(LOGITS_LOSS_FN.get(name).declaration);
  const on = testedLogits(name, args);
  for (const spec of LARGE) await assertAgrees(on, drawLogits(on, spec), place);
}

/** Asserts that weights of 1 change nothing, that loss and gradient are linear in the weights, and that 0 leaves out a token. */
export async function assertWeighted(name: string, place: Place): Promise<void> {
  const on = testedLogits(name, requiredArgs(LOGITS_LOSS_FN.get(name).declaration));
  const { tokenWeights: _, ...batch } = drawLogits(on, SMALL);
  const { uniform } = generator(SMALL.seed);
  const drawn = (draw: () => number) => Float64Array.from({ length: batch.rows * batch.columns }, draw);
  const weighted = (tokenWeights: Float64Array) =>
    everywhere(on, layLogits({ ...batch, tokenWeights }), place);
  assertSame(await weighted(drawn(() => 1)), await everywhere(on, layLogits(batch), place));

  // Sums of eighths are exact.
  const eighths = () => Math.floor(24 * uniform()) / 8;
  const [some, others] = [drawn(eighths), drawn(() => (uniform() < 0.5 ? 0 : eighths()))];
  const both = some.map((weight, i) => weight + others[i]!);
  const [a, b, sum] = [await weighted(some), await weighted(others), await weighted(both)];
  assertNumber(sum.loss, a.loss + b.loss, 'loss', Math.abs(a.loss) + Math.abs(b.loss));
  assert.deepEqual(sum.metrics, a.metrics);
  assert.notEqual(a.loss, b.loss);
  const gradOfB = gradOf(b);
  const expected = gradOf(a).map((g, i) => g + gradOfB[i]!);
  assertArray(gradOf(sum), expected, 'gradLogits', RELATIVE, largest(expected));
  const places = everyPosition(batch);
  const width = expected.length / places.length;
  gradOfB.forEach((g, i) => {
    if (others[places[Math.floor(i / width)]!] === 0 && g !== 0)
      assert.fail(`gradLogits[${i}] is ${g} where the weight is 0`);
  });
}

const SMALL: LogitsBatchSpec = {
  seed: 11,
  rows: 6,
  columns: 37,
  rowLengths: [37, 1, 20, 31, 33, 8],
  vocabulary: 24,
  listed: 5,
  values: 'moderate',
  mask: 'random',
};

/**
 * Asserts that two results have the same bits.
 * @param on the loss, if the layouts differ. A metric that is a quotient of sums over all tokens may then differ in its last
 * bit, because padding counts in the order of these sums.
 */
function assertSame(actual: Computed, expected: Computed, on?: Tested): void {
  assert.equal(actual.loss, expected.loss);
  const declared = on ? LOGITS_LOSS_FN.get(on.name).declaration!.metrics : {};
  assert.deepStrictEqual(Object.keys(actual.metrics), Object.keys(expected.metrics));
  for (const [name, value] of Object.entries(expected.metrics))
    if (declared[name]?.when === IN_ONE_CALL) assertNumber(actual.metrics[name], value, name, 0, 1e-12);
    else assert.equal(actual.metrics[name], value, name);
  if (actual.gradLogits) assertSameArray(gradOf(actual), gradOf(expected), 'gradLogits');
}

const dataOf = (logits: unknown) => (logits instanceof Float32Array ? logits : (logits as HalfGradient).data);

/** Returns a batch with logits of its own, which a call may overwrite. */
function ownLogits(batch: Batch): Batch {
  const { logits } = batch as { logits: Float32Array | HalfGradient };
  const copy = logits instanceof Float32Array ? logits.slice() : { ...logits, data: logits.data.slice() };
  return { ...batch, logits: copy } as Batch;
}

/** Asserts that a loss gives the same bits in every form of a call. */
export async function assertLogitsForms(on: Tested, mask: LogitsBatchSpec['mask']): Promise<void> {
  setThreads(1);
  const { tokenWeights, ...plain } = drawLogits(on, { ...SMALL, mask });
  const batch = tokenWeights && mask === 'emptyrows' ? { ...plain, tokenWeights } : plain;
  const packed = layLogits(batch);
  const expected = on.sync(packed);
  assertZeroUnderMask(on, batch, expected);
  const same = (what: string, result: () => Computed | Promise<Computed>) =>
    within(`${on.title}, mask ${mask}, ${what}`, async () => assertSame(await result(), expected));
  await same('gradients: none', () => on.sync(packed, { gradLogits: false }));
  await same('gradients: given', () => {
    const given = new Float32Array(gradOf(expected).length).fill(Number.NaN);
    const result = on.sync(packed, { gradLogits: given });
    assert.equal(result.gradLogits, given);
    return result;
  });
  if ('logits' in packed)
    await same('gradients: in place', () => {
      const own = ownLogits(packed) as { logits: Float32Array };
      const result = on.sync(own as Batch, { gradLogits: own.logits });
      assert.equal(result.gradLogits, own.logits);
      return result;
    });
  for (const threads of [2, 3, 8])
    await same(`threads: ${threads}`, () => {
      setThreads(threads);
      return on.async(packed);
    });
  setThreads(cpus().length);
  if (COUNTS_MASKED.includes(on.name)) return;
  for (const value of HOSTILE)
    await same(`masked: ${value}`, () => on.sync(layLogits(poisonedLogits(batch, value))));
  for (const more of [0, 37])
    await within(`${on.title}, mask ${mask}, layout: ${more} further columns`, () =>
      assertSame(inPackedOrder(batch, on, more), expected, on),
    );
  if (on.name !== 'liger/tvd') await assertHalves(on, batch);
  if (!on.fn.readsWholeBatch) await assertParts(on, batch, expected);
}

/** Computes padded rows, and returns the gradient of packed ones. */
function inPackedOrder(batch: ReferenceBatch, on: Tested, more: number): Computed {
  const columns = batch.columns + more;
  const result = on.sync(layLogits(widened(batch, columns)));
  const grad = gradOf(result);
  const width = grad.length / (batch.rows * columns);
  const places = everyPosition(batch).map((at) => {
    const row = Math.floor(at / batch.columns);
    return row * columns + (at % batch.columns);
  });
  const own = new Set(places);
  const out = new Float32Array(places.length * width);
  places.forEach((place, i) => {
    out.set(grad.subarray(place * width, (place + 1) * width), i * width);
  });
  grad.forEach((g, i) => {
    if (!own.has(Math.floor(i / width)) && !Object.is(g, 0)) assert.fail(`[${i}] is ${g} in the padding`);
  });
  return { ...result, gradLogits: out };
}

function assertZeroUnderMask({ name }: Tested, batch: ReferenceBatch, result: Computed): void {
  if (COUNTS_MASKED.includes(name)) return;
  const grad = gradOf(result);
  const places = everyPosition(batch);
  const width = grad.length / places.length;
  grad.forEach((g, i) => {
    const at = places[Math.floor(i / width)]!;
    const isRead = batch.actionMask[at] || batch.distillMask?.[at];
    if (!isRead && !Object.is(g, 0)) assert.fail(`gradLogits[${i}] is ${g} under the mask`);
  });
}

/** Asserts that 16-bit logits give what their values give, and that a 16-bit gradient is the rounded one. */
async function assertHalves(on: Tested, batch: ReferenceBatch): Promise<void> {
  for (const dtype of ['bfloat16', 'float16'] as const) {
    const rounded = roundedLogits(batch, dtype);
    const expected = on.sync(layLogits(rounded));
    await within(`logits: ${dtype}`, () => {
      const laid = layLogits(rounded, dtype);
      assertSame(on.sync(laid, { gradLogits: false }), expected);
      assertSame(on.sync(laid, { gradLogits: new Float32Array(gradOf(expected).length) }), expected);
      const own = ownLogits(laid) as { logits: HalfGradient };
      const result = on.sync(own as Batch, { gradLogits: own.logits });
      assert.equal(dataOf(result.gradLogits), own.logits.data);
      assertRounded(own.logits, gradOf(expected), dtype, 'gradLogits');
    });
  }
}

/** Asserts that the parts of a batch add up to it. */
async function assertParts(on: Tested, batch: ReferenceBatch, expected: Computed): Promise<void> {
  const normalizer = { ...on.fn.countSync(layLogits(batch)), columns: batch.columns };
  assert.equal(on.sync(layLogits(batch), { normalizer }).loss, expected.loss);
  const parts = [[0, 3], [1, 2, 5], [4]];
  const results = parts.map((rows) => on.sync(layLogits(someRows(batch, rows)), { normalizer, part: true }));
  const merged = on.fn.merge(
    results.map(({ part }) => part!),
    normalizer,
  );
  assert.equal(merged.loss, expected.loss);
  const { metrics } = LOGITS_LOSS_FN.get(on.name).declaration!;
  for (const [metric, value] of Object.entries(expected.metrics))
    if (metric in merged.metrics || !metrics[metric]?.when)
      assert.equal(merged.metrics[metric as never], value, metric);
  const whole = rowsOf(batch, gradOf(expected));
  const most = largest(gradOf(expected));
  results.forEach((result, i) => {
    rowsOf(someRows(batch, parts[i]!), gradOf(result)).forEach((own, k) => {
      whole[parts[i]![k]!]!.forEach((g, at) => {
        if (!(Math.abs(own[at]! - g) <= SUM_RELATIVE * most))
          assert.fail(`gradLogits of part ${i} is ${own[at]}, expected ${g}`);
      });
    });
  });
}

/** Divides the gradient of a packed batch into those of its rows. */
function rowsOf({ rowLengths }: ReferenceBatch, grad: Float32Array): Float32Array[] {
  const width = grad.length / rowLengths!.reduce((sum, length) => sum + length, 0);
  let at = 0;
  return rowLengths!.map((length) => {
    at += length * width;
    return grad.subarray(at - length * width, at);
  });
}
