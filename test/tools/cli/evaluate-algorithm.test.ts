/** Compares `policy-loss evaluate` with `--algorithm` and `--config` to the library's results for the same rows. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { ALGORITHM_TYPE, fromConfig, fromTrinityConfig } from '../../../lib/index.js';
import {
  EXAMPLE,
  Files,
  fromLibrary,
  fromObjective,
  functionsOf,
  fails as programFails,
  ROWS,
  type Row,
  run,
  runJson,
  sixDigits,
  TOKENS,
  TRINITY,
} from './support.js';

const evaluate = (...words: string[]) => run('evaluate', ...words);
const evaluateJson = (...words: string[]) => runJson('evaluate', ...words);
const fails = (code: 1 | 2, words: string[], ...says: RegExp[]) =>
  programFails(code, ['evaluate', ...words], ...says);

describe('policy-loss evaluate', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());
  const fileOf = (name: string, rows: readonly (object | string)[]) => files.write(name, rows);

  describe('--algorithm', () => {
    for (const name of ALGORITHM_TYPE.names()) {
      if (['ppo', 'mix', 'mix_chord', 'on_policy_distill', 'jsd'].includes(name)) continue;
      it(`${name}: prints the library's result to the bit`, async () => {
        const functions = functionsOf(name);
        assert.deepEqual(await evaluateJson(EXAMPLE, '--algorithm', name), {
          ...(await fromObjective(ALGORITHM_TYPE.get(name).objective())),
          ...('advantageFn' in functions && { advantages: functions.advantageFn }),
          algorithm: functions,
        });
      });
    }

    const ones = (row: Row) => row.logprobs.map(() => 1);
    for (const [name, columns, more] of [
      ['ppo', { values: (row: Row) => row.entropy }, { values: ROWS.flatMap((row) => row.entropy) }],
      [
        'mix',
        { expert: (_: Row, b: number) => b % 3 === 0 },
        { expertMask: ROWS.map((_, b) => b % 3 === 0) },
      ],
      [
        'mix_chord',
        { expert: (_: Row, b: number) => b % 2 === 1, step: () => 4 },
        { expertMask: ROWS.map((_, b) => b % 2 === 1), step: 4 },
      ],
      [
        'on_policy_distill',
        { teacher_logprobs: (row: Row) => row.ref_logprobs },
        { teacherLogprob: ROWS.flatMap((row) => row.ref_logprobs) },
      ],
      [
        'jsd',
        { teacher_logprobs: (row: Row) => row.ref_logprobs },
        { teacherLogprob: ROWS.flatMap((row) => row.ref_logprobs) },
      ],
      ['rloo', { token_level_rewards: ones }, { tokenLevelRewards: ROWS.flatMap(ones) }],
    ] as const) {
      it(`${name}: prints the library's result for rows with ${Object.keys(columns).join(' and ')}`, async () => {
        const file = fileOf(
          `${name}.jsonl`,
          ROWS.map((row, b) => ({
            ...row,
            ...Object.fromEntries(Object.entries(columns).map(([key, of]) => [key, of(row, b)])),
          })),
        );
        const functions = functionsOf(name);
        assert.deepEqual(await evaluateJson(file, '--algorithm', name), {
          ...(await fromObjective(ALGORITHM_TYPE.get(name).objective(), ROWS, more)),
          advantages: functions.advantageFn,
          algorithm: functions,
        });
      });
    }

    it('computes token baselines from the column sum_pi_squared', async () => {
      const column = (row: Row) => row.logprobs.map((_, t) => 1 / (t + 2));
      const file = fileOf(
        'baselines.jsonl',
        ROWS.map((row) => ({ ...row, sum_pi_squared: column(row) })),
      );
      const words = ['--algorithm', 'rloo', '--advantage-fn', 'verl/optimal_token_baseline'];
      const objective = ALGORITHM_TYPE.get('rloo').objective({
        advantage_fn: 'verl/optimal_token_baseline',
      });
      const { loss } = await evaluateJson(file, ...words);
      assert.equal(loss, (await fromObjective(objective, ROWS, { sumPiSquared: ROWS.flatMap(column) })).loss);
      await fails(
        1,
        [EXAMPLE, ...words],
        /sum_pi_squared: expected this column in every row, or advantages, got/,
      );
    });

    it('accepts functions, their arguments and coefficients', async () => {
      const computed = await evaluateJson(
        ...[EXAMPLE, '--algorithm', 'rloo', '--policy-loss-fn', 'cispo', '--clip-range-high', '0.05'],
        ...['--enable-mask-clip', '--advantage-fn', 'grpo', '--advantage-std-threshold', '0.35'],
        ...['--advantage-duplicate-experiences', '--seed', '5', '--kl-loss-fn', 'corrected_k3'],
        ...['--kl-coef', '0.02', '--entropy-coef', '0.01', '--loss-agg-mode', 'seq-mean-token-sum'],
      );
      const objective = ALGORITHM_TYPE.get('rloo').objective({
        policy_loss_fn: 'cispo',
        policy_loss_fn_args: { clip_range_high: 0.05, enable_mask_clip: true },
        advantage_fn: 'grpo',
        advantage_fn_args: { std_threshold: 0.35, duplicate_experiences: true },
        kl_loss_fn: 'corrected_k3',
        kl_loss_fn_args: { kl_coef: 0.02 },
        entropy_loss_fn_args: { entropy_coef: 0.01 },
        loss_agg_mode: 'seq-mean-token-sum',
      });
      assert.deepEqual(computed, {
        ...(await fromObjective(objective, ROWS, {}, 5)),
        advantages: 'grpo',
        algorithm: {
          policyLossFn: 'cispo',
          advantageFn: 'grpo',
          klLossFn: 'corrected_k3',
          klCoef: 0.02,
          entropyLossFn: 'default',
          entropyCoef: 0.01,
        },
      });
      const { filtered_count, kl_loss } = computed.metrics;
      assert.ok(filtered_count! > 0 && kl_loss! > 0);
      const otherwise = await fromObjective(objective, ROWS, {}, 6);
      assert.notEqual(computed.loss, otherwise.loss);
    });

    it('distinguishes an option of the loss from options of the advantage function', async () => {
      const { loss } = await evaluateJson(EXAMPLE, '--algorithm', 'topr', '--advantage-threshold', '1');
      const given = { policy_loss_fn_args: { advantage_threshold: 1 } };
      assert.equal(loss, (await fromObjective(ALGORITHM_TYPE.get('topr').objective(given))).loss);
      assert.notEqual(loss, (await fromObjective(ALGORITHM_TYPE.get('topr').objective())).loss);
    });

    it('accepts a KL penalty in the reward', async () => {
      const words = ['--algorithm', 'reinforceplusplus', '--kl-penalty-fn', 'k1'];
      const computed = await evaluateJson(EXAMPLE, ...words);
      const objective = ALGORITHM_TYPE.get('reinforceplusplus').objective({ kl_penalty_fn: 'k1' });
      const { algorithm, advantages: _, ...rest } = computed;
      assert.deepEqual(rest, await fromObjective(objective));
      assert.equal(algorithm.klPenaltyFn, 'k1');
      await fails(
        1,
        [
          fileOf(
            'unrewarded.jsonl',
            ROWS.map((row) => ({ ...row, reward: undefined })),
          ),
          ...words,
        ],
        /reinforceplusplus: reward: expected this column in every row, or advantages/,
      );
    });

    it('uses the advantages of the file', async () => {
      const file = fileOf(
        'advantages.jsonl',
        ROWS.map((row, b) => ({ ...row, reward: undefined, advantages: b % 5 })),
      );
      const computed = await evaluateJson(file, '--algorithm', 'grpo');
      const advantages = ROWS.map((_, b) => b % 5);
      assert.deepEqual(computed, {
        ...(await fromObjective(ALGORITHM_TYPE.get('grpo').objective(), ROWS, { advantages })),
        advantages: 'given',
        algorithm: functionsOf('grpo'),
      });
    });

    it('does not need the columns of a term whose coefficient is 0', async () => {
      const bare = ROWS.map((row) => ({ ...row, ref_logprobs: undefined, entropy: undefined }));
      const file = fileOf('bare-terms.jsonl', bare);
      const computed = await evaluateJson(file, '--algorithm', 'grpo', '--kl-coef', '0');
      assert.equal(computed.loss, (await fromLibrary('ppo')).loss);
      assert.ok(!('gradEntropyNorm' in computed));
    });

    it('prints a table with its functions', async () => {
      const words = ['--algorithm', 'grpo', '--entropy-coef', '0.01', '--kl-loss-fn', 'k3'];
      const { code, stdout, stderr } = await evaluate(EXAMPLE, ...words);
      const objective = ALGORITHM_TYPE.get('grpo').objective({
        kl_loss_fn: 'k3',
        entropy_loss_fn_args: { entropy_coef: 0.01 },
      });
      const { loss, metrics, gradNorm, gradEntropyNorm } = await fromObjective(objective);
      assert.equal(code, 0);
      assert.equal(stderr, '');
      assert.deepEqual(
        stdout
          .trimEnd()
          .split('\n')
          .map((line) => line.split(/ {2,}/)),
        [
          ['algorithm', 'grpo'],
          ['policy loss', 'ppo'],
          ['advantages', 'grpo'],
          ['KL loss', '0.001 × k3'],
          ['entropy loss', '0.01 × default'],
          ...Object.entries({ loss, ...metrics }).map(([name, x]) => [name, sixDigits(x)]),
          ['gradient norm', sixDigits(gradNorm)],
          ['entropy gradient norm', sixDigits(gradEntropyNorm!)],
          ['rows', String(ROWS.length)],
          ['tokens', String(TOKENS)],
        ],
      );
    });
  });

  describe('--config', () => {
    it('evaluates a configuration of Trinity-RFT', async () => {
      const text = readFileSync(TRINITY, 'utf8');
      assert.deepEqual(await evaluateJson('--config', TRINITY, EXAMPLE), {
        ...(await fromObjective(fromTrinityConfig(text))),
        advantages: 'grpo',
        algorithm: {
          policyLossFn: 'ppo',
          advantageFn: 'grpo',
          klLossFn: 'k3',
          klCoef: 0.01,
          entropyLossFn: 'default',
          entropyCoef: 0.005,
        },
      });
    });

    it('evaluates a configuration of verl, whole and in parts', async () => {
      const lines = ['use_kl_loss: true', 'kl_loss_coef: 0.01', 'entropy_coeff: 0.002'].map(
        (line) => `    ${line}`,
      );
      const text = ['algorithm.adv_estimator: grpo', 'actor_rollout_ref:', '  actor:', ...lines];
      const file = fileOf('verl.yaml', text);
      const expected = {
        ...(await fromObjective(fromConfig(text.join('\n')))),
        advantages: 'verl/grpo_vectorized',
        algorithm: {
          policyLossFn: 'verl/vanilla',
          advantageFn: 'verl/grpo_vectorized',
          klLossFn: 'low_var_kl',
          klCoef: 0.01,
          entropyLossFn: 'default',
          entropyCoef: 0.002,
        },
      };
      assert.deepEqual(await evaluateJson(EXAMPLE, '--config', file), expected);
      const { loss } = await evaluateJson(EXAMPLE, '--config', file, '--batch-tokens', '512');
      assert.equal(loss, expected.loss);
    });

    it('takes a configuration for that of the given framework', async () => {
      const file = fileOf('beta.yaml', ['beta: 0.05']);
      await fails(
        2,
        [EXAMPLE, '--config', file],
        /beta\.yaml: configuration: expected keys of one framework/,
      );
      const { name, algorithm } = await evaluateJson(EXAMPLE, '--config', file, '--framework', 'trl/grpo');
      assert.equal(name, 'trl/grpo');
      assert.equal((algorithm as { policyLossFn: string }).policyLossFn, 'trl/dapo');
      await fails(
        2,
        [EXAMPLE, '--config', file, '--framework=tlr'],
        /Did you mean 'trl'\? unknown framework: got 'tlr'/,
      );
      await fails(
        2,
        [EXAMPLE, '--loss', 'ppo', '--framework', 'verl'],
        /unknown option of ppo: .*--framework/,
      );
    });

    it('names the key because of which the files must have advantages', () =>
      fails(
        1,
        [EXAMPLE, '--config', fileOf('nemo.yaml', ['loss_fn: { reference_policy_kl_penalty: 0 }'])],
        /nemo-rl: advantages: expected this column.*, because .* grpo\.use_leave_one_out_baseline, got no such column/,
      ));

    it('rejects other options', () =>
      fails(
        2,
        [EXAMPLE, '--config', TRINITY, '--kl-coef', '0.1', '--seed=3', '--json'],
        /--kl-coef and --seed: expected no further option with --config/,
      ));
    it('reports an unknown key with the file', () =>
      fails(
        2,
        [EXAMPLE, '--config', fileOf('unknown.yaml', ['algorithm:', '  policy_los_fn: ppo'])],
        /unknown\.yaml: .*policy_los_fn.*Did you mean 'algorithm.policy_loss_fn'/,
      ));
    it('reports an argument in the spelling of the file', () =>
      fails(
        2,
        [
          EXAMPLE,
          '--config',
          fileOf('range.yaml', ['algorithm_type: grpo', 'policy_loss_fn_args: { clip_ratio_c: 1 }']),
        ],
        /range\.yaml: .*clip_ratio_c: expected a number above 1/,
      ));
    it('reports a missing file and invalid YAML', async () => {
      await fails(
        1,
        [EXAMPLE, '--config', 'nowhere.yaml'],
        /nowhere\.yaml: expected a readable configuration, .*no such file/,
      );
      await fails(1, [EXAMPLE, '--config', fileOf('broken.yaml', ['a: [1'])], /broken\.yaml: .*YAML/);
    });
  });
});
