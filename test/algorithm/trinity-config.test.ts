/** Tests objectives made from Trinity-RFT's configuration files. */
import assert from 'node:assert/strict';
import {
  type Batch,
  fromTrinityConfig,
  type LossError,
  type LossErrorCode,
  type Objective,
} from '../../lib/index.js';
import { ALGORITHMS } from '../support/algorithms.js';
import { layOut } from '../support/draw.js';
import { isLossError } from '../support/loss-error.js';
import { assertSameObjective, objectiveOf, REWARDED, unadvised } from '../support/objective.js';

// Counts the elements that some() may visit during a call.
function visitedDuring(call: () => void): number {
  const { some } = Array.prototype;
  let visited = 0;
  Array.prototype.some = function (...given) {
    visited += this.length;
    return some.apply(this, given);
  };
  try {
    call();
  } finally {
    Array.prototype.some = some;
  }
  return visited;
}

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
  const batch = layOut(unadvised(REWARDED));
  const same = (actual: Objective, expected: Objective) => {
    assert.equal(actual.algorithm, expected.algorithm);
    assertSameObjective(
      actual.computeSync(batch, { grad: true }),
      expected.computeSync(batch, { grad: true }),
    );
  };

  it('accepts a whole file or its section, as text or as an object', () => {
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
      'the configuration changes the loss',
    );
    for (const config of [wholeFile, sectionAlone, object, { mode: 'both', algorithm: object, model: {} }])
      same(fromTrinityConfig(config), expected);
  });

  it('gives every key the same effect as objective() does', () => {
    const dense = layOut(unadvised({ ...REWARDED, perToken: true }));
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

  it('makes every algorithm by its type, and ppo without a type', () => {
    for (const name of Object.keys(ALGORITHMS)) {
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

  it('treats null as absent', () => {
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

  it('accepts a backend', () => {
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

  it('names every unknown key', () => {
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

  it('reads a YAML text with many errors or keys in a number of steps that grows with its length', () => {
    // With `linePos`, the library would have searched the whole text for each error.
    assert.throws(
      () => fromTrinityConfig('"'.repeat(60_000)),
      (error: LossError) => /at line 1, column 3$/.test(error.message) && !('linePos' in Object(error.cause)),
    );
    const keys = Array.from({ length: 2000 }, (_, i) => `k${i}: 1`).join('\n');
    // The library compares keys with some().
    const compared = visitedDuring(() =>
      assert.throws(() => fromTrinityConfig(keys), isLossError('ERR_INVALID_OPTION')),
    );
    assert.ok(compared < 10_000, `${compared} comparisons`);
  });

  it('rejects text that is not YAML, and values of wrong types', () => {
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

  it('refuses a sparse list of settings', () => {
    for (const holes of [new Array(2), Object.assign(new Array(3), { 1: 'algorithm.algorithm_type=grpo' })])
      assert.throws(
        () => fromTrinityConfig(holes as never),
        isLossError(
          'ERR_INVALID_INPUT',
          /^configuration: expected (an object of keys, got an array of length 2|settings .*, got the word 'undefined')$/,
        ),
      );
  });

  it('rejects text that would take much time, memory or stack to parse', () => {
    const deep = /expected YAML of at most 64 levels, got more/;
    for (const text of [
      '['.repeat(10_000),
      '{a: '.repeat(10_000),
      '- '.repeat(20_000),
      '? '.repeat(20_000),
      Array.from({ length: 300 }, (_, i) => `${' '.repeat(i)}a:`).join('\n'),
    ])
      assert.throws(() => fromTrinityConfig(text), isLossError('ERR_INVALID_INPUT', deep));
    assert.throws(
      () => fromTrinityConfig(`# ${'x'.repeat(2 ** 16)}`),
      isLossError('ERR_INVALID_INPUT', /expected a text of at most 65536 characters, got more/),
    );
    const letters = [...'abcdefghij'];
    const laughs = letters.map(
      (to, i) => `${to}: &${to} [${Array(9).fill(i === 0 ? 'x' : `*${letters[i - 1]}`)}]`,
    );
    assert.throws(
      () => fromTrinityConfig(laughs.join('\n')),
      isLossError('ERR_INVALID_INPUT', /expected YAML, got text with an error: Excessive alias count/),
    );
    assert.throws(
      () => fromTrinityConfig('algorithm: &a\n  policy_loss_fn_args: *a'),
      isLossError('ERR_INVALID_OPTION', /got an unknown name/),
    );
    const nested = `algorithm:\n  algorithm_type: grpo\n  optimizer: ${'['.repeat(50)}${']'.repeat(50)}`;
    assert.equal(fromTrinityConfig(nested).algorithm, 'grpo');
  });
});
