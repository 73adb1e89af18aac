/** Tests the classes of the algorithms: their names, constants and default configurations, and checkConfig(). */
import assert from 'node:assert/strict';
import {
  ADVANTAGE_FN,
  ALGORITHM_TYPE,
  AlgorithmType,
  DPOAlgorithm,
  ENTROPY_LOSS_FN,
  GRPOAlgorithm,
  KL_FN,
  MIXAlgorithm,
  Objective,
  POLICY_LOSS_FN,
  SFTAlgorithm,
} from '../../lib/index.js';
import { ALGORITHMS, DEFAULTS } from '../support/algorithms.js';
import { isLossError } from '../support/loss-error.js';
import { objectiveOf } from '../support/objective.js';

/** Runs a function. Returns its result, and the warnings that the process emitted during the run. */
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

describe('algorithm classes', () => {
  it('are registered under the names of all algorithms', () => {
    assert.deepEqual([...ALGORITHM_TYPE.names()].sort(), Object.keys(ALGORITHMS).sort());
    assert.equal(ALGORITHM_TYPE.names().length, 20);
    for (const [name, [cls]] of Object.entries(ALGORITHMS)) {
      assert.equal(ALGORITHM_TYPE.get(name), cls);
      assert.ok(Object.prototype.isPrototypeOf.call(AlgorithmType, cls), `${name} extends AlgorithmType`);
    }
    assert.throws(
      () => ALGORITHM_TYPE.get('mixchord'),
      isLossError('ERR_UNKNOWN_NAME', /^Did you mean 'mix_chord'\? .*'mixchord'$/),
    );
    assert.throws(() => ALGORITHM_TYPE.get('toString'), isLossError('ERR_UNKNOWN_NAME'));
  });

  for (const [name, [cls, ...constants]] of Object.entries(ALGORITHMS))
    it(`${name}: its constants and default configuration are frozen`, () => {
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

  for (const name of Object.keys(ALGORITHMS))
    it(`${name}: its objective has the functions of its default configuration`, () => {
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

  it('have exact types, a summary and a source', () => {
    const name: 'grpo' = GRPOAlgorithm.algorithmName;
    const schema: 'experience' = GRPOAlgorithm.schema;
    const useRollout: true = MIXAlgorithm.useRollout;
    // @ts-expect-error: only MIXAlgorithm and MIXCHORDAlgorithm have the constant useRollout.
    const absent: undefined = GRPOAlgorithm.useRollout;
    assert.deepEqual([name, schema, useRollout, absent], ['grpo', 'experience', true, undefined]);
    for (const [cls] of Object.values(ALGORITHMS)) {
      assert.match(cls.summary, /^[^.]+[^.]$/);
      assert.match(cls.source.join(', '), /^(arXiv \d{4}\.\d{5}, )?Trinity-RFT$/);
    }
  });

  it('pass their constants on to subclasses', () => {
    class Mine extends GRPOAlgorithm {
      static override checkConfig() {
        return { policy_loss_fn: 'sft' };
      }
    }
    assert.equal(Mine.algorithmName, 'grpo');
    assert.deepEqual(Mine.defaultConfig(), GRPOAlgorithm.defaultConfig());
    assert.ok(Mine.objective().policyLossFn instanceof POLICY_LOSS_FN.get('sft'));
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

  it('dpo: replaces the KL loss none with k2, warns, sets repeat_times to 2, and keeps the given object', async () => {
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

  it('dpo: accepts a correct configuration without a warning', async () => {
    const { result, warnings } = await warningsOf(() =>
      DPOAlgorithm.checkConfig({ kl_loss_fn: 'k1', repeat_times: 2 }),
    );
    assert.deepEqual(result, { kl_loss_fn: 'k1', repeat_times: 2 });
    assert.deepEqual(warnings, []);
  });

  it('dpo: corrects the algorithm section of a whole configuration', async () => {
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
    it(`${name}: accepts only the mode train, with a path of experiences`, async () => {
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

    it(`${name}: changes synchronization to checkpoints, with a warning`, async () => {
      const { result, warnings } = await warningsOf(() =>
        cls.checkConfig(whole({ algorithm, synchronizer: { sync_method: 'nccl' } })),
      );
      assert.deepEqual(result, whole({ algorithm }));
      assert.equal(warnings.length, 1);
      assert.match(warnings[0]!, /checkpoint/);
    });
  }

  it('the other algorithms accept any configuration', async () => {
    for (const [name, [cls]] of Object.entries(ALGORITHMS)) {
      if (name === 'dpo' || name === 'sft') continue;
      for (const config of [{ kl_loss_fn: 'none', repeat_times: 7 }, whole({ mode: 'both', buffer: {} })]) {
        const { result, warnings } = await warningsOf(() => cls.checkConfig(config));
        assert.deepEqual(result, config);
        assert.deepEqual(warnings, []);
      }
    }
  });
});
