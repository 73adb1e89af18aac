/**
 * Tests the errors of advantage functions: their codes, and their messages, which name the key, the index and the
 * values.
 */
import assert from 'node:assert/strict';
import { ADVANTAGE_FN, ALGORITHM_TYPE, type Batch, type LossErrorCode } from '../../../lib/index.js';
import { unmaskedPositions } from '../../reference/advantage.js';
import type { Args } from '../../reference/index.js';
import {
  assertSameAdvantages,
  create,
  FUNCTIONS,
  NAMES,
  OF_ROW_REWARDS,
  OF_TOKEN_REWARDS,
  REWARDED_TOKENS,
} from '../../support/advantages.js';
import { camelCase, without } from '../../support/batch-keys.js';
import { layOut, makeRewarded } from '../../support/draw.js';
import { isLossError } from '../../support/loss-error.js';

const NOT_FINITE = [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];

describe('errors of advantage functions', () => {
  const batch = makeRewarded(REWARDED_TOKENS);
  const laid = layOut(batch);
  const perRow = without(laid, 'tokenLevelRewards');

  async function refuses(name: string, args: Args, given: object, code: LossErrorCode, ...says: RegExp[]) {
    const fn = create(name, args);
    assert.throws(() => fn.computeSync(given as Batch), isLossError(code, ...says));
    // This call stands outside of rejects(), so that the test fails if the call throws instead of rejecting.
    const promise = fn.compute(given as Batch);
    await assert.rejects(promise, isLossError(code, ...says));
  }
  /**
   * Returns a pattern for a key in camel case or snake case, under any backend's name. The pattern `after` follows it.
   */
  const spelt = (key: string, after = '') =>
    new RegExp(`${key.replace('old_logprob', 'old_?log_?probs?').replaceAll('_', '_?')}${after}`, 'i');

  describe('numbers that are not finite, by key and index', () => {
    const withNumber = (given: object, key: string, index: number, value: number) => {
      const column = Float64Array.from((given as Record<string, ArrayLike<number>>)[key]!);
      column[index] = value;
      return {
        ...given,
        [key]: key === 'rewards' || key === 'rewardBaselines' ? column : Float32Array.from(column),
      };
    };
    for (const value of NOT_FINITE) {
      for (const name of [...OF_ROW_REWARDS, ...OF_TOKEN_REWARDS])
        it(`${name}: rewards with ${value}`, async () => {
          for (const index of [0, 5, batch.rows - 1])
            await refuses(
              name,
              {},
              withNumber(perRow, 'rewards', index, value),
              'ERR_INVALID_INPUT',
              spelt('rewards', `\\[${index}\\]`),
              new RegExp(String(value)),
            );
        });

      const unmasked = unmaskedPositions(batch, 3).at(-1)!;
      const hidden = Array.from(batch.actionMask).findIndex((m, i) => !m && i > 2 * batch.columns);
      for (const [name, key, index, what] of [
        ...OF_TOKEN_REWARDS.map((each) => [each, 'token_level_rewards', unmasked, ''] as const),
        ['ppo', 'values', unmasked, ''],
        ['ppo', 'token_level_rewards', hidden, ' under the mask'],
        ['ppo', 'values', hidden, ' under the mask'],
        ['reinforceplusplus', 'token_level_rewards', hidden, ' under the mask'],
        ['rloo', 'token_level_rewards', hidden, ' under the mask'],
        ['verl/gae', 'values', hidden, ' under the mask'],
        ['verl/opo', 'token_level_rewards', hidden, ' under the mask'],
        ['verl/gdpo', 'token_level_rewards', hidden, ' under the mask'],
        ['remax', 'reward_baselines', 3, ''],
      ] as const)
        it(`${name}: ${key}${what} with ${value}`, async () => {
          const says = [spelt(key, `\\[${index}\\]`), new RegExp(String(value))];
          await refuses(
            name,
            {},
            withNumber(laid, camelCase(key), index, value),
            'ERR_INVALID_INPUT',
            ...says,
          );
        });
    }

    it('the first of several in a packed batch, on any number of threads', async () => {
      const long = makeRewarded({
        ...REWARDED_TOKENS,
        rows: 6,
        columns: 30_000,
        rowLengths: [9, 30_000, 4, 12_000, 1, 20_000],
        packed: true,
      });
      const given = layOut(long);
      const column = given.tokenLevelRewards as Float32Array;
      const first = (given.actionMask as Uint8Array).indexOf(1, 9 + 25_000);
      for (const index of [first, 9 + 30_000 + 4 + 77, column.length - 1]) column[index] = Number.NaN;
      for (const name of ['ppo', 'reinforceplusplus', 'rloo', 'verl/gpg', 'verl/reinforce_plus_plus'])
        await refuses(name, {}, given, 'ERR_INVALID_INPUT', spelt('token_level_rewards', `\\[${first}\\]`));
    });

    it('the reward of a row without unmasked tokens', async () => {
      const given = { ...perRow, actionMask: new Uint8Array(batch.rows * batch.columns) };
      for (const name of OF_ROW_REWARDS)
        await refuses(
          name,
          {},
          withNumber(given, 'rewards', 2, Number.NaN),
          'ERR_INVALID_INPUT',
          /rewards\[2\]/,
        );
    });

    it('a completion without a reward, with what each framework does with it', async () => {
      const says = [
        /rewards\[2\]/,
        /TRL leaves .* advantage 0, ms-swift .* as 0, .* verl .* NaN/,
        /leave its row out/,
      ];
      for (const missing of [Number.NaN, null, undefined]) {
        const rewards = Array.from(laid.rewards as Float64Array, (x, i) => (i === 2 ? missing : x));
        await refuses('grpo', {}, { ...perRow, rewards }, 'ERR_INVALID_INPUT', ...says);
        const objective = ALGORITHM_TYPE.get('rloo').objective({ kl_penalty_fn: 'k1' });
        assert.throws(
          () => objective.computeSync({ ...perRow, rewards, advantages: undefined } as unknown as Batch),
          isLossError('ERR_INVALID_INPUT', says[1]!),
        );
      }
      const named = {
        ...laid,
        rewards: undefined,
        good: Array.from({ length: batch.rows }, () => Number.NaN),
      };
      await refuses('verl/gdpo', { gdpo_reward_keys: ['good'] }, named, 'ERR_INVALID_INPUT', says[1]!);
    });

    it('a function works after it threw an error', () => {
      const fn = create('grpo');
      const expected = fn.computeSync(laid);
      assert.throws(() => fn.computeSync(withNumber(laid, 'rewards', 1, Number.NaN) as Batch));
      assertSameAdvantages(fn.computeSync(laid), expected);
    });
  });

  it('missing keys', async () => {
    for (const [name, [, , keys]] of Object.entries(FUNCTIONS))
      for (const key of keys) {
        const given = without(laid, camelCase(key), ...(key === 'token_level_rewards' ? ['rewards'] : []));
        await refuses(name, {}, given, 'ERR_MISSING_INPUT', spelt(key));
      }
    await refuses(
      'grpo',
      { rank_penalty: 0.5 },
      without(laid, 'oldLogprob'),
      'ERR_MISSING_INPUT',
      spelt('old_logprob'),
    );
    await refuses('grpo', {}, { ...laid, groupIds: null }, 'ERR_MISSING_INPUT', spelt('group_ids'));
    await refuses('grpo', {}, without(laid, 'shape'), 'ERR_MISSING_INPUT', /shape/);
  });

  it('columns of wrong lengths', async () => {
    const { rows, columns } = batch;
    const tokens = rows * columns;
    const wrong: [string, string, object, number, number][] = [
      ['grpo', 'group_ids', { groupIds: new Int32Array(rows - 1) }, rows, rows - 1],
      ['grpo', 'group_ids', { groupIds: new Array(rows + 1).fill('a') }, rows, rows + 1],
      ['rloo', 'group_ids', { groupIds: new Array(rows + 1).fill(4) }, rows, rows + 1],
      ['step_wise_grpo', 'run_ids', { runIds: new Int32Array(rows + 3) }, rows, rows + 3],
      ['grpo', 'rewards', { rewards: new Float64Array(rows + 1) }, rows, rows + 1],
      ['remax', 'reward_baselines', { rewardBaselines: [1] }, rows, 1],
      ['ppo', 'token_level_rewards', { tokenLevelRewards: new Float32Array(tokens - 1) }, tokens, tokens - 1],
      ['ppo', 'values', { values: new Float32Array(tokens + 1) }, tokens, tokens + 1],
      ['jsd', 'teacher_logprob', { teacherLogprob: new Float32Array(5) }, tokens, 5],
      ['jsd', 'action_mask', { actionMask: new Uint8Array(5) }, tokens, 5],
    ];
    for (const [name, key, change, expected, received] of wrong)
      await refuses(
        name,
        {},
        { ...laid, ...change },
        'ERR_SHAPE_MISMATCH',
        spelt(key),
        new RegExp(`\\b${expected}\\b`),
        new RegExp(`\\b${received}\\b`),
      );
  });

  it('columns of wrong types', async () => {
    const { rows } = batch;
    const wrong: [string, string, unknown][] = [
      ['grpo', 'groupIds', 'abcdefgh'],
      ['grpo', 'groupIds', new Array(rows).fill(null)],
      ['grpo', 'groupIds', { length: rows }],
      ['step_wise_grpo', 'runIds', new Array(rows).fill({})],
      ['grpo', 'rewards', new Array(rows).fill('1')],
      ['grpo', 'rewards', 5],
      ['remax', 'rewardBaselines', 'high'],
      ['ppo', 'values', 'high'],
      ['jsd', 'teacherLogprob', new Int32Array(rows * batch.columns)],
    ];
    for (const [name, key, value] of wrong)
      await refuses(
        name,
        {},
        { ...laid, [key]: value },
        'ERR_INVALID_INPUT',
        spelt(key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)),
      );
    await refuses('grpo', {}, 7 as unknown as object, 'ERR_INVALID_INPUT', /batch/i);
  });

  it('wrong options', () => {
    const wrong: [string, string, unknown][] = [
      ['ppo', 'gamma', '1'],
      ['ppo', 'lam', Number.NaN],
      ['reinforceplusplus', 'gamma', Number.POSITIVE_INFINITY],
      ['grpo', 'epsilon', 'small'],
      ['grpo', 'epsilon', Number.NaN],
      ['grpo', 'std_threshold', true],
      ['grpo', 'duplicate_experiences', 'yes'],
      ['grpo', 'rank_penalty', 'high'],
      ['grpo', 'std_cal_level', 'task'],
      ['grpo', 'std_cal_level', 1],
      ['grpo', 'seed', 1.5],
      ['step_wise_grpo', 'enable_step_norm', 1],
      ['step_wise_grpo', 'std_cal_level', 'run'],
      ['opmd', 'opmd_baseline', 'median'],
      ['opmd', 'tau', 0],
      ['opmd', 'tau', Number.NaN],
      ['asymre', 'baseline_shift', '0.1'],
      ['rec', 'std_normalize', 0],
      ['rec', 'drop', 'all'],
      ['rec', 'drop', true],
      ['rec', 'seed', Number.NaN],
      ['on_policy_distill', 'kl_coef', '1'],
      ['jsd', 'lambda_coef', -0.1],
      ['jsd', 'lambda_coef', 1.1],
      ['jsd', 'temperature', 0],
      ['jsd', 'kl_coef', Number.NaN],
      ['verl/grpo_passk', 'norm_adv_by_std_in_grpo', 1],
      ['verl/gpg', 'f_norm', 0],
      ['verl/gdpo', 'gdpo_reward_keys', 'rewards'],
      ['verl/gdpo', 'gdpo_reward_keys', [1]],
      ['verl/gdpo', 'gdpo_reward_weights', [1]],
      ['verl/optimal_token_baseline', 'epsilon', 0],
      ['verl/tir_optimal_token_baseline', 'handle_zero_tail', 1],
    ];
    for (const [name, key, value] of wrong)
      assert.throws(
        () => create(name, { [key]: value }),
        isLossError('ERR_INVALID_OPTION', spelt(key)),
        `${name} ${key}`,
      );
    for (const name of NAMES)
      assert.throws(
        () => create(name, { no_such_option: 1 }),
        isLossError('ERR_INVALID_OPTION', /no_?such_?option/i),
      );
    for (const seed of [1.5, Number.NaN, '7'])
      assert.throws(
        () => create('rec', { drop: 'balance' }).computeSync(laid, { seed: seed as number }),
        isLossError('ERR_INVALID_OPTION', /seed/),
      );
  });

  it('unknown names', () => {
    assert.throws(
      () => ADVANTAGE_FN.create('grop'),
      isLossError('ERR_UNKNOWN_NAME', /^Did you mean 'grpo'\? .*'grop'$/),
    );
    assert.throws(() => ADVANTAGE_FN.get('constructor'), isLossError('ERR_UNKNOWN_NAME'));
    assert.throws(
      () => ADVANTAGE_FN.create('grpo', {}, { backend: 'verll' }),
      isLossError('ERR_UNKNOWN_NAME', /verll/),
    );
  });

  it('aborted calls', async () => {
    for (const name of NAMES)
      await assert.rejects(
        create(name).compute(laid, { signal: AbortSignal.abort() }),
        isLossError('ERR_ABORTED'),
      );
  });
});
