/**
 * Whatever stands in an argument's place, a public function gives a result or a LossError: never another exception.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  ENTROPY_LOSS_FN,
  fromTrinityConfig,
  KeyMapper,
  KL_FN,
  LossError,
  POLICY_LOSS_FN,
  sumCounts,
} from '../lib/index.js';

const SEED = Number(process.env.FC_SEED ?? 2025);

// biome-ignore lint/suspicious/noExplicitAny: the point of it
type Anything = any;

const floats = () => new Float32Array(6);
const WHOLE: Record<string, unknown> = {
  shape: [2, 3],
  actionMask: new Uint8Array(6).fill(1),
  logprob: floats(),
  oldLogprob: floats(),
  refLogprob: floats(),
  teacherLogprob: floats(),
  entropy: floats(),
  tokenLevelRewards: floats(),
  values: floats(),
  rewards: [1, 2],
  rewardBaselines: [0, 0],
  groupIds: [1, 1],
  runIds: ['a', 'b'],
  expertMask: [true, false],
  step: 1,
};
const KEYS = [...Object.keys(WHOLE), 'cuSeqlens', 'advantages', 'token_level_scores'];
const OPTIONS = [
  'grad',
  'gradEntropy',
  'normalizer',
  'device',
  'signal',
  'seed',
  'backend',
  'lossAggMode',
  'epsilon',
  'std_threshold',
  'clip_range',
  'kl_coef',
  'policy_loss_fn',
  'policy_loss_fn_args',
  'advantage_fn_args',
  'kl_penalty_fn',
  'loss_agg_mode',
  'algorithm_type',
  'algorithm',
];

const anything: fc.Arbitrary<Anything> = fc.oneof(
  fc.anything({ withTypedArray: true, withNullPrototype: true, withBigInt: true, maxDepth: 1 }),
  fc.constantFrom<Anything>(
    null,
    undefined,
    floats(),
    new Uint8Array(6).fill(1),
    new Float64Array(2),
    Int32Array.of(1, 1),
    [1, 2],
    'grpo',
    { tokens: 6, rows: 2 },
    Symbol('name'),
    () => 1,
    Object.create(null),
  ),
);

describe('arguments of any kind', () => {
  it('give a result or a LossError', async () => {
    const calls = fc.record({
      key: fc.constantFrom(...KEYS),
      option: fc.constantFrom(...OPTIONS),
      value: anything,
      other: anything,
      advantage: fc.constantFrom(...ADVANTAGE_FN.names()),
      algorithm: fc.constantFrom(...ALGORITHM_TYPE.names()),
      loss: fc.constantFrom(...POLICY_LOSS_FN.names()),
    });
    await fc.assert(
      fc.asyncProperty(calls, async ({ key, option, value, other, ...names }) => {
        const withValue = { ...WHOLE, [key]: value };
        const withOption: Anything = { [option]: other };
        const cls = ALGORITHM_TYPE.get(names.algorithm);
        const [advantage, objective] = [ADVANTAGE_FN.create(names.advantage), cls.objective()];
        const [loss, kl, entropy] = [
          POLICY_LOSS_FN.create(names.loss),
          KL_FN.create('k2'),
          ENTROPY_LOSS_FN.create('mix'),
        ];
        const attempts: (() => unknown)[] = [
          () => ADVANTAGE_FN.create(names.advantage, value, other),
          () => ADVANTAGE_FN.create(names.advantage, withOption),
          () => cls.objective(value),
          () => cls.objective(withOption),
          () => cls.checkConfig(value),
          () => fromTrinityConfig(value, other),
          () => fromTrinityConfig(withOption),
          () => sumCounts(value),
          () => [ADVANTAGE_FN, ALGORITHM_TYPE, POLICY_LOSS_FN].map((registry) => registry.get(value)),
          () => KeyMapper.get(value),
          () => kl.calculateKlLoss(value, other),
          () => kl.applyKlPenaltyToReward(withValue),
          () => entropy.compute(withValue, withOption),
        ];
        for (const on of [advantage, objective, loss] as Anything[])
          attempts.push(
            () => on.compute(withValue),
            () => on.computeSync(withValue),
            () => on.compute(value, other),
            () => on.compute(WHOLE, other),
            () => on.compute(WHOLE, withOption),
            () => on.computeSync(WHOLE, withOption),
            () => on.count?.(value, other),
            () => on.countSync?.(withValue, other),
          );
        for (const attempt of attempts)
          await (async () => attempt())().catch((error: unknown) =>
            assert.ok(error instanceof LossError, `${attempt}: ${(error as Error)?.stack ?? error}`),
          );
      }),
      { numRuns: 400, seed: SEED },
    );
  });
});
