/**
 * Algorithms: what their classes say, and their objectives, against Trinity-RFT's own (golden cases), against the
 * float64 reference in every combination of parts, and against the parts computed one by one; advantages made on the
 * way, with rows dropped and copied; and objectives from Trinity's configuration files.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  AlgorithmType,
  AsymREAlgorithm,
  type Batch,
  CISPOAlgorithm,
  DPOAlgorithm,
  ENTROPY_LOSS_FN,
  fromTrinityConfig,
  GRPOAlgorithm,
  GSPOAlgorithm,
  JSDAlgorithm,
  KL_FN,
  LossError,
  type LossErrorCode,
  MIXAlgorithm,
  MIXCHORDAlgorithm,
  MultiStepGRPOAlgorithm,
  Objective,
  type ObjectiveResult,
  OnPolicyDistillAlgorithm,
  OPMDAlgorithm,
  POLICY_LOSS_FN,
  PPOAlgorithm,
  RAFTAlgorithm,
  RECAlgorithm,
  ReinforcePlusPlusAlgorithm,
  RLOOAlgorithm,
  SAPOAlgorithm,
  SFTAlgorithm,
  sPPOAlgorithm,
  TOPRAlgorithm,
} from '../lib/index.js';
import { type RewardedBatch, referenceAdvantages, tokenRewards } from './reference/advantage.js';
import type { Args } from './reference/index.js';
import {
  objectiveStandsOnEdge,
  type Parts,
  penalisedRewards,
  type ReferenceObjective,
  referenceObjective,
  takeRows,
} from './reference/objective.js';
import {
  ADVANTAGE_ARGUMENTS,
  AGGREGATIONS,
  ARGUMENTS,
  fitting,
  inHalf,
  layOut,
  makeBatch,
  makeRewarded,
  type RewardSpec,
  rewardSpec,
} from './support/draw.js';
import { algorithmCases, cutRows, goldenBatch, referenceBatch } from './support/golden.js';
import { unpack } from './support/subject.js';
import { assertArray, assertComputed, assertNumber, assertSameArray } from './support/tolerance.js';

const SEED = Number(process.env.FC_SEED ?? 2025);

/** Each class with use_critic, use_reference, compute_advantage_in_trainer, can_balance_batch and schema. */
const CLASSES = {
  sft: [SFTAlgorithm, false, false, false, true, 'sft'],
  ppo: [PPOAlgorithm, true, true, true, true, 'experience'],
  grpo: [GRPOAlgorithm, false, true, false, true, 'experience'],
  reinforceplusplus: [ReinforcePlusPlusAlgorithm, false, true, true, true, 'experience'],
  rloo: [RLOOAlgorithm, false, true, true, true, 'experience'],
  opmd: [OPMDAlgorithm, false, true, false, true, 'experience'],
  asymre: [AsymREAlgorithm, false, false, false, true, 'experience'],
  dpo: [DPOAlgorithm, false, true, false, false, 'dpo'],
  topr: [TOPRAlgorithm, false, true, false, true, 'experience'],
  cispo: [CISPOAlgorithm, false, true, false, true, 'experience'],
  gspo: [GSPOAlgorithm, false, true, false, true, 'experience'],
  sapo: [SAPOAlgorithm, false, true, false, true, 'experience'],
  mix: [MIXAlgorithm, false, true, false, true, 'experience'],
  mix_chord: [MIXCHORDAlgorithm, false, true, false, true, 'experience'],
  raft: [RAFTAlgorithm, false, false, false, true, 'experience'],
  sppo: [sPPOAlgorithm, false, false, false, true, 'experience'],
  rec: [RECAlgorithm, false, true, false, true, 'experience'],
  multi_step_grpo: [MultiStepGRPOAlgorithm, false, true, false, true, 'experience'],
  on_policy_distill: [OnPolicyDistillAlgorithm, false, false, true, true, 'experience'],
  jsd: [JSDAlgorithm, false, false, true, true, 'experience'],
} as const;

/** Each one's policy loss, advantage function, KL loss, entropy loss and repeat_times. */
const DEFAULTS: Record<string, [string, string | undefined, string | undefined, string, number | undefined]> =
  {
    sft: ['sft', undefined, 'none', 'none', undefined],
    ppo: ['ppo', 'ppo', 'k2', 'default', 1],
    grpo: ['ppo', 'grpo', 'k2', 'default', 2],
    reinforceplusplus: ['ppo', 'reinforceplusplus', 'k2', 'default', 2],
    rloo: ['ppo', 'rloo', 'k2', 'default', 2],
    opmd: ['opmd', 'opmd', 'k2', 'default', 2],
    asymre: ['opmd', 'asymre', 'none', 'none', 2],
    dpo: ['dpo', undefined, 'k2', 'default', undefined],
    topr: ['topr', 'reinforce', 'k2', 'default', 2],
    cispo: ['cispo', 'grpo', 'k2', 'default', 2],
    gspo: ['gspo', 'grpo', 'k2', 'default', 2],
    sapo: ['sapo', 'grpo', 'k2', 'default', 2],
    mix: ['mix', 'grpo', undefined, 'mix', 8],
    mix_chord: ['mix_chord', 'grpo', undefined, 'mix', 8],
    raft: ['sft', undefined, 'none', 'none', undefined],
    sppo: ['sppo', 'opmd', 'none', 'none', 2],
    rec: ['rec', 'rec', 'k2', 'default', 2],
    multi_step_grpo: ['ppo', 'step_wise_grpo', 'k2', 'default', 8],
    on_policy_distill: ['ppo', 'on_policy_distill', 'none', 'none', 8],
    jsd: ['ppo', 'jsd', 'none', 'none', 8],
  };

const objectiveOf = (algorithm: string, config?: Record<string, unknown>) =>
  ALGORITHM_TYPE.get(algorithm).objective(config);

const isLossError =
  (code: LossErrorCode | LossErrorCode[], ...says: RegExp[]) =>
  (error: unknown) => {
    assert.ok(error instanceof LossError, `${error} is no LossError`);
    assert.ok([code].flat().includes(error.code), `${error.code}: ${error.message}`);
    for (const pattern of says) assert.match(error.message, pattern);
    return true;
  };

/** What process.emitWarning was given in the meantime. */
async function warningsOf<T>(run: () => T): Promise<{ result: T; warnings: string[] }> {
  const warnings: string[] = [];
  const listener = (warning: Error) => warnings.push(warning.message);
  process.on('warning', listener);
  try {
    const result = run();
    await new Promise(setImmediate);
    return { result, warnings };
  } finally {
    process.off('warning', listener);
  }
}

/** A gradient that is not there is of a term that is not there. */
function completed(batch: RewardedBatch, result: ObjectiveResult) {
  const lay = (grad: Float32Array | undefined) => {
    if (!grad) return new Float32Array(batch.rows * batch.columns);
    return batch.rowLengths ? unpack(batch, grad) : grad;
  };
  return { ...result, grad: lay(result.grad), gradEntropy: lay(result.gradEntropy) };
}

function assertObjective(batch: RewardedBatch, actual: ObjectiveResult, expected: ReferenceObjective): void {
  assert.ok(actual.grad, 'no gradient');
  const result = completed(batch, actual);
  assertComputed(result, expected);
  assertArray(result.gradEntropy, expected.gradEntropy, 'gradEntropy');
}

function assertSameObjective(actual: ObjectiveResult, expected: ObjectiveResult): void {
  assert.deepStrictEqual(
    { loss: actual.loss, metrics: actual.metrics },
    { loss: expected.loss, metrics: expected.metrics },
  );
  for (const key of ['grad', 'gradEntropy'] as const) {
    assert.equal(actual[key] === undefined, expected[key] === undefined, key);
    if (expected[key]) assertSameArray(actual[key]!, expected[key], key);
  }
}

/** The configuration that names these parts, and their loss_agg_mode where the policy loss is to get it from there. */
const configOf = ({ policy, kl, entropy }: Parts, mode: string, own = true): Record<string, unknown> => {
  const without = ({ loss_agg_mode: _, ...rest }: Args) => rest;
  return {
    policy_loss_fn: policy.name,
    policy_loss_fn_args: own ? policy.args : without(policy.args),
    kl_loss_fn: kl.name,
    kl_loss_fn_args: without(kl.args),
    entropy_loss_fn: entropy.name,
    entropy_loss_fn_args: without(entropy.args),
    loss_agg_mode: mode,
  };
};

const without = (given: object, ...keys: string[]): Batch =>
  Object.fromEntries(Object.entries(given).filter(([key]) => !keys.includes(key)));

describe('algorithm classes', () => {
  it('are these, by name', () => {
    assert.deepEqual([...ALGORITHM_TYPE.names()].sort(), Object.keys(CLASSES).sort());
    assert.equal(ALGORITHM_TYPE.names().length, 20);
    for (const [name, [cls]] of Object.entries(CLASSES)) {
      assert.equal(ALGORITHM_TYPE.get(name), cls);
      assert.ok(Object.prototype.isPrototypeOf.call(AlgorithmType, cls), `${name} is no AlgorithmType`);
    }
    assert.throws(
      () => ALGORITHM_TYPE.get('mixchord'),
      isLossError(
        'ERR_UNKNOWN_NAME',
        /mixchord/,
        /(mean|near|clos)[^.]*\bmix_chord\b/i,
        /\bon_policy_distill\b/,
      ),
    );
    assert.throws(() => ALGORITHM_TYPE.get('toString'), isLossError('ERR_UNKNOWN_NAME'));
  });

  for (const [name, [cls, ...constants]] of Object.entries(CLASSES))
    it(`${name}: constants and default configuration, frozen`, () => {
      const keys = [
        'useCritic',
        'useReference',
        'computeAdvantageInTrainer',
        'canBalanceBatch',
        'schema',
      ] as const;
      assert.deepEqual(
        keys.map((key) => cls[key]),
        constants,
      );
      const writable = cls as unknown as Record<string, unknown>;
      for (const key of keys) {
        assert.throws(() => {
          writable[key] = 'changed';
        }, TypeError);
      }
      assert.throws(() => {
        writable.another = 1;
      }, TypeError);

      const config = cls.defaultConfig();
      const [policy_loss_fn, advantage_fn, kl_loss_fn, entropy_loss_fn, repeat_times] = DEFAULTS[name]!;
      const mixed = name === 'mix' || name === 'mix_chord';
      const expected = {
        policy_loss_fn,
        advantage_fn,
        kl_penalty_fn: advantage_fn && !mixed ? 'none' : undefined,
        kl_loss_fn,
        entropy_loss_fn,
        repeat_times,
        sample_strategy: mixed ? 'mix' : 'default',
      };
      const given = Object.entries(expected).filter(([, value]) => value !== undefined);
      assert.deepEqual(config, Object.fromEntries(given));
      assert.ok(Object.isFrozen(config));
      assert.throws(() => {
        (config as Record<string, unknown>).policy_loss_fn = 'gspo';
      }, TypeError);
    });

  for (const name of Object.keys(CLASSES))
    it(`${name}: its objective has the parts it says`, () => {
      const objective = objectiveOf(name);
      assert.ok(objective instanceof Objective);
      assert.equal(objective.algorithm, name);
      const [policy, advantage, kl, entropy] = DEFAULTS[name]!;
      assert.ok(objective.policyLossFn instanceof POLICY_LOSS_FN.get(policy));
      assert.ok(objective.klLossFn instanceof KL_FN.get(kl ?? 'none'));
      assert.ok(objective.klPenaltyFn instanceof KL_FN.get('none'));
      assert.ok(objective.entropyLossFn instanceof ENTROPY_LOSS_FN.get(entropy));
      if (advantage) assert.ok(objective.advantageFn instanceof ADVANTAGE_FN.get(advantage));
      else assert.equal(objective.advantageFn, undefined);
    });
});

describe('checkConfig', () => {
  const whole = (change: object = {}) => ({
    mode: 'train',
    buffer: { trainer_input: { experience_buffer: { path: 'pairs.jsonl' } } },
    synchronizer: { sync_method: 'checkpoint' },
    algorithm: { algorithm_type: 'dpo', kl_loss_fn: 'k3', repeat_times: 2 },
    ...change,
  });

  it('dpo: no KL becomes k2 with a warning, repeat_times is 2, and what was given stays as it was', async () => {
    const config = { kl_loss_fn: 'none', repeat_times: 8, loss_agg_mode: 'token-mean' };
    const before = structuredClone(config);
    const { result, warnings } = await warningsOf(() => DPOAlgorithm.checkConfig(config));
    assert.deepEqual(result, { kl_loss_fn: 'k2', repeat_times: 2, loss_agg_mode: 'token-mean' });
    assert.deepEqual(config, before);
    assert.ok(
      warnings.some((warning) => /k2/.test(warning) && /kl/i.test(warning)),
      `${warnings}`,
    );
  });

  it('dpo: what is right stays, without a warning', async () => {
    const { result, warnings } = await warningsOf(() =>
      DPOAlgorithm.checkConfig({ kl_loss_fn: 'k1', repeat_times: 2 }),
    );
    assert.deepEqual(result, { kl_loss_fn: 'k1', repeat_times: 2 });
    assert.deepEqual(warnings, []);
  });

  it('dpo: a whole configuration is corrected within', async () => {
    const config = whole({
      synchronizer: { sync_method: 'nccl', sync_interval: 3 },
      algorithm: { algorithm_type: 'dpo', kl_loss_fn: 'none' },
    });
    const before = structuredClone(config);
    const { result, warnings } = await warningsOf(() => DPOAlgorithm.checkConfig(config));
    assert.deepEqual(config, before);
    assert.deepEqual(result, {
      ...before,
      synchronizer: { sync_method: 'checkpoint', sync_interval: 3 },
      algorithm: { algorithm_type: 'dpo', kl_loss_fn: 'k2', repeat_times: 2 },
    });
    assert.ok(
      warnings.some((warning) => /checkpoint/.test(warning)),
      `${warnings}`,
    );
    assert.ok(
      warnings.some((warning) => /k2/.test(warning)),
      `${warnings}`,
    );
  });

  for (const [name, cls] of [
    ['dpo', DPOAlgorithm],
    ['sft', SFTAlgorithm],
  ] as const) {
    const algorithm = { algorithm_type: name, kl_loss_fn: 'k2', repeat_times: 2 };
    it(`${name}: only trains, from a file`, async () => {
      for (const mode of ['both', 'explore'])
        assert.throws(
          () => cls.checkConfig(whole({ mode, algorithm })),
          isLossError('ERR_INVALID_OPTION', /mode/, new RegExp(mode)),
        );
      for (const buffer of [
        undefined,
        {},
        { trainer_input: {} },
        { trainer_input: { experience_buffer: {} } },
      ])
        assert.throws(
          () => cls.checkConfig(whole({ buffer, algorithm })),
          isLossError('ERR_INVALID_OPTION', /path/),
        );
      const { result, warnings } = await warningsOf(() => cls.checkConfig(whole({ algorithm })));
      assert.deepEqual(result, whole({ algorithm }));
      assert.deepEqual(warnings, []);
    });

    it(`${name}: is synchronised by checkpoints, with a warning`, async () => {
      const { result, warnings } = await warningsOf(() =>
        cls.checkConfig(whole({ algorithm, synchronizer: { sync_method: 'nccl' } })),
      );
      assert.deepEqual(result, whole({ algorithm }));
      assert.equal(warnings.length, 1);
      assert.match(warnings[0]!, /checkpoint/);
    });
  }

  it('the others take any', async () => {
    for (const [name, [cls]] of Object.entries(CLASSES)) {
      if (name === 'dpo' || name === 'sft') continue;
      for (const config of [{ kl_loss_fn: 'none', repeat_times: 7 }, whole({ mode: 'both', buffer: {} })]) {
        const { result, warnings } = await warningsOf(() => cls.checkConfig(config));
        assert.deepEqual(result, config);
        assert.deepEqual(warnings, []);
      }
    }
  });
});

describe('golden algorithms', () => {
  it('are what the reference of objectives gives', () => {
    for (const golden of algorithmCases) {
      const { loss_agg_mode, inputs, expected } = golden;
      const parts: Parts = {
        policy: { name: golden.policy_loss_fn, args: golden.policy_loss_fn_args },
        kl: { name: golden.kl_loss_fn, args: { kl_coef: golden.kl_coef, loss_agg_mode } },
        entropy: {
          name: golden.entropy_loss_fn,
          args: { entropy_coef: golden.entropy_coef, loss_agg_mode },
        },
      };
      const { loss, metrics, grad, gradEntropy } = referenceObjective(parts, referenceBatch(inputs));
      assertNumber(loss, expected.loss, golden.id);
      assert.deepEqual(Object.keys(metrics).sort(), Object.keys(expected.metrics).sort());
      for (const [name, value] of Object.entries(expected.metrics)) assertNumber(metrics[name], value, name);
      assertArray(grad, expected.grad_logprob.data, golden.id);
      assertArray(gradEntropy, expected.grad_entropy.data, golden.id);
    }
  });

  for (const golden of algorithmCases) {
    const { id, algorithm, inputs, expected } = golden;
    const config = {
      policy_loss_fn: golden.policy_loss_fn,
      policy_loss_fn_args: golden.policy_loss_fn_args,
      kl_loss_fn: golden.kl_loss_fn,
      kl_loss_fn_args: { kl_coef: golden.kl_coef },
      entropy_loss_fn: golden.entropy_loss_fn,
      entropy_loss_fn_args: { entropy_coef: golden.entropy_coef },
      loss_agg_mode: golden.loss_agg_mode,
    };
    const wanted = { ...expected, grad: expected.grad_logprob.data };
    const holds = (batch: RewardedBatch, result: ObjectiveResult) => {
      const whole = completed(batch, result);
      assertComputed(whole, wanted);
      assertArray(whole.gradEntropy, expected.grad_entropy.data, 'gradEntropy');
    };

    it(id, async () => {
      const objective = objectiveOf(algorithm, config);
      const batch = referenceBatch(inputs);
      const result = objective.computeSync(goldenBatch(inputs), { grad: true });
      holds(batch, result);
      assertSameObjective(await objective.compute(goldenBatch(inputs), { grad: true }), result);
      const cut = cutRows(batch);
      holds(cut, objective.computeSync(layOut(cut), { grad: true }));

      // What the algorithm says by itself needs not be said.
      const { policy_loss_fn: _p, kl_loss_fn: _k, entropy_loss_fn: _e, ...rest } = config;
      assertSameObjective(
        objectiveOf(algorithm, rest).computeSync(goldenBatch(inputs), { grad: true }),
        result,
      );
      const camelCase = Object.fromEntries(
        Object.entries(config).map(([key, value]) => [
          key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase()),
          value,
        ]),
      );
      assertSameObjective(
        objectiveOf(algorithm, camelCase).computeSync(goldenBatch(inputs), { grad: true }),
        result,
      );
      const verl: Record<string, string> = {
        logprob: 'log_prob',
        old_logprob: 'old_log_probs',
        ref_logprob: 'ref_log_prob',
        action_mask: 'response_mask',
      };
      const renamed = Object.entries(goldenBatch(inputs)).map(([key, value]) => [verl[key] ?? key, value]);
      assertSameObjective(
        objective.computeSync(Object.fromEntries(renamed) as Batch, { grad: true }),
        result,
      );
    });
  }
});

/** Of every part any, with arguments; `own`: the policy loss has a loss_agg_mode of its own. */
const partsOf = (policyNames: readonly string[]) =>
  fc
    .record({
      mode: fc.constantFrom(...AGGREGATIONS),
      own: fc.boolean(),
      policy: fc
        .constantFrom(...policyNames)
        .chain((name) => ARGUMENTS.policy[name]!.map((args) => ({ name, args }))),
      kl: fc
        .constantFrom(...Object.keys(ARGUMENTS.kl))
        .chain((name) => ARGUMENTS.kl[name]!.map((args) => ({ name, args }))),
      entropy: fc
        .constantFrom(...Object.keys(ARGUMENTS.entropy))
        .chain((name) => ARGUMENTS.entropy[name]!.map((args) => ({ name, args }))),
    })
    .map(({ mode, own, policy, kl, entropy }) => {
      const inMode = (args: Args) => ({ ...args, loss_agg_mode: mode });
      const named = 'loss_agg_mode' in policy.args;
      const parts: Parts = {
        policy: { name: policy.name, args: own || !named ? policy.args : inMode(policy.args) },
        kl: { name: kl.name, args: inMode(kl.args) },
        entropy: { name: entropy.name, args: inMode(entropy.args) },
      };
      return { parts, mode, config: configOf(parts, mode, own) };
    });

const EVERY_POLICY = Object.keys(ARGUMENTS.policy);
/** dpo's rows are pairs, of which none can be dropped by itself. */
const ROW_BY_ROW = EVERY_POLICY.filter((name) => name !== 'dpo');

describe('cross-validation: objectives', () => {
  it('has every function of the registries', () => {
    assert.deepEqual([...POLICY_LOSS_FN.names()].sort(), [...EVERY_POLICY].sort());
    assert.deepEqual([...KL_FN.names()].sort(), Object.keys(ARGUMENTS.kl).sort());
    assert.deepEqual([...ENTROPY_LOSS_FN.names()].sort(), Object.keys(ARGUMENTS.entropy).sort());
  });

  /** Policy − entropy + KL by the library's own functions, one after the other. */
  function oneByOne({ policy, kl, entropy }: Parts, mode: string, batch: Batch) {
    const lossAggMode = mode as 'token-mean';
    const { loss_agg_mode: _k, ...klArgs } = kl.args;
    const { loss_agg_mode: _e, ...entropyArgs } = entropy.args;
    return {
      policy: POLICY_LOSS_FN.create(policy.name, policy.args).computeSync(batch, { grad: true }),
      kl: KL_FN.create(kl.name, klArgs).calculateKlLossSync(batch, { lossAggMode, grad: true }),
      entropy: ENTROPY_LOSS_FN.create(entropy.name, entropyArgs).computeSync(batch, {
        lossAggMode,
        grad: true,
      }),
    };
  }

  function agrees(parts: Parts, mode: string, config: Args, batch: RewardedBatch, laid = layOut(batch)) {
    const result = objectiveOf('ppo', config).computeSync(laid, { grad: true });
    const expected = referenceObjective(parts, batch);
    assertObjective(batch, result, expected);

    const { policy, kl, entropy } = oneByOne(parts, mode, laid);
    const { magnitude } = expected;
    assertNumber(result.loss, policy.loss - entropy.loss + kl.loss, 'loss', magnitude.loss);
    const metrics = { ...policy.metrics, ...entropy.metrics, ...kl.metrics } as Record<string, number>;
    assert.deepEqual(Object.keys(result.metrics).sort(), Object.keys(metrics).sort());
    for (const [name, value] of Object.entries(metrics))
      assertNumber(result.metrics[name], value, name, magnitude.metrics[name]);
    const sum = Float64Array.from(policy.grad!, (g, i) => g + kl.grad![i]!);
    assertArray(result.grad!, sum, 'grad', undefined, expected.gradMagnitude);
    if (result.gradEntropy)
      assertArray(
        result.gradEntropy,
        entropy.grad!.map((g) => -g),
        'gradEntropy',
      );
  }

  for (const policy of EVERY_POLICY)
    it(`${policy} with every KL, every entropy loss, every aggregation`, () => {
      const [args] = fc.sample(ARGUMENTS.policy[policy]!, { seed: SEED, numRuns: 1 }) as [Args];
      let compared = 0;
      for (const kl of KL_FN.names())
        for (const entropy of ENTROPY_LOSS_FN.names())
          for (const mode of AGGREGATIONS) {
            const loss_agg_mode = mode;
            const named = 'loss_agg_mode' in args ? { ...args, loss_agg_mode } : args;
            const parts: Parts = {
              policy: { name: policy, args: named },
              kl: { name: kl, args: { kl_coef: 0.3, loss_agg_mode } },
              entropy: { name: entropy, args: { entropy_coef: 0.7, loss_agg_mode } },
            };
            const spec = {
              seed: SEED + compared,
              rows: 5,
              columns: 9,
              values: 'moderate',
              mask: 'random',
            } as const;
            const batch = makeBatch(fitting(policy, args, { ...spec, packed: compared % 2 === 1 }));
            if (objectiveStandsOnEdge(parts, batch)) continue;
            agrees(parts, mode, configOf(parts, mode, false), batch);
            compared++;
          }
      assert.ok(compared >= 60, `only ${compared} of 84 are off every threshold`);
    });

  it('drawn parts, arguments and batches', () => {
    fc.assert(
      fc.property(partsOf(EVERY_POLICY), rewardSpec, ({ parts, mode, config }, spec) => {
        const batch = makeBatch(fitting(parts.policy.name, parts.policy.args, spec));
        fc.pre(!objectiveStandsOnEdge(parts, batch));
        agrees(parts, mode, config, batch);
      }),
      { numRuns: 600, seed: SEED },
    );
  });

  it('columns of 16 bits', () => {
    fc.assert(
      fc.property(
        partsOf(EVERY_POLICY),
        rewardSpec,
        fc.constantFrom('float16', 'bfloat16'),
        ({ parts, mode, config }, spec, dtype) => {
          const { rounded, laid } = inHalf(
            makeBatch(fitting(parts.policy.name, parts.policy.args, spec)),
            dtype,
          );
          fc.pre(!objectiveStandsOnEdge(parts, rounded));
          agrees(parts, mode, config, rounded, laid);
        },
      ),
      { numRuns: 150, seed: SEED },
    );
  });

  it('compute gives what computeSync gives, gradients go where they are wanted, and none if none is', async () => {
    for (const { parts, config } of fc.sample(partsOf(EVERY_POLICY), { seed: SEED, numRuns: 40 })) {
      const spec = {
        seed: 5,
        rows: 6,
        columns: 40,
        values: 'moderate',
        mask: 'random',
        packed: false,
      } as const;
      const batch = layOut(makeBatch(spec));
      const objective = objectiveOf('ppo', config);
      const result = objective.computeSync(batch, { grad: true });
      assertSameObjective(await objective.compute(batch, { grad: true }), result);

      for (const none of [
        objective.computeSync(batch),
        objective.computeSync(batch, { grad: false }),
        await objective.compute(batch),
      ]) {
        assert.ok(!none.grad && !none.gradEntropy);
        assertNumber(none.loss, result.loss, 'loss');
        assert.deepEqual(Object.keys(none.metrics), Object.keys(result.metrics));
        for (const [name, value] of Object.entries(result.metrics))
          assertNumber(none.metrics[name], value, name);
      }

      const grad = new Float32Array(240).fill(7);
      const gradEntropy = new Float32Array(240).fill(7);
      const into = objective.computeSync(batch, { grad, gradEntropy });
      assert.equal(into.grad, grad);
      assert.equal(into.gradEntropy, gradEntropy);
      assertSameArray(grad, result.grad!, 'grad');
      assertSameArray(gradEntropy, result.gradEntropy ?? new Float32Array(240), 'gradEntropy');
      assert.equal(parts.policy.name, config.policy_loss_fn);
    }
  });

  it('nothing under the mask is seen', () => {
    for (const { parts, config } of fc.sample(partsOf(EVERY_POLICY), { seed: SEED + 1, numRuns: 60 })) {
      // ppo's masked_tokens counts advantages under the mask, as Trinity does.
      if (parts.policy.args.enable_sequence_masking) continue;
      const spec = {
        seed: 6,
        rows: 6,
        columns: 17,
        values: 'moderate',
        mask: 'random',
        packed: false,
      } as const;
      const batch = makeBatch(spec);
      const objective = objectiveOf('ppo', config);
      const expected = objective.computeSync(layOut(batch), { grad: true });
      for (const value of [Number.NaN, Number.POSITIVE_INFINITY, -1e30]) {
        const poisoned = { ...batch };
        for (const key of ['logprob', 'oldLogprob', 'refLogprob', 'advantages', 'entropy'] as const)
          poisoned[key] = Array.from(batch[key]!, (x, i) => (batch.actionMask[i] ? x : value));
        assertSameObjective(objective.computeSync(layOut(poisoned), { grad: true }), expected);
      }
      for (const grad of [expected.grad!, expected.gradEntropy ?? []])
        grad.forEach((g, i) => {
          if (!batch.actionMask[i]) assert.ok(Object.is(g, 0), `${g} at ${i}`);
        });
    }
  });

  it('no rows, no columns, no tokens', async () => {
    for (const name of Object.keys(CLASSES))
      for (const [rows, layout] of [
        [0, { shape: [0, 5] as const }],
        [2, { shape: [2, 0] as const }],
        [0, { cuSeqlens: Int32Array.of(0) }],
        [2, { cuSeqlens: Int32Array.of(0, 0, 0) }],
      ] as const) {
        const column = new Float32Array(0);
        const batch = {
          ...layout,
          logprob: column,
          oldLogprob: column,
          refLogprob: column,
          entropy: column,
          actionMask: new Uint8Array(0),
          expertMask: new Uint8Array(rows),
          step: 1,
          rewards: new Float64Array(rows),
          groupIds: new Int32Array(rows),
          runIds: new Int32Array(rows),
          values: column,
          teacherLogprob: column,
        };
        const objective = objectiveOf(name);
        const result = objective.computeSync(batch, { grad: true });
        for (const [key, value] of Object.entries({ loss: result.loss, ...result.metrics }))
          assert.ok(Number.isFinite(value), `${name}: ${key} is ${value}`);
        assert.equal(result.grad!.length, 0);
        assertSameObjective(await objective.compute(batch, { grad: true }), result);
      }
  });
});

const spec: RewardSpec = {
  seed: 19,
  rows: 8,
  columns: 21,
  values: 'moderate',
  mask: 'random',
  packed: false,
  groups: 'some',
  rewards: 'normal',
  perToken: false,
};

/** As trainers hand it over: with what advantages are made of, and without advantages. */
function unadvised(drawn: RewardSpec): RewardedBatch {
  const { advantages: _, ...batch } = makeRewarded(drawn);
  return batch;
}

describe('objectives that make advantages', () => {
  const COEFFICIENTS = { kl_loss_fn_args: { kl_coef: 0.2 }, entropy_loss_fn_args: { entropy_coef: 0.3 } };
  /** Every algorithm that has an advantage function. */
  const ADVISED = Object.keys(CLASSES).filter((name) => DEFAULTS[name]![1]);

  for (const name of ADVISED)
    for (const packed of [false, true])
      it(`${name}, ${packed ? 'packed' : 'padded'}: those of its function, computed first`, async () => {
        const advantageFn = DEFAULTS[name]![1]!;
        const samples = fc.sample(ADVANTAGE_ARGUMENTS[advantageFn]!, { seed: SEED, numRuns: 6 });
        for (const [i, args] of samples.entries()) {
          // Rows dropped: below.
          if ('std_threshold' in args) args.std_threshold = null;
          const batch = layOut(unadvised({ ...spec, packed, seed: i, perToken: i % 2 === 1 }));
          const config = { ...COEFFICIENTS, loss_agg_mode: 'seq-mean-token-mean' };
          const objective = objectiveOf(name, { ...config, advantage_fn_args: args });
          const result = objective.computeSync(batch, { grad: true });
          assertSameObjective(await objective.compute(batch, { grad: true }), result);

          const { advantages, metrics } = ADVANTAGE_FN.create(advantageFn, args).computeSync(batch);
          const given = objectiveOf(name, config).computeSync({ ...batch, advantages }, { grad: true });
          assertNumber(result.loss, given.loss, 'loss');
          assert.deepEqual(
            Object.keys(result.metrics).sort(),
            Object.keys({ ...metrics, ...given.metrics }).sort(),
          );
          for (const [key, value] of Object.entries({ ...metrics, ...given.metrics }))
            assertNumber(result.metrics[key], value, key);
          assertArray(result.grad!, given.grad!, 'grad');
          assertArray(result.gradEntropy ?? [], given.gradEntropy ?? [], 'gradEntropy');
        }
      });

  it("ppo's masked_tokens counts as it does where the advantages are given: under the mask they are 0", () => {
    const policy_loss_fn_args = { enable_sequence_masking: true, delta_sequence_masking: -10 };
    for (const [name, advantageFn] of [
      ['grpo', 'grpo'],
      ['ppo', 'ppo'],
      ['on_policy_distill', 'on_policy_distill'],
    ] as const) {
      const batch = layOut(unadvised(spec));
      const objective = objectiveOf(name, { policy_loss_fn_args });
      const { advantages } = ADVANTAGE_FN.create(advantageFn).computeSync(batch);
      const given = objective.computeSync({ ...batch, advantages });
      assert.ok(given.metrics['seq_mask/masked_tokens']! > 0);
      assertNumber(
        objective.computeSync(batch).metrics['seq_mask/masked_tokens'],
        given.metrics['seq_mask/masked_tokens']!,
        name,
      );
    }
  });

  it('advantages that the batch has are taken as they are', () => {
    const batch = makeRewarded(spec);
    const objective = objectiveOf('grpo', { advantage_fn_args: { std_threshold: 1e9 } });
    const given = objective.computeSync(layOut(batch), { grad: true });
    const { rewards: _r, groupIds: _g, ...bare } = layOut(batch);
    assertSameObjective(objective.computeSync(bare as Batch, { grad: true }), given);
    assert.ok(!Object.keys(given.metrics).some((key) => /group_advantages|filtered/.test(key)));
  });

  it('another advantage function, by its name', () => {
    const batch = layOut(unadvised(spec));
    const objective = objectiveOf('grpo', {
      advantage_fn: 'opmd',
      advantage_fn_args: { opmd_baseline: 'logavgexp' },
    });
    assertSameObjective(
      objective.computeSync(batch, { grad: true }),
      objectiveOf('grpo', {
        advantageFn: 'opmd',
        advantageFnArgs: { opmdBaseline: 'logavgexp' },
      }).computeSync(batch, {
        grad: true,
      }),
    );
    const { metrics } = objective.computeSync(batch);
    assert.ok('group_advantages/group_baseline/mean' in metrics);
  });

  it('without what they are made of, the error names it', async () => {
    const batch = layOut(unadvised(spec));
    for (const [name, key, says] of [
      ['grpo', 'rewards', /rewards/],
      ['grpo', 'groupIds', /group_?ids/i],
      ['multi_step_grpo', 'runIds', /run_?ids/i],
      ['ppo', 'values', /values/],
      ['jsd', 'teacherLogprob', /teacher_?logprob/i],
    ] as const) {
      const objective = objectiveOf(name);
      assert.throws(() => objective.computeSync(without(batch, key)), isLossError('ERR_MISSING_INPUT', says));
      const promise = objective.compute(without(batch, key));
      await assert.rejects(promise, isLossError('ERR_MISSING_INPUT', says));
    }
    const rewards = Array.from(batch.rewards as Float64Array);
    rewards[2] = Number.NaN;
    await assert.rejects(
      objectiveOf('grpo').compute({ ...batch, rewards }),
      isLossError('ERR_INVALID_INPUT', /rewards\[2\]/),
    );
    // An algorithm with no advantage function has none to make.
    const raft = objectiveOf('raft', { policy_loss_fn: 'ppo' });
    assert.throws(() => raft.computeSync(batch), isLossError('ERR_MISSING_INPUT', /advantages/));
  });

  describe('with rows dropped and copied', () => {
    const dropping = fc.constantFrom(
      ...[
        { advantage_fn: 'grpo', advantage_fn_args: { std_threshold: 0.5 } },
        { advantage_fn: 'grpo', advantage_fn_args: { std_threshold: 0.5, duplicate_experiences: true } },
        {
          advantage_fn: 'grpo',
          advantage_fn_args: { std_threshold: 0.5, duplicate_experiences: true, seed: 4 },
        },
        { advantage_fn: 'step_wise_grpo', advantage_fn_args: { std_threshold: 0.5, enable_step_norm: true } },
        { advantage_fn: 'step_wise_grpo', advantage_fn_args: { std_threshold: 0, std_cal_level: 'batch' } },
        { advantage_fn: 'rec', advantage_fn_args: { drop: 'balance' } },
      ].map(({ advantage_fn, advantage_fn_args }): { advantage_fn: string; advantage_fn_args: Args } => ({
        advantage_fn,
        advantage_fn_args,
      })),
    );

    it('loss, metrics, gradients and counts are those of the rows that count, each as often as it does', () => {
      const seen = { dropped: 0, copied: 0, none: 0 };
      fc.assert(
        fc.property(
          partsOf(ROW_BY_ROW),
          dropping,
          rewardSpec,
          fc.nat({ max: 1000 }),
          ({ parts, config }, { advantage_fn, advantage_fn_args }, drawn, seed) => {
            const bare = unadvised({
              ...drawn,
              rewards: drawn.rewards === 'binary' ? 'binary' : 'normal',
              groups: drawn.seed % 8 ? 'some' : drawn.groups,
            });
            const laid = layOut(bare);
            const fn = ADVANTAGE_FN.create(advantage_fn, advantage_fn_args);
            // A seed of the call where none is the function's own.
            const options = 'seed' in advantage_fn_args ? {} : { seed };
            const { advantages, keptRows, copies, metrics } = fn.computeSync(laid, options);
            const times = copies ?? keptRows;
            const batch = { ...bare, advantages: bare.rowLengths ? unpack(bare, advantages) : advantages };
            fc.pre(!objectiveStandsOnEdge(parts, batch));
            if (times.some((n) => n === 0)) seen.dropped++;
            if (times.some((n) => n > 1)) seen.copied++;
            if (times.every((n) => n === 0)) seen.none++;

            const objective = objectiveOf('ppo', { ...config, advantage_fn, advantage_fn_args });
            const result = objective.computeSync(laid, { grad: true, ...options });
            const expected = referenceObjective(parts, batch, times);
            assertObjective(
              bare,
              {
                ...result,
                metrics: Object.fromEntries(
                  Object.entries(result.metrics).filter(([key]) => !(key in metrics)),
                ),
              },
              expected,
            );
            for (const [key, value] of Object.entries(metrics)) assert.equal(result.metrics[key], value, key);

            // With a normalizer of itself a batch is its own only part.
            const counted = takeRows(
              bare,
              Array.from({ length: bare.rows }, (_, b) => new Array<number>(times[b]!).fill(b)).flat(),
            );
            const tokens = Array.from(counted.actionMask).filter(Boolean).length;
            const normalizer = {
              tokens,
              rows: counted.rows,
              columns: bare.columns,
              expert: expertCounts(counted),
            };
            const part = objective.computeSync(laid, { grad: true, normalizer, ...options });
            assertNumber(part.loss, result.loss, 'loss', expected.magnitude.loss);
            assertArray(part.grad!, result.grad!, 'grad', undefined, expected.gradMagnitude);
          },
        ),
        { numRuns: 300, seed: SEED },
      );
      assert.ok(seen.dropped > 60 && seen.copied > 20 && seen.none > 3, JSON.stringify(seen));
    });

    function expertCounts(batch: RewardedBatch) {
      const rows = Array.from({ length: batch.rows }, (_, b) => b).filter((b) => batch.expertMask![b]);
      const { actionMask } = takeRows(batch, rows);
      return { tokens: Array.from(actionMask).filter(Boolean).length, rows: rows.length };
    }

    it('count says how much counts', async () => {
      const bare = unadvised({ ...spec, rows: 30, seed: 3 });
      const laid = layOut(bare);
      for (const advantage_fn_args of [
        {},
        { std_threshold: 0.9 },
        { std_threshold: 0.9, duplicate_experiences: true },
        { std_threshold: 0.9, duplicate_experiences: true, seed: 11 },
        { std_threshold: 1e9 },
      ])
        for (const name of ['grpo', 'mix']) {
          const { copies, keptRows } = ADVANTAGE_FN.create('grpo', advantage_fn_args).computeSync(laid);
          const times = copies ?? keptRows;
          const rows = Array.from({ length: 30 }, (_, b) => new Array<number>(times[b]!).fill(b)).flat();
          const counted = takeRows(bare, rows);
          const expected = {
            tokens: Array.from(counted.actionMask).filter(Boolean).length,
            rows: rows.length,
            columns: bare.columns,
            ...(name === 'mix' ? { expert: expertCounts(counted) } : {}),
          };
          const objective = objectiveOf(name, { advantage_fn_args });
          assert.deepEqual(objective.countSync(laid), expected);
          assert.deepEqual(await objective.count(laid), expected);
          // A seed of the call takes the place of the function's own, as in compute.
          const { seed = 0, ...unseeded } = advantage_fn_args as { seed?: number };
          const other = objectiveOf(name, { advantage_fn_args: { ...unseeded, seed: 77 } });
          assert.deepEqual(other.countSync(laid, { seed }), expected);
          assert.deepEqual(await other.count(laid, { seed }), expected);
        }
    });
  });
});

describe('objectives with a KL penalty in the reward', () => {
  const ESTIMATORS = KL_FN.names().filter((name) => name !== 'none');
  const ADVISED = ['ppo', 'reinforceplusplus', 'rloo'];

  for (const name of ADVISED)
    for (const packed of [false, true])
      it(`${name}, ${packed ? 'packed' : 'padded'}: is that of token_level_rewards with the penalty`, async () => {
        for (const estimator of ESTIMATORS)
          for (const scored of [true, false]) {
            const bare = unadvised({ ...spec, packed, perToken: true });
            const { tokenLevelRewards, ...unscored } = bare;
            const scores = scored ? tokenLevelRewards! : tokenRewards(unscored);
            const laidOut = layOut(bare);
            const { tokenLevelRewards: laidScores, ...laid } = laidOut;
            const given = (scored ? { ...laid, token_level_scores: laidScores } : laid) as Batch;
            const config = { kl_penalty_fn: estimator, kl_penalty_fn_args: { kl_coef: 0.4 } };
            const objective = objectiveOf(name, config);
            assert.ok(objective.klPenaltyFn instanceof KL_FN.get(estimator));
            const result = objective.computeSync(given, { grad: true });
            assertSameObjective(await objective.compute(given, { grad: true }), result);
            const camelCase = { klPenaltyFn: estimator, klPenaltyFnArgs: { klCoef: 0.4 } };
            assertSameObjective(objectiveOf(name, camelCase).computeSync(given, { grad: true }), result);

            const penalised = penalisedRewards(estimator, 0.4, scores, bare);
            assertNumber(result.metrics['kl_penalty/kl'], penalised.kl, 'kl_penalty/kl');
            assert.equal(result.metrics['kl_penalty/kl_coef'], 0.4);
            const { advantages } = referenceAdvantages[DEFAULTS[name]![1]!]!(
              {},
              { ...bare, tokenLevelRewards: penalised.tokenLevelRewards },
            );
            const parts: Parts = {
              policy: { name: 'ppo', args: { clip_range: 0.2 } },
              kl: { name: 'k2', args: {} },
              entropy: { name: 'default', args: {} },
            };
            const { 'kl_penalty/kl': _kl, 'kl_penalty/kl_coef': _coef, ...metrics } = result.metrics;
            assertObjective(bare, { ...result, metrics }, referenceObjective(parts, { ...bare, advantages }));
          }
      });

  it('an adaptive coefficient follows the divergence, call by call', () => {
    const args = { kl_coef: 0.4, adaptive: true, target_kl: 0.001, horizon: 40 };
    const objective = objectiveOf('reinforceplusplus', { kl_penalty_fn: 'k2', kl_penalty_fn_args: args });
    const alone = KL_FN.create('k2', args);
    const bare = unadvised(spec);
    const batch = layOut(bare);
    const token_level_scores = Float32Array.from(tokenRewards(bare));
    for (let call = 0; call < 3; call++) {
      const { metrics } = objective.computeSync(batch);
      const expected = alone.applyKlPenaltyToRewardSync({ ...batch, token_level_scores });
      assert.equal(metrics['kl_penalty/kl'], expected.metrics.kl);
      assert.equal(metrics['kl_penalty/kl_coef'], expected.metrics.kl_coef);
      assert.equal(objective.klPenaltyFn.klCoef, alone.klCoef);
    }
    assert.notEqual(alone.klCoef, 0.4);
  });

  it('none takes nothing and says nothing', () => {
    const batch = layOut(unadvised(spec));
    const { metrics } = objectiveOf('reinforceplusplus', { kl_penalty_fn: 'none' }).computeSync(batch);
    assert.ok(!Object.keys(metrics).some((key) => key.startsWith('kl_penalty')));
  });
});

describe('terms that count for nothing', () => {
  const batch = layOut(makeRewarded(spec));
  const grpo = (kl_coef: number, entropy_coef: number) =>
    objectiveOf('grpo', { kl_loss_fn_args: { kl_coef }, entropy_loss_fn_args: { entropy_coef } });
  const policyAlone = POLICY_LOSS_FN.create('ppo').computeSync(batch, { grad: true });

  it('are left out where their column is missing', async () => {
    for (const keys of [['entropy'], ['refLogprob'], ['entropy', 'refLogprob']]) {
      const given = without(batch, ...keys);
      const objective = grpo(0, 0);
      const result = objective.computeSync(given, { grad: true });
      assertNumber(result.loss, policyAlone.loss, 'loss');
      assertArray(result.grad!, policyAlone.grad!, 'grad');
      assert.ok((result.gradEntropy ?? []).every((g) => g === 0));
      const metrics = Object.keys(result.metrics);
      assert.equal(metrics.includes('entropy_loss'), !keys.includes('entropy'));
      assert.equal(metrics.includes('kl_loss'), !keys.includes('refLogprob'));
      assertSameObjective(await objective.compute(given, { grad: true }), result);
    }
  });

  it('tell their metrics where their column is there', () => {
    const { loss, metrics } = grpo(0, 0).computeSync(batch);
    assertNumber(loss, policyAlone.loss, 'loss');
    const lossAggMode = 'token-mean';
    const entropy = ENTROPY_LOSS_FN.create('default').computeSync(batch, { lossAggMode });
    const kl = KL_FN.create('k2').calculateKlLossSync(batch, { lossAggMode });
    assertNumber(metrics.entropy_loss, entropy.metrics.entropy_loss!, 'entropy_loss');
    assertNumber(metrics.kl_loss, kl.metrics.kl_loss!, 'kl_loss');
    assert.equal(metrics.kl_coef, 0);
  });

  it('and those that count are missed', async () => {
    for (const [objective, key, says] of [
      [grpo(0, 0.1), 'entropy', /entropy/],
      [grpo(0.1, 0), 'refLogprob', /ref_?log_?prob/i],
      [objectiveOf('mix', { entropy_loss_fn_args: { entropy_coef: 0.1 } }), 'entropy', /entropy/],
    ] as const) {
      assert.throws(() => objective.computeSync(without(batch, key)), isLossError('ERR_MISSING_INPUT', says));
      await assert.rejects(objective.compute(without(batch, key)), isLossError('ERR_MISSING_INPUT', says));
    }
  });

  it('mix has an entropy loss and no KL', () => {
    const { metrics } = objectiveOf('mix').computeSync(without(batch, 'refLogprob'));
    assert.ok('entropy_loss' in metrics);
    assert.ok(!('kl_loss' in metrics));
  });
});

describe('loss_agg_mode', () => {
  const batch = layOut(makeRewarded({ ...spec, values: 'moderate' }));
  const lossAggMode = 'seq-mean-token-sum';
  const policyLoss = (name: string, args: Args) => POLICY_LOSS_FN.create(name, args).computeSync(batch).loss;

  it('reaches the policy loss, unless its own arguments name one', () => {
    for (const config of [{ loss_agg_mode: lossAggMode }, { lossAggMode }]) {
      const { metrics } = objectiveOf('grpo', config).computeSync(batch);
      assertNumber(metrics.pg_loss, policyLoss('ppo', { loss_agg_mode: lossAggMode }), 'pg_loss');
      const kl = KL_FN.create('k2').calculateKlLossSync(batch, { lossAggMode });
      assertNumber(metrics.kl_loss, kl.metrics.kl_loss!, 'kl_loss');

      const own = { ...config, policy_loss_fn_args: { loss_agg_mode: 'token-mean' } };
      const named = objectiveOf('grpo', own).computeSync(batch).metrics;
      assertNumber(named.pg_loss, policyLoss('ppo', { loss_agg_mode: 'token-mean' }), 'pg_loss');
      assertNumber(named.kl_loss, kl.metrics.kl_loss!, 'kl_loss');
    }
  });

  it("is the policy loss's own default where nobody names one", () => {
    const { metrics } = objectiveOf('gspo').computeSync(batch);
    assertNumber(metrics.pg_loss, policyLoss('gspo', {}), 'pg_loss');
    const kl = KL_FN.create('k2').calculateKlLossSync(batch, { lossAggMode: 'token-mean' });
    assertNumber(metrics.kl_loss, kl.metrics.kl_loss!, 'kl_loss');
  });

  it('is no option of the losses that have none', () => {
    for (const name of ['rec', 'dpo']) {
      const config = { loss_agg_mode: lossAggMode, policy_loss_fn: name };
      assert.ok(Number.isFinite(objectiveOf('grpo', config).computeSync(batch).loss));
    }
  });
});

describe('objectives refused', () => {
  it('keys that are none, all of them named', () => {
    assert.throws(
      () => objectiveOf('grpo', { clip_range: 0.2, kl_coef: 0.1, policy_loss_fn: 'ppo' }),
      isLossError('ERR_INVALID_OPTION', /\bclip_range\b/, /\bkl_coef\b/),
    );
    assert.throws(
      () => objectiveOf('grpo', { policy_los_fn: 'ppo' }),
      isLossError('ERR_INVALID_OPTION', /policy_los_fn/),
    );
  });

  it('functions and arguments that are none', () => {
    for (const [config, code, says] of [
      [{ policy_loss_fn: 'gsspo' }, 'ERR_UNKNOWN_NAME', /gsspo/],
      [{ advantage_fn: 'grop' }, 'ERR_UNKNOWN_NAME', /grop/],
      [{ kl_loss_fn: 'k9' }, 'ERR_UNKNOWN_NAME', /k9/],
      [{ kl_penalty_fn: 'k9' }, 'ERR_UNKNOWN_NAME', /k9/],
      [{ entropy_loss_fn: 'max' }, 'ERR_UNKNOWN_NAME', /max/],
      [{ backend: 'verll' }, 'ERR_UNKNOWN_NAME', /verll/],
      [{ loss_agg_mode: 'token-men' }, 'ERR_INVALID_OPTION', /token-men/],
      [{ policy_loss_fn_args: { clip_rage: 0.2 } }, 'ERR_INVALID_OPTION', /clip_?rage/i],
      [{ policy_loss_fn_args: { clip_range: '0.2' } }, 'ERR_INVALID_OPTION', /clip_?range/i],
      [{ policy_loss_fn_args: 0.2 }, 'ERR_INVALID_OPTION', /policy_?loss_?fn_?args/i],
      [{ advantage_fn_args: { std_cal_level: 'task' } }, 'ERR_INVALID_OPTION', /std_?cal_?level/i],
      [{ advantage_fn_args: [] }, 'ERR_INVALID_OPTION', /advantage_?fn_?args/i],
      [{ kl_loss_fn_args: { kl_coef: 'low' } }, 'ERR_INVALID_OPTION', /kl_?coef/i],
      [{ kl_loss_fn_args: { adaptive: true } }, 'ERR_INVALID_OPTION', /target_?kl/i],
      [{ entropy_loss_fn_args: { entropy_coef: Number.NaN } }, 'ERR_INVALID_OPTION', /entropy_?coef/i],
    ] as [Args, LossErrorCode, RegExp][])
      assert.throws(() => objectiveOf('grpo', config), isLossError(code, says), JSON.stringify(config));
    for (const config of [5, 'grpo', []])
      assert.throws(
        () => objectiveOf('grpo', config as unknown as Args),
        isLossError('ERR_INVALID_OPTION'),
        JSON.stringify(config),
      );
  });

  it('batches and gradient arrays that are none', async () => {
    const batch = layOut(makeRewarded(spec));
    const objective = objectiveOf('grpo');
    for (const [given, options, code, says] of [
      [7, {}, 'ERR_INVALID_INPUT', /batch/i],
      [without(batch, 'logprob'), {}, 'ERR_MISSING_INPUT', /log_?prob/i],
      [without(batch, 'actionMask'), {}, 'ERR_MISSING_INPUT', /mask/i],
      [batch, { grad: new Float32Array(3) }, 'ERR_SHAPE_MISMATCH', /grad/],
      [batch, { gradEntropy: new Float32Array(3) }, 'ERR_SHAPE_MISMATCH', /gradEntropy/],
      [
        batch,
        { gradEntropy: new Float64Array(168) as unknown as Float32Array },
        'ERR_INVALID_INPUT',
        /gradEntropy/,
      ],
    ] as [Batch, object, LossErrorCode, RegExp][]) {
      assert.throws(() => objective.computeSync(given, options), isLossError(code, says));
      const promise = objective.compute(given, options);
      await assert.rejects(promise, isLossError(code, says));
    }
    await assert.rejects(
      objective.compute(batch, { signal: AbortSignal.abort() }),
      isLossError('ERR_ABORTED'),
    );
  });
});

describe('fromTrinityConfig', () => {
  const SECTION = `
  algorithm_type: grpo
  repeat_times: 8
  optimizer: { lr: 1e-6 }
  sample_strategy: warmup
  sample_strategy_args: { expert_data_ratio: 0.1 }
  advantage_fn: grpo
  advantage_fn_args: { epsilon: 1e-3, std_threshold: 0.01 }
  kl_penalty_fn: none
  kl_penalty_fn_args: null
  policy_loss_fn: gspo
  policy_loss_fn_args:
    clip_range_low: 0.02
    clip_range_high: 0.03
  kl_loss_fn: low_var_kl
  kl_loss_fn_args: { kl_coef: 0.01 }
  entropy_loss_fn: default
  entropy_loss_fn_args: { entropy_coef: 0.02 }
  loss_agg_mode: seq-mean-token-sum
`;
  const CONFIG = {
    advantage_fn: 'grpo',
    advantage_fn_args: { epsilon: 1e-3, std_threshold: 0.01 },
    policy_loss_fn: 'gspo',
    policy_loss_fn_args: { clip_range_low: 0.02, clip_range_high: 0.03 },
    kl_loss_fn: 'low_var_kl',
    kl_loss_fn_args: { kl_coef: 0.01 },
    entropy_loss_fn: 'default',
    entropy_loss_fn_args: { entropy_coef: 0.02 },
    loss_agg_mode: 'seq-mean-token-sum',
  };
  const batch = layOut(unadvised(spec));
  const same = (actual: Objective, expected: Objective) => {
    assert.equal(actual.algorithm, expected.algorithm);
    assertSameObjective(
      actual.computeSync(batch, { grad: true }),
      expected.computeSync(batch, { grad: true }),
    );
  };

  it('takes a whole file, its section alone, and either as an object', () => {
    const wholeFile = `project: demo\nname: run\nmode: both\ncheckpoint_root_dir: /somewhere\nalgorithm:${SECTION}model:\n  model_path: m\nbuffer:\n  batch_size: 8\n`;
    const sectionAlone = SECTION.replace(/^ {2}/gm, '');
    const object = {
      algorithm_type: 'grpo',
      repeat_times: 8,
      optimizer: { lr: 1e-6 },
      sample_strategy: 'warmup',
      sample_strategy_args: { expert_data_ratio: 0.1 },
      kl_penalty_fn: 'none',
      kl_penalty_fn_args: null,
      ...CONFIG,
    };
    const expected = objectiveOf('grpo', CONFIG);
    assert.notEqual(
      expected.computeSync(batch).loss,
      objectiveOf('grpo').computeSync(batch).loss,
      'the configuration makes no difference',
    );
    for (const config of [wholeFile, sectionAlone, object, { mode: 'both', algorithm: object, model: {} }])
      same(fromTrinityConfig(config), expected);
  });

  it('each key does what it does in objective()', () => {
    const dense = layOut(unadvised({ ...spec, perToken: true }));
    const { tokenLevelRewards, ...rest } = dense;
    const scored = { ...rest, token_level_scores: tokenLevelRewards } as Batch;
    const plain = fromTrinityConfig({ algorithm_type: 'ppo' }).computeSync(scored, { grad: true });
    for (const change of [
      { policy_loss_fn: 'opmd' },
      { policy_loss_fn_args: { clip_range: 0.01 } },
      { advantage_fn: 'reinforceplusplus' },
      { advantage_fn_args: { gamma: 0.5 } },
      { kl_penalty_fn: 'k1' },
      { kl_penalty_fn: 'k1', kl_penalty_fn_args: { kl_coef: 3 } },
      { kl_loss_fn: 'k1' },
      { kl_loss_fn_args: { kl_coef: 3 } },
      { entropy_loss_fn: 'none' },
      { entropy_loss_fn_args: { entropy_coef: 3 } },
      { loss_agg_mode: 'seq-mean-token-sum' },
    ]) {
      const result = fromTrinityConfig({ algorithm_type: 'ppo', ...change }).computeSync(scored, {
        grad: true,
      });
      assertSameObjective(result, objectiveOf('ppo', change).computeSync(scored, { grad: true }));
      assert.notDeepEqual(result, plain, JSON.stringify(change));
    }
  });

  it('every algorithm by its type, ppo where none is named', () => {
    for (const name of Object.keys(CLASSES)) {
      const config = { algorithm_type: name, kl_loss_fn: 'k2', repeat_times: 2 };
      assert.equal(fromTrinityConfig(config).algorithm, name);
      assert.equal(
        fromTrinityConfig(`algorithm:\n  algorithm_type: ${name}\n  kl_loss_fn: k3\n`).algorithm,
        name,
      );
    }
    assert.equal(fromTrinityConfig({}).algorithm, 'ppo');
    assert.equal(fromTrinityConfig('algorithm:\n  repeat_times: 2\n').algorithm, 'ppo');
  });

  it('null counts as not given', () => {
    const keys = [
      'repeat_times',
      'optimizer',
      'sample_strategy',
      'sample_strategy_args',
      'advantage_fn',
      'advantage_fn_args',
      'kl_penalty_fn',
      'kl_penalty_fn_args',
      'policy_loss_fn',
      'policy_loss_fn_args',
      'kl_loss_fn',
      'kl_loss_fn_args',
      'entropy_loss_fn',
      'entropy_loss_fn_args',
      'loss_agg_mode',
    ];
    for (const name of ['grpo', 'opmd', 'multi_step_grpo', 'asymre']) {
      const config = Object.fromEntries(keys.map((key) => [key, null]));
      same(fromTrinityConfig({ algorithm_type: name, ...config }), objectiveOf(name));
      const yaml = [
        `algorithm_type: ${name}`,
        ...keys.map((key, i) => `${key}:${['', ' null', ' ~'][i % 3]}`),
      ];
      same(fromTrinityConfig(yaml.join('\n')), objectiveOf(name));
    }
    const advantage_fn_args = { std_threshold: null, epsilon: null };
    same(fromTrinityConfig({ algorithm_type: 'grpo', advantage_fn_args }), objectiveOf('grpo'));
    assert.equal(fromTrinityConfig({ algorithm_type: null }).algorithm, 'ppo');
  });

  it('takes a backend', () => {
    const objective = fromTrinityConfig(`algorithm:${SECTION}`, { backend: 'tinker' });
    assert.equal(objective.policyLossFn.backend, 'tinker');
    assert.equal(objective.klLossFn.backend, 'tinker');
    assert.equal(objective.entropyLossFn.backend, 'tinker');
    assert.equal(objective.advantageFn!.backend, 'tinker');
    assert.equal(fromTrinityConfig(`algorithm:${SECTION}`).policyLossFn.backend, 'verl');
    assert.throws(
      () => fromTrinityConfig({}, { backend: 'verll' }),
      isLossError('ERR_UNKNOWN_NAME', /verll/),
    );
  });

  it('names every key that it does not know', () => {
    const unknown = { clip_range: 0.2, gamma: 1, lossAggMod: 'token-mean' };
    const says = Object.keys(unknown).map((key) => new RegExp(`\\b${key}\\b`));
    for (const config of [
      { algorithm_type: 'grpo', ...unknown },
      { mode: 'both', algorithm: unknown },
    ])
      assert.throws(() => fromTrinityConfig(config), isLossError('ERR_INVALID_OPTION', ...says));
    assert.throws(
      () =>
        fromTrinityConfig(
          'algorithm:\n  algorithm_type: grpo\n  clip_range: 0.2\n  gamma: 1\n  lossAggMod: x\n',
        ),
      isLossError('ERR_INVALID_OPTION', ...says),
    );
  });

  it('refuses text that is no YAML, and values of other types', () => {
    const eitherCode: LossErrorCode[] = ['ERR_INVALID_OPTION', 'ERR_INVALID_INPUT'];
    for (const text of ['algorithm: [unclosed', 'a: b: c', '\tx: 1', '- 1\n- 2', 'grpo'])
      assert.throws(() => fromTrinityConfig(text), isLossError(eitherCode), text);
    for (const config of [5, true, [], null, undefined])
      assert.throws(
        () => fromTrinityConfig(config as unknown as string),
        isLossError(eitherCode),
        `${config}`,
      );
    const named: LossErrorCode[] = ['ERR_INVALID_OPTION', 'ERR_UNKNOWN_NAME'];
    for (const [section, says] of [
      ['grpo', /algorithm/],
      [[], /algorithm/],
      [{ algorithm_type: 5 }, /5/],
      [{ algorithm_type: 'grop' }, /grop/],
      [{ policy_loss_fn: 5 }, /5/],
      [{ policy_loss_fn: 'gsspo' }, /gsspo/],
      [{ policy_loss_fn_args: 'clip' }, /policy_loss_fn_args/],
      [{ advantage_fn: ['grpo'] }, /advantage_fn|array/],
      [{ kl_loss_fn_args: [0.1] }, /kl_loss_fn_args/],
      [{ kl_loss_fn_args: { kl_coef: 'low' } }, /kl_?coef/i],
      [{ entropy_loss_fn_args: 0.1 }, /entropy_loss_fn_args/],
      [{ loss_agg_mode: 3 }, /3/],
      [{ loss_agg_mode: 'token-men' }, /token-men/],
    ] as [unknown, RegExp][]) {
      assert.throws(
        () => fromTrinityConfig({ algorithm: section }),
        isLossError(named, says),
        JSON.stringify(section),
      );
    }
  });
});

describe('real rollouts through every algorithm', () => {
  interface Rollout {
    task_id: number;
    run_id: number;
    reward: number;
    logprobs: number[];
    old_logprobs: number[];
    ref_logprobs: number[];
    entropy: number[];
  }
  const rollouts: Rollout[] = readFileSync(new URL('../examples/rollouts.jsonl', import.meta.url), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  const cuSeqlens = new Int32Array(rollouts.length + 1);
  rollouts.forEach(({ logprobs }, b) => {
    cuSeqlens[b + 1] = cuSeqlens[b]! + logprobs.length;
  });
  const column = (key: 'logprobs' | 'old_logprobs' | 'ref_logprobs' | 'entropy') =>
    Float32Array.from(rollouts.flatMap((rollout) => rollout[key]));
  const batch = {
    cuSeqlens,
    logprob: column('logprobs'),
    oldLogprob: column('old_logprobs'),
    refLogprob: column('ref_logprobs'),
    entropy: column('entropy'),
    actionMask: new Uint8Array(cuSeqlens.at(-1)!).fill(1),
    rewards: rollouts.map((rollout) => rollout.reward),
    groupIds: rollouts.map((rollout) => rollout.task_id),
    runIds: rollouts.map((rollout) => rollout.run_id),
  };
  /** What they lack. */
  const LACKING: Record<string, RegExp> = {
    ppo: /values/,
    mix: /expert_?mask/i,
    mix_chord: /expert_?mask|step/i,
    on_policy_distill: /teacher_?logprob/i,
    jsd: /teacher_?logprob/i,
  };

  for (const name of Object.keys(CLASSES))
    it(name, async () => {
      const objective = objectiveOf(name, { entropy_loss_fn_args: { entropy_coef: 0.01 } });
      if (LACKING[name]) {
        assert.throws(() => objective.computeSync(batch), isLossError('ERR_MISSING_INPUT', LACKING[name]));
        return;
      }
      const result = await objective.compute(batch, { grad: true });
      for (const [key, value] of Object.entries({ loss: result.loss, ...result.metrics }))
        assert.ok(Number.isFinite(value), `${key} is ${value}`);
      assert.equal(result.grad!.length, batch.logprob.length);
      assert.ok(result.grad!.every(Number.isFinite));
      assert.ok(result.grad!.some((g) => g !== 0));
      assertSameObjective(objective.computeSync(batch, { grad: true }), result);
    });
});
