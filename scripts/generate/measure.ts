// Measures the rounding errors of every function. It compares the engine's float32 results with the float64 reference
// in test/reference, on the same random inputs. numerics-page.ts writes the errors into docs/numerics.md, and
// test/losses/numerics.test.ts checks that they stay within BOUNDS.

import {
  ADVANTAGE_FN,
  type Batch,
  ENTROPY_LOSS_FN,
  KL_FN,
  POLICY_LOSS_FN,
  REWARD_LOSS_FN,
  type TokenValues,
  VALUE_LOSS_FN,
} from '../../lib/index.js';
import type { AdvantageDeclaration } from '../../lib/losses/advantage-fn.js';
import type { PolicyLossDeclaration } from '../../lib/losses/policy-loss-declaration.js';
import { referenceAdvantages } from '../../test/reference/advantages.js';
import { standsOnEdge } from '../../test/reference/index.js';
import { layOut, makeRewarded } from '../../test/support/draw.js';
import { requiredArgs } from '../../test/support/draw-arguments.js';
import { generator } from '../../test/support/random.js';
import { type Family, subject } from '../../test/support/subject.js';

const SEED = 20_251;

/** The largest and the mean of many errors, in units in the last place (ulp) of float32. */
export interface Errors {
  most: number;
  mean: number;
}

/** The rounding errors for each range of inputs: of a token's value, of its gradient, and of sums over many tokens. */
export type Measured = Record<Range, { value: Errors; grad?: Errors; sum?: Errors }>;

/** A function with one set of arguments, whose errors can be measured. */
export interface Measurable {
  family: Family | 'advantage';
  name: string;
  /** The arguments that differ from the defaults. */
  args: Record<string, unknown>;
  /** Measures the function's errors on this many tokens of each range. */
  measure(tokens: number): Measured;
}

/** The largest error allowed on any instruction set, in ulp. */
export const BOUNDS: Record<Range, { value: number; grad: number; sum: number }> = {
  near: { value: 16, grad: 8, sum: 1 },
  wide: { value: 24, grad: 24, sum: 4 },
};

/**
 * The range of the inputs. In `near`, policies are at most 1 nat apart, as in training. In `wide`, logprobs go from −25
 * to 0. SIZES says how large values and rewards are.
 */
export type Range = 'near' | 'wide';
export const RANGES = ['near', 'wide'] as const;

/** Returns the distance between neighbouring float32 numbers near x: one unit in the last place. */
function ulp(x: number): number {
  const size = Math.max(Math.abs(x), 2 ** -126);
  return 2 ** (Math.floor(Math.log2(size)) - 23);
}

class Tally {
  #most = 0;
  #sum = 0;
  #count = 0;

  /**
   * @param term the largest of the terms that add up to the result. If it exceeds the result, the error is measured
   * relative to it.
   */
  add(actual: number, expected: number, term: number): void {
    // If the expected value overflows float32, Infinity is the exact result.
    const exact = actual === Math.fround(expected) && !Number.isFinite(actual);
    const error = exact ? 0 : Math.abs(actual - expected) / ulp(Math.max(Math.abs(expected), term));
    this.#most = Math.max(this.#most, error);
    this.#sum += error;
    this.#count++;
  }

  get errors(): Errors | undefined {
    return this.#count === 0 ? undefined : { most: this.#most, mean: this.#sum / this.#count };
  }
}

/** The standard deviations of values, and of their differences from returns; and of rewards. */
export const SIZES = { near: { values: 1, rewards: 1 }, wide: { values: 100, rewards: 5 } };

type Token = ReturnType<typeof drawToken>;

const NO_TOKEN: TokenValues = {
  logprob: 0,
  oldLogprob: 0,
  refLogprob: 0,
  teacherLogprob: 0,
  entropyOther: 0,
  advantage: 0,
  value: 0,
  oldValue: 0,
  return: 0,
};

const valuesOf = (token: Token): TokenValues => ({
  ...NO_TOKEN,
  ...token,
  entropyOther: -token.entropy,
  advantage: token.advantages,
  value: token.values,
  oldValue: token.oldValues,
  return: token.returns,
});

type Random = ReturnType<typeof generator>;

function drawToken(range: Range, { uniform, normal }: Random, ofValues: Random) {
  const near = range === 'near';
  const logprob = near ? -4 * uniform() : -25 * uniform();
  const other = () => (near ? Math.min(0, logprob + 2 * uniform() - 1) : -25 * uniform());
  const entropy = () => 8 * uniform();
  const { values: size } = SIZES[range];
  const oldValues = size * ofValues.normal();
  const nearOld = () => oldValues + size * ofValues.normal();
  const token = {
    logprob,
    oldLogprob: other(),
    refLogprob: other(),
    rolloutLogprob: other(),
    proxLogprob: other(),
    teacherLogprob: other(),
    advantages: normal() * (near ? 1 : 10),
    entropy: entropy(),
    oldEntropy: entropy(),
    values: nearOld(),
    oldValues,
    returns: nearOld(),
  };
  for (const key of Object.keys(token) as (keyof typeof token)[]) token[key] = Math.fround(token[key]);
  return token;
}

/** Returns a batch of these tokens. Every second row is an expert's row, and also the rejected answer of a pair. */
function batchOf(tokens: readonly Token[], { uniform, normal }: Random, columns: number, range: Range) {
  const column = (key: keyof Token) => tokens.map((token) => token[key]);
  const rows = tokens.length / columns;
  const perRow = (value: (row: number) => number) => Array.from({ length: rows }, (_, row) => value(row));
  return {
    rows,
    columns,
    logprob: column('logprob'),
    oldLogprob: column('oldLogprob'),
    refLogprob: column('refLogprob'),
    rolloutLogprob: column('rolloutLogprob'),
    proxLogprob: column('proxLogprob'),
    teacherLogprob: column('teacherLogprob'),
    advantages: column('advantages'),
    entropy: column('entropy'),
    oldEntropy: column('oldEntropy'),
    values: column('values'),
    oldValues: column('oldValues'),
    returns: column('returns'),
    actionMask: tokens.map(() => 1),
    expertMask: perRow((row) => row % 2),
    step: perRow(() => 1),
    rewards: perRow(() => Math.fround(SIZES[range].rewards * normal())),
    vStar: perRow(normal),
    probability: perRow(uniform),
    logZ: perRow(normal),
    groupIds: perRow((row) => Math.floor(row / 2)),
    entropyOther: tokens.map(({ entropy }) => -entropy),
    logSumSqProb: tokens.map(({ logprob }) => logprob),
    label: perRow((row) => (row + 1) % 2),
    chosen: perRow(() => 1),
    klLogprob: column('rolloutLogprob'),
    klRefLogprob: column('proxLogprob'),
  };
}

/** A batch as the reference reads it, as the library reads it, and its tokens. */
type Drawn = { batch: ReturnType<typeof batchOf>; laid: Batch; tokens: Token[] };

// Keeps the drawn batches, because most functions are measured on the same ones.
const sequences = new Map<string, { small: Drawn[]; large: Drawn[] }>();

/** Draws `runs` batches with this many rows of one token, and some of 8192 tokens for the errors of sums. */
function drawnBatches(range: Range, rows: number, runs: number) {
  const key = `${range} ${rows} ${runs}`;
  const known = sequences.get(key);
  if (known) return known;
  const [random, ofValues] = [generator(SEED), generator(SEED + 1)];
  const draw = (length: number, columns: number): Drawn => {
    const tokens = Array.from({ length }, () => drawToken(range, random, ofValues));
    const batch = batchOf(tokens, random, columns, range);
    return { batch, laid: layOut(batch) as Batch, tokens };
  };
  const small = Array.from({ length: runs }, () => draw(rows, 1));
  // 33 rows are a multiple of three.
  const tokens = 256 * (rows === 3 ? 33 : 32);
  const large = Array.from({ length: Math.ceil(runs / 400) }, () => draw(tokens, 256));
  sequences.set(key, { small, large });
  return { small, large };
}

function measureLoss(
  family: Family,
  name: string,
  args: Record<string, unknown>,
  range: Range,
  runs: number,
) {
  const on = subject(family, name, args);
  const [value, grad, sum] = [new Tally(), new Tally(), new Tally()];
  const declaration: Partial<PolicyLossDeclaration> | undefined = FAMILIES[family].get(name).declaration;
  const cancels = declaration?.numerics?.cancels;
  // A loss over pairs of rows needs a batch of two rows. So does a loss that treats experts' rows differently. TPO needs
  // three.
  const isOfPairs = declaration?.pairs || family === 'reward';
  const hasTwo = isOfPairs || declaration?.reads?.includes('expert_mask');
  const together = name === 'trl/tpo' ? 3 : hasTwo ? 2 : 1;
  const { small, large } = drawnBatches(range, together, runs);
  for (const { batch, laid, tokens } of small) {
    // If an input lies on a threshold, the results of both sides are correct. Such a batch is skipped.
    if (standsOnEdge(on.formula, on.args, batch)) continue;
    const expected = on.reference(batch);
    const { loss, grad: gradient } = on.sync(laid);
    const terms = tokens.map((token) => cancels?.(valuesOf(token)) ?? {});
    const largest = Math.max(...terms.map((term) => term.value ?? 0));
    value.add(loss, expected.loss, Math.max(expected.magnitude.loss, largest));
    for (const [i, slope] of gradient.entries()) grad.add(slope, expected.grad[i]!, terms[i]?.gradient ?? 0);
  }
  const sumsRows = declaration?.numerics?.exponentiatesRowSums === true;
  for (const { batch, laid } of range === 'wide' && sumsRows ? [] : large) {
    if (standsOnEdge(on.formula, on.args, batch)) continue;
    const expected = on.reference(batch);
    const { loss } = on.sync(laid);
    sum.add(loss, expected.loss, expected.magnitude.loss);
  }
  return {
    value: value.errors!,
    ...(grad.errors && { grad: grad.errors }),
    ...(sum.errors && { sum: sum.errors }),
  };
}

function measureAdvantage(name: string, args: Record<string, unknown>, range: Range, runs: number) {
  const fn = ADVANTAGE_FN.create(name, args);
  const declaration = ADVANTAGE_FN.get(name).declaration as AdvantageDeclaration | undefined;
  const whitens = declaration?.whitens === true;
  const cancels = declaration?.numerics.cancels;
  const value = new Tally();
  for (let run = 0; run < runs / 40; run++) {
    const batch = makeRewarded({
      seed: SEED + run,
      rows: 12,
      columns: 20,
      values: range === 'near' ? 'moderate' : 'wide',
      mask: 'prefix',
      packed: false,
      groups: 'some',
      rewards: range === 'near' ? 'normal' : 'large',
      perToken: false,
    });
    const { advantages } = fn.computeSync(layOut(batch));
    const expected = referenceAdvantages[name]!(args, batch).advantages;
    // Whitening subtracts a mean over the batch, so errors are measured relative to the largest advantage.
    const largest = expected.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
    const termOf = (i: number) => {
      if (whitens) return largest;
      const [oldLogprob, teacherLogprob] = [batch.oldLogprob![i]!, batch.teacherLogprob![i]!];
      return cancels?.({ ...NO_TOKEN, oldLogprob, teacherLogprob }).value ?? 0;
    };
    for (const [i, advantage] of advantages.entries())
      if (batch.actionMask[i]) value.add(advantage, expected[i]!, termOf(i));
  }
  return { value: value.errors! };
}

const FAMILIES = {
  policy: POLICY_LOSS_FN,
  kl: KL_FN,
  entropy: ENTROPY_LOSS_FN,
  value: VALUE_LOSS_FN,
  reward: REWARD_LOSS_FN,
  advantage: ADVANTAGE_FN,
} as const;

/**
 * Yields every function of the registries, once with its default arguments and once with each of its declared variants.
 */
export function* everyFunction(): Generator<Measurable> {
  for (const [family, registry] of Object.entries(FAMILIES) as [
    Measurable['family'],
    typeof POLICY_LOSS_FN,
  ][])
    for (const name of registry.names())
      for (const variant of [{}, ...(registry.get(name).declaration?.numerics.variants ?? [])]) {
        const cls = registry.get(name);
        const needed = requiredArgs(cls.declaration);
        const args: Record<string, unknown> = { ...cls.defaultArgs(), ...needed, ...variant };
        // The coefficients are 1. With the default of 0, all entropy losses would be 0, and the default of 0.001 would
        // scale the KL losses.
        if (family === 'entropy') args.entropy_coef = 1;
        if (family === 'kl') args.kl_coef = 1;
        const inRange = (range: Range, tokens: number) =>
          family === 'advantage'
            ? measureAdvantage(name, args, range, tokens)
            : measureLoss(family, name, args, range, tokens);
        const measure = (tokens: number) => ({
          near: inRange('near', tokens),
          wide: inRange('wide', tokens),
        });
        yield { family, name, args: { ...needed, ...variant }, measure };
      }
}
