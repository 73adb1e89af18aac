// Measures how far the engine's float32 is from float64: every function on drawn inputs beside the reference of
// test/reference, which is float64, shares no code with the engine, and is given what float32 can hold. What scripts/
// numerics/numerics.ts writes down and test/numerics.test.ts holds the package to.
import { ADVANTAGE_FN, type Batch, ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN } from '../../lib/index.js';
import { referenceAdvantages } from '../../test/reference/advantage.js';
import { standsOnEdge } from '../../test/reference/index.js';
import { layOut, makeRewarded } from '../../test/support/draw.js';
import { generator } from '../../test/support/random.js';
import { type Family, subject } from '../../test/support/subject.js';

const SEED = 20_251;

/** The largest and the mean of many errors, in units in the last place of a float32. */
export interface Errors {
  most: number;
  mean: number;
}

/** By the range that inputs were drawn from: errors of a token's value, of its gradient, and of sums over many tokens. */
export type Measured = Record<Range, { value: Errors; grad?: Errors; sum?: Errors }>;

/** One function with one set of arguments. */
export interface Measurable {
  family: Family | 'advantage';
  name: string;
  /** Arguments beside the default ones. */
  args: Record<string, unknown>;
  /** Measures it on so many tokens of each range. */
  measure(tokens: number): Measured;
}

/** What no error may exceed, in units in the last place; the same on every instruction set. */
export const BOUNDS: Record<Range, { value: number; grad: number; sum: number }> = {
  near: { value: 8, grad: 8, sum: 1 },
  wide: { value: 12, grad: 24, sum: 4 },
};

/** near: policies as training has them, a unit apart at most. wide: logprobs anywhere from −25 to 0. */
export type Range = 'near' | 'wide';
export const RANGES = ['near', 'wide'] as const;

/** Variants of a function that compute something else; {} is the one with the default arguments. */
const VARIANTS: Record<string, Record<string, unknown>[]> = {
  'policy ppo': [{}, { fallback_to_policy_gradient: true }],
  'policy sapo': [{}, { differentiate_gate: true }],
  'policy rec': [
    {},
    { weight: 'importance_sampling' },
    { weight: 'advantage' },
    { regularizer: 'k2', regularizer_coef: 0.1 },
  ],
  'policy sft_phi': [{}, { cutoff_prob: 0.5 }],
  'advantage opmd': [{}, { opmd_baseline: 'logavgexp' }],
  'advantage rec': [{}, { std_normalize: true }],
};

/** One unit in the last place of the float32 numbers next to x. */
function ulp(x: number): number {
  const size = Math.max(Math.abs(x), 2 ** -126);
  return 2 ** (Math.floor(Math.log2(size)) - 23);
}

class Tally {
  #most = 0;
  #sum = 0;
  #count = 0;

  /** @param term the largest number that the result was made of: what its last place is a part of. */
  add(actual: number, expected: number, term: number): void {
    // Where float32 has no larger number than Infinity, that is exact.
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

interface Token {
  logprob: number;
  oldLogprob: number;
  refLogprob: number;
  advantages: number;
  entropy: number;
}

function drawToken(range: Range, { uniform, normal }: ReturnType<typeof generator>): Token {
  const logprob = range === 'near' ? -4 * uniform() : -25 * uniform();
  const other = () => (range === 'near' ? Math.min(0, logprob + 2 * uniform() - 1) : -25 * uniform());
  const token = {
    logprob,
    oldLogprob: other(),
    refLogprob: other(),
    advantages: normal() * (range === 'near' ? 1 : 10),
    entropy: 8 * uniform(),
  };
  return Object.fromEntries(
    Object.entries(token).map(([key, x]) => [key, Math.fround(x)]),
  ) as unknown as Token;
}

/** A batch of so many tokens, one a row; every other row is an expert's, and a rejected answer. */
function batchOf(tokens: readonly Token[], columns = 1) {
  const column = (key: keyof Token) => tokens.map((token) => token[key]);
  const rows = tokens.length / columns;
  return {
    rows,
    columns,
    logprob: column('logprob'),
    oldLogprob: column('oldLogprob'),
    refLogprob: column('refLogprob'),
    advantages: column('advantages'),
    entropy: column('entropy'),
    actionMask: tokens.map(() => 1),
    expertMask: Array.from({ length: rows }, (_, row) => row % 2),
    step: Array.from({ length: rows }, () => 1),
  };
}

// The largest terms that cancel in a result, where it is a sum or a difference: the error of such a result is in units of
// theirs. Of all others it is in units of the result itself.
const TERMS: Record<string, (token: Token) => { value?: number; grad?: number }> = {
  'policy sft_phi': ({ logprob }) => {
    const p = Math.exp(logprob);
    return { value: Math.abs(logprob) * p, grad: p };
  },
  // How fast the gate opens is told from 0 down to e^−87; at a ratio of 1 the gradient is the advantage.
  'policy sapo': ({ advantages }) => ({ grad: Math.abs(advantages) }),
  'policy rec': ({ logprob, advantages }) => ({
    value: Math.abs(advantages * logprob),
    grad: Math.abs(advantages),
  }),
};

function measureLoss(
  family: Family,
  name: string,
  args: Record<string, unknown>,
  range: Range,
  runs: number,
) {
  const random = generator(SEED);
  const on = subject(family, name, args);
  const [value, grad, sum] = [new Tally(), new Tally(), new Tally()];
  // Losses of pairs, and of two kinds of rows.
  const together = family === 'policy' && ['dpo', 'mix', 'mix_chord'].includes(name) ? 2 : 1;
  for (let run = 0; run < runs; run++) {
    const tokens = Array.from({ length: together }, () => drawToken(range, random));
    const batch = batchOf(tokens);
    // On a threshold, either side is right.
    if (standsOnEdge(on.formula, on.args, batch)) continue;
    const expected = on.reference(batch);
    const { loss, grad: gradient } = on.sync(layOut(batch) as Batch);
    const terms = tokens.map((token) => TERMS[`${family} ${name}`]?.(token) ?? {});
    const most = (key: 'value' | 'grad') => Math.max(...terms.map((term) => term[key] ?? 0));
    value.add(loss, expected.loss, Math.max(expected.magnitude.loss, most('value')));
    for (const [i, slope] of gradient.entries()) grad.add(slope, expected.grad[i]!, terms[i]?.grad ?? 0);
  }
  for (let run = 0; run < runs / 400; run++) {
    const batch = batchOf(
      Array.from({ length: 8192 }, () => drawToken(range, random)),
      256,
    );
    if (standsOnEdge(on.formula, on.args, batch)) continue;
    const expected = on.reference(batch);
    const { loss } = on.sync(layOut(batch) as Batch);
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
    // What a mean was taken from all of has its last place there.
    const largest = expected.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
    const termOf = (i: number) => {
      if (OF_A_WHOLE.includes(name)) return largest;
      return name === 'jsd' ? Math.abs(batch.oldLogprob![i]! - batch.teacherLogprob![i]!) : 0;
    };
    for (const [i, advantage] of advantages.entries())
      if (batch.actionMask[i]) value.add(advantage, expected[i]!, termOf(i));
  }
  return { value: value.errors! };
}

// Advantages in units of the largest of their batch, as they are what is left of sums over rows and batches.
const OF_A_WHOLE: readonly string[] = ['ppo', 'reinforceplusplus'];

const FAMILIES = {
  policy: POLICY_LOSS_FN,
  kl: KL_FN,
  entropy: ENTROPY_LOSS_FN,
  advantage: ADVANTAGE_FN,
} as const;

/** Every function of the registries, and variants of some. */
export function* everyFunction(): Generator<Measurable> {
  for (const [family, registry] of Object.entries(FAMILIES) as [
    Measurable['family'],
    typeof POLICY_LOSS_FN,
  ][])
    for (const name of registry.names())
      for (const variant of VARIANTS[`${family} ${name}`] ?? [{}]) {
        const args: Record<string, unknown> = { ...registry.get(name).defaultArgs(), ...variant };
        // Coefficients of 1: entropy's default of 0 leaves nothing to measure.
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
        yield { family, name, args: variant, measure };
      }
}
