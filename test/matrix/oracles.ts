/** What the matrix asserts of a function besides the bits of its results in all forms (forms.ts). */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import {
  type Batch,
  devices,
  KL_FN,
  POLICY_LOSS_FN,
  type PolicyLossDeclaration,
  upload,
} from '../../lib/index.js';
import type { RewardedBatch } from '../reference/advantage.js';
import type { Args, ReferenceBatch, Wrt } from '../reference/index.js';
import { REWARDED_TOKENS } from '../support/advantages.js';
import { camelCase, renamed } from '../support/batch-keys.js';
import { allClose, metricsAgree } from '../support/close.js';
import {
  type BatchSpec,
  batchSpec,
  makeBatch,
  makeBatchOffEdges,
  makeRewarded,
  type RewardSpec,
  rewardSpec,
  three,
} from '../support/draw.js';
import { ARGUMENTS, fitting } from '../support/draw-arguments.js';
import { cutRows, goldenBatch, referenceBatch } from '../support/golden.js';
import { poison } from '../support/poison.js';
import { slopesAgree } from '../support/slopes.js';
import { evaluateOf, type Family, subject, unpack } from '../support/subject.js';
import { assertArray } from '../support/tolerance.js';
import { testedExpression, testedObjective } from './composed.js';
import { assertEqual, assertGoldenLikeCpu, within } from './forms.js';
import type { Golden } from './golden.js';
import {
  assertExpected,
  expectedOf,
  formulaOf,
  isOnEdge,
  klOf,
  layAny,
  type Registered,
} from './reference.js';
import { type Result, type Tested, tested, testedAdvantage, testedCorrection } from './tested.js';

export type Place = 'cpu' | 'cuda:0';
const SEED = Number(process.env.FC_SEED ?? 2025);

function make({ family, name, args }: Golden): Tested {
  if (family === 'advantage') return testedAdvantage(name, args);
  if (family === 'correction') return testedCorrection(name, args);
  if (family === 'objective') return testedObjective(name, args, name);
  return family === 'expression' ? testedExpression(name, args) : tested(family, name, args);
}

/** Computes a batch by all kinds of calls on a place, and asserts that they give the same bits. */
export async function everywhere(on: Tested, batch: Batch, place: Place): Promise<Result> {
  const options = { gradients: 'all' } as const;
  if (place === 'cpu') {
    const result = on.sync(batch, options);
    await within('call: async', async () => assertEqual(await on.async(batch, options), result));
    return result;
  }
  const result = await on.async(batch, { ...options, device: place });
  if (on.hostOnly) return result;
  using resident = await upload(batch, place);
  await within('device: uploaded', async () => assertEqual(await on.async(resident, options), result));
  await within('device: uploaded, call: sync', () => assertEqual(on.sync(resident, options), result));
  return result;
}

/** Asserts that a function computes what a framework did, from padded and from packed rows, and under every name of a key. */
export async function assertGolden(golden: Golden, place: Place): Promise<void> {
  const { family, name, args, inputs, unreported = [], metricRelative, tokenRelative } = golden;
  const batch = referenceBatch(inputs);
  // The cases of verl, TRL and ms-swift may have tokens on thresholds, and agree nevertheless.
  if (!/^(verl|trl|swift)\//.test(name))
    assert.ok(!isOnEdge(family, name, args, batch), 'a token stands on a threshold');
  const on = make(golden);
  const expected = { ...golden.expected, metricRelative, tokenRelative };
  const holds = (of: ReferenceBatch, result: Result) => {
    const reported = Object.entries(result.numbers).filter(([metric]) => !unreported.includes(metric));
    assertExpected(of, { ...result, numbers: Object.fromEntries(reported) }, expected);
  };
  const given = goldenBatch(inputs);
  const computed = await everywhere(on, given, place);
  await within('layout: padded', () => holds(batch, computed));
  if (place !== 'cpu' && devices()[0]!.isa !== 'sse4')
    await within('device', () => assertGoldenLikeCpu(on, computed, on.sync(given, { gradients: 'all' })));

  const same = async (what: string, other: Batch) =>
    within(what, async () => assertEqual(await everywhere(on, other, place), computed));
  const VERL: Record<string, string> = { action_mask: 'response_mask', old_logprob: 'old_log_probs' };
  if (place === 'cpu') {
    await same('keys: camelCase', renamed(given, camelCase));
    await same(
      'keys: of verl',
      renamed(given, (key) => VERL[key] ?? key),
    );
  }
  if (family === 'advantage') {
    // Some functions read masked values, so the rows keep their masked tokens.
    const { shape, ...columns } = given;
    const [rows, length] = shape as [number, number];
    const cuSeqlens = Int32Array.from({ length: rows + 1 }, (_, b) => b * length);
    return same('layout: packed', { ...columns, cuSeqlens });
  }
  await same('masked: NaN', layAny(poison(batch, Number.NaN, on.readsSigns)));
  const cut = cutRows(batch);
  await within('layout: packed', async () => {
    const packed = await everywhere(on, layAny(cut), place);
    holds(cut, packed);
    if (place === 'cpu')
      assertEqual(
        {
          ...packed,
          tokens: Object.fromEntries(
            Object.entries(packed.tokens).map(([key, values]) => [key, unpack(cut, values as Float32Array)]),
          ),
        },
        computed,
      );
  });
  if (golden.selectKeys)
    assert.deepEqual(POLICY_LOSS_FN.create(name, args, { backend: 'verl' }).selectKeys, golden.selectKeys);
  if (golden.kl) {
    const kl = KL_FN.create(name);
    const values = await kl.calculateKl(given, place === 'cpu' ? {} : { device: place });
    // Like Trinity's calculate_kl(), calculateKl() ignores the mask and computes values for masked tokens too.
    assertArray(values, golden.kl, 'kl');
    if (place === 'cpu') assert.deepEqual(kl.calculateKlSync(given), values);
  }
}

/** A golden case of a registered function. */
export type RegisteredGolden = Golden & { family: Registered };

/** Asserts that the reference computes what a framework did, much more closely than a float32 engine could. */
export function assertReferenceGolden(golden: RegisteredGolden): void {
  const { family, name, args, inputs, expected, unreported = [], slack = 1, tokenRelative } = golden;
  const batch = referenceBatch(inputs);
  const actual = expectedOf(family, name, args, batch);
  for (const metric of unreported) {
    assert.ok(metric in actual.metrics, metric);
    delete actual.metrics[metric];
  }
  if (expected.loss !== undefined) allClose([actual.loss!], [expected.loss], 'loss', slack);
  const close = (found: ArrayLike<number> | 'zeros', wanted: number[] | 'zeros', key: string) => {
    if (wanted === 'zeros' || found === 'zeros') {
      const zeros = (values: ArrayLike<number> | 'zeros') =>
        values === 'zeros' || Array.from(values).every((g) => g === 0);
      return assert.ok(zeros(wanted) && zeros(found), `${key} is not 0`);
    }
    // Trinity-RFT computed advantages in float32.
    if (family === 'advantage' && !name.includes('/')) assertArray(found, wanted, key, tokenRelative);
    else allClose(found, wanted, key, slack);
  };
  if (family === 'advantage' && !name.includes('/')) {
    assert.deepEqual(Object.keys(actual.metrics).sort(), Object.keys(expected.metrics).sort());
    for (const [metric, value] of Object.entries(expected.metrics))
      assertArray([actual.metrics[metric]!], [value], metric, golden.metricRelative, 0.05);
  } else metricsAgree(actual.metrics, expected.metrics, slack);
  for (const [key, values] of Object.entries(expected.tokens))
    close(actual.tokens[key] ?? 'zeros', values, key);
  for (const [key, values] of Object.entries(expected.rows)) close(actual.rows[key] ?? 'zeros', values, key);
  if (golden.kl) allClose(klOf(name, batch), golden.kl, 'kl');
}

/** The columns by which the losses of the families are differentiated. */
const VARIABLES: Record<Family, Wrt> = {
  policy: 'logprob',
  kl: 'logprob',
  entropy: 'entropy',
  value: 'values',
  reward: 'rewards',
};

/** Asserts that the reference's gradients are the slopes of its losses on the golden inputs. */
export async function assertSlopes(family: Family, name: string, cases: readonly Golden[]): Promise<void> {
  const formula = formulaOf(family, name)!;
  const evaluate = evaluateOf(family, name);
  const ofEntropy: typeof evaluate = (given, of) => {
    const result = evaluate(given, of);
    return { ...result, grad: result.gradEntropy! };
  };
  let compared = 0;
  for (const { id, args, inputs, expected } of cases)
    await within(id, () => {
      const batch = referenceBatch(inputs);
      compared += slopesAgree(formula, evaluate, args, batch, VARIABLES[family]);
      if (family === 'policy' && expected.tokens.gradEntropy !== 'zeros')
        slopesAgree(formula, ofEntropy, args, batch, batch.entropyOther ? 'entropyOther' : 'entropy');
    });
  // Batches of rewards have few elements.
  assert.ok(compared > (family === 'reward' ? 5 : 20), `only ${compared} elements lie away from kinks`);
}

/** Losses that are not 0 without tokens: those of pairs, and one of prompts. */
const NOT_ZERO_WHEN_EMPTY = ['verl/flowrl', 'verl/online_dpo', 'dpo'];

/** Losses whose reference is not defined without rows. */
const NEEDS_ROWS = ['dpo', 'mix_chord', 'verl/gvpo'];

/** Asserts that the reference reads no masked token, and is finite without any token. */
export function assertReferenceMasks({ id, family, name, args, inputs }: RegisteredGolden): void {
  if (family === 'advantage') return; // Rewards of masked tokens count.
  const batch = referenceBatch(inputs);
  const of = (given: RewardedBatch) => expectedOf(family, name, args, given);
  const expected = of(batch);
  const keepsSigns = args.enable_sequence_masking === true;
  assert.deepEqual(of(poison(batch, Number.NaN, keepsSigns)), expected, `${id}, masked: NaN`);
  assert.deepEqual(of(cutRows(batch)), expected, `${id}, layout: packed`);
  const columns = Object.keys(batch).filter((key) => key !== 'rows' && key !== 'columns');
  const cases = {
    masked: {
      ...batch,
      actionMask: new Uint8Array(batch.actionMask.length),
      ...(batch.attentionMask && { attentionMask: new Uint8Array(batch.attentionMask.length) }),
    },
    empty: { ...batch, rows: 0, ...Object.fromEntries(columns.map((key) => [key, []])) },
  };
  for (const [what, given] of Object.entries(cases)) {
    if (what === 'empty' && (family === 'correction' || NEEDS_ROWS.includes(name))) continue;
    const { loss = 0, metrics, tokens } = of(given as ReferenceBatch);
    const gradients = Object.values(tokens).flatMap((values) =>
      values === 'zeros' ? [] : Array.from(values),
    );
    for (const value of [loss, ...Object.values(metrics), ...gradients])
      assert.ok(Number.isFinite(value), `${id}: ${value} of a batch that is ${what}`);
    if (family === 'correction') continue;
    assert.ok(
      gradients.every((g) => g === 0),
      id,
    );
    if (family === 'policy' && name.startsWith('verl/') && !NOT_ZERO_WHEN_EMPTY.includes(name))
      assert.equal(Math.abs(loss), 0, id);
  }
}

/** Asserts that a result is the reference's. Masked values are NaN. */
export async function assertAgrees(
  on: Tested,
  family: Registered,
  batch: RewardedBatch,
  place: Place = 'cpu',
): Promise<Result> {
  const { name, args } = on;
  const hostile = family === 'advantage' ? batch : poison(batch, Number.NaN, on.readsSigns);
  const result =
    place === 'cpu'
      ? on.sync(layAny(hostile), { gradients: 'all' })
      : await everywhere(on, layAny(hostile), place);
  assertExpected(batch, result, expectedOf(family, name, args, batch));
  return result;
}

/** What a batch may lack of what a function can do without, and whether it has one advantage per row. */
const kinds = fc.record({ isPerRow: fc.boolean(), lacks: fc.nat({ max: 31 }) });
const OPTIONAL = ['old_logprob', 'entropy', 'rollout_logprob', 'token_weights', 'prob_desirable'] as const;

function adapted(
  family: Family,
  { name, args }: Tested,
  batch: ReferenceBatch,
  { isPerRow, lacks }: { isPerRow: boolean; lacks: number },
): ReferenceBatch {
  const ofPolicy = family === 'policy' ? POLICY_LOSS_FN.create(name, args) : undefined;
  const optional: readonly string[] =
    ofPolicy?.reads.optional ?? (family === 'kl' && KL_FN.create(name).usesOldLogprob ? ['old_logprob'] : []);
  const other: ReferenceBatch = { ...batch };
  OPTIONAL.forEach((column, i) => {
    if (optional.includes(column) && (lacks >> i) % 2) delete other[camelCase(column) as 'oldLogprob'];
  });
  const declaration = POLICY_LOSS_FN.names().includes(name) && POLICY_LOSS_FN.get(name).declaration;
  const perRow = (ofPolicy && declaration && (declaration as PolicyLossDeclaration).perRow) || [];
  const { rows, columns, rowLengths, advantages } = other;
  const tokens = rowLengths?.reduce((sum, length) => sum + length, 0) ?? rows * columns;
  if (!isPerRow || !perRow.includes('advantages') || tokens === rows) return other;
  return { ...other, advantages: Array.from({ length: rows }, (_, b) => advantages![b * columns]!) };
}

/** Compares a loss with its reference on batches and with arguments that are drawn at random. */
export async function assertDrawnLoss(
  family: Family,
  name: string,
  place: Place,
  runs: number,
): Promise<void> {
  let compared = 0;
  const drawn = three(fc.tuple(batchSpec, kinds));
  await fc.assert(
    fc.asyncProperty(ARGUMENTS[family][name]!, drawn, async (args, batches) => {
      const on = tested(family, name, args);
      for (const [spec, kind] of batches) {
        const batch = adapted(family, on, makeBatch(fitting(name, args, spec)), kind);
        // Skips the batch if a token is so close to a threshold that float32 rounding may move it to the other side.
        if (isOnEdge(family, name, args, batch)) continue;
        compared++;
        await assertAgrees(on, family, batch, place);
        if (family !== 'kl' || batch.rowLengths) continue;
        const values = await KL_FN.create(name).calculateKl(
          layAny(batch),
          place === 'cpu' ? {} : { device: place },
        );
        assertArray(values, klOf(name, batch), 'kl');
      }
    }),
    { numRuns: runs, seed: SEED },
  );
  assert.ok(compared > (place === 'cpu' ? 2.5 : 1.5) * runs, `compared only ${compared} batches`);
}

/** Compares an advantage function with its reference on drawn batches. */
export async function assertDrawnAdvantage(
  name: string,
  args: fc.Arbitrary<Args>,
  place: Place,
  runs: number,
): Promise<void> {
  await fc.assert(
    fc.asyncProperty(args, three(rewardSpec), async (drawnArgs, specs) => {
      const on = testedAdvantage(name, drawnArgs);
      for (const spec of specs) await assertAgrees(on, 'advantage', makeRewarded(spec), place);
    }),
    { numRuns: runs, seed: SEED },
  );
}

/**
 * Arguments for large batches. FIPO's weight is a sum over many tokens, so in a large batch one token's weight is always
 * close to the range to which weights are clipped.
 */
const OF_LARGE: Readonly<Record<string, Args>> = { fipo: { influence_clip_range: null } };

/** Compares a loss with its reference on a long batch. */
export async function assertLargeLoss(
  family: Family,
  name: string,
  part: Partial<BatchSpec>,
  place: Place,
): Promise<void> {
  const [sample] = fc.sample(ARGUMENTS[family][name]!, { seed: SEED, numRuns: 1 });
  const args = { ...sample, ...OF_LARGE[name] };
  const spec = {
    seed: SEED,
    rows: 4,
    columns: 1,
    values: 'moderate',
    mask: 'random',
    packed: false,
  } as const;
  const batch = makeBatchOffEdges(fitting(name, args, { ...spec, ...part }), subject(family, name, args));
  await assertAgrees(tested(family, name, args), family, batch, place);
}

/** Rows of 100,000 tokens alone and packed with short ones, 20,000 rows, and long runs of unmasked and masked tokens. */
const LARGE_ADVANTAGES: (Partial<RewardSpec> & { pierced?: number })[] = [
  { packed: true, rows: 3, rowLengths: [17, 100_000, 250], columns: 100_000 },
  { rows: 1, columns: 100_000 },
  { rows: 20_000, columns: 5 },
  // Long runs of unmasked tokens, runs with a single masked token in them, and long masked ends.
  { rows: 8, columns: 5000, mask: 'prefix', pierced: 1500 },
];
const large = new Map<object, RewardedBatch>();

function largeOf(shape: (typeof LARGE_ADVANTAGES)[number]): RewardedBatch {
  const { pierced, ...spec } = shape;
  const batch = large.get(shape) ?? { ...makeRewarded({ ...REWARDED_TOKENS, ...spec }) };
  if (pierced && !large.has(shape)) {
    const actionMask = Array.from(batch.actionMask);
    for (let i = pierced; i < actionMask.length; i += 2 * batch.columns) actionMask[i] = 0;
    batch.actionMask = actionMask;
  }
  large.set(shape, batch);
  return batch;
}

/** Compares an advantage function with its reference on large batches. */
export async function assertLargeAdvantage(name: string, args: fc.Arbitrary<Args>): Promise<void> {
  const [drawnArgs] = fc.sample(args, { seed: SEED, numRuns: 1 }) as [Args];
  const on = testedAdvantage(name, drawnArgs);
  for (const shape of LARGE_ADVANTAGES) {
    const batch = largeOf(shape);
    const result = await assertAgrees(on, 'advantage', batch);
    assertEqual(await on.async(layAny(batch)), result);
  }
}
