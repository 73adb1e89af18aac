/** Tests the exit codes and messages of `policy-loss evaluate` for bad usage and bad data. */
import assert from 'node:assert/strict';
import { EXAMPLE, Files, fails as programFails, ROWS, run, TRINITY } from './support.js';

const fails = (code: 1 | 2, words: string[], ...says: RegExp[]) =>
  programFails(code, ['evaluate', ...words], ...says);

describe('policy-loss evaluate', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());
  const fileOf = (name: string, rows: readonly (object | string)[]) => files.write(name, rows);

  describe('bad usage exits with 2', () => {
    it('an unknown loss', () =>
      fails(2, [EXAMPLE, '--loss', 'grspo'], /^error: Did you mean 'gspo'\? unknown loss: got 'grspo'\n$/));
    it('no loss, algorithm or configuration', () =>
      fails(
        2,
        [EXAMPLE, '--clip-range', '0.2'],
        /exactly one of --loss <name>, --loss-expr <text>, --algorithm <name> or --config <file>, got none/,
      ));
    it('more than one loss, algorithm or configuration', async () => {
      await fails(
        2,
        [EXAMPLE, '--loss', 'ppo', '--algorithm=grpo'],
        /exactly one of.*got --loss and --algorithm/,
      );
      await fails(2, [EXAMPLE, '--loss', 'ppo', '--config', TRINITY], /got --loss and --config/);
    });
    it('a loss without a name', () => fails(2, [EXAMPLE, '--loss'], /--loss <name>.*missing/));
    it('no file', () => fails(2, ['--loss', 'ppo'], /files/));
    it('an unknown option', () =>
      fails(
        2,
        [EXAMPLE, '--loss', 'ppo', '--clip-rnge', '0.2'],
        /^error: Did you mean '--clip-range'\? unknown option of ppo: got '--clip-rnge'\n$/,
      ));
    it('an unknown algorithm', () =>
      fails(
        2,
        [EXAMPLE, '--algorithm', 'grop'],
        /^error: Did you mean 'grpo'\? unknown algorithm: got 'grop'\n$/,
      ));
    it('an unknown function of an algorithm', async () => {
      await fails(
        2,
        [EXAMPLE, '--algorithm', 'grpo', '--advantage-fn', 'grop'],
        /unknown advantage function: .*'grop'/,
      );
      await fails(2, [EXAMPLE, '--algorithm', 'grpo', '--kl-loss-fn', 'k4'], /unknown KL function: .*'k4'/);
    });
    it('a misspelt option of an algorithm', () =>
      fails(
        2,
        [EXAMPLE, '--algorithm', 'grpo', '--advantage-epsilom', '1'],
        /^error: Did you mean '--advantage-epsilon'\? .*'--advantage-epsilom'/,
      ));
    it('an option of another advantage function', () =>
      fails(
        2,
        [EXAMPLE, '--algorithm', 'rloo', '--advantage-std-threshold', '1'],
        /advantage-std-threshold/,
      ));
    it('an option of an algorithm with a loss', () =>
      fails(2, [EXAMPLE, '--loss', 'ppo', '--kl-coef', '1'], /kl-coef/));
    it('an invalid seed', () =>
      fails(2, [EXAMPLE, '--algorithm', 'grpo', '--seed', '-1'], /--seed: expected .*at least 0/));
    it('a KL penalty in rewards for an algorithm that reads no rewards', () =>
      fails(2, [EXAMPLE, '--algorithm', 'grpo', '--kl-penalty-fn', 'k1'], /--kl-penalty-fn: expected none/));
    it('an option of another loss', () =>
      fails(2, [EXAMPLE, '--loss', 'sft', '--clip-range', '0.2'], /clip-range/));
    it('an unknown backend', () =>
      fails(
        2,
        [EXAMPLE, '--loss', 'ppo', '--backend', 'verk'],
        /^error: Did you mean 'verl'\? unknown backend: got 'verk'/,
      ));
    it('an unknown aggregation', () =>
      fails(2, [EXAMPLE, '--loss', 'ppo', '--loss-agg-mode', 'mean'], /loss-agg-mode.*token-mean.*'mean'/));
    it('a word instead of a number', () =>
      fails(2, [EXAMPLE, '--loss', 'ppo', '--clip-range', 'wide'], /--clip-range.*'wide'/));
    it('an option out of its range', () =>
      fails(
        2,
        [EXAMPLE, '--loss', 'ppo', '--clip-ratio-c', '1'],
        /--clip-ratio-c: expected a number above 1/,
      ));
    it('an option of an advantage function out of its range', () =>
      fails(
        2,
        [EXAMPLE, '--algorithm', 'grpo', '--advantage-epsilon', '-1'],
        /--advantage-epsilon: expected a number of at least 0, got number -1/,
      ));
    it('is reported before the files are read', () =>
      fails(2, ['nowhere.jsonl', '--loss', 'ppo', '--clip-ratio-c', '1'], /clip-ratio-c/));
  });

  describe('bad data exits with 1 and prints no result', () => {
    it('a malformed line', async () => {
      const lines = ROWS.map((row) => JSON.stringify(row));
      lines[136] = lines[136]!.slice(0, 100);
      const file = fileOf('malformed.jsonl', lines);
      await fails(1, [file, '--loss', 'ppo'], /malformed\.jsonl, line 137: expected a JSON object/);
      await fails(1, [file, '--loss', 'ppo', '--json'], /line 137/);
    });
    it('lists of different lengths', () =>
      fails(
        1,
        [fileOf('lengths.jsonl', [ROWS[0]!, { ...ROWS[1], old_logprobs: [-1] }]), '--loss', 'ppo'],
        /lengths\.jsonl, line 2: old_logprobs: expected a list of \d+ numbers.*length 1/,
      ));
    it('a missing file', () => fails(1, ['nowhere.jsonl', '--loss', 'ppo'], /nowhere\.jsonl.*no such file/));
    it('an empty file', () =>
      fails(
        1,
        [fileOf('empty.jsonl', []), '--loss', 'ppo'],
        /empty\.jsonl: expected rollouts, got an empty file/,
      ));
    it('no column expert for mix', () =>
      fails(
        1,
        [EXAMPLE, '--loss', 'mix'],
        /mix: expert: expected this column in every row, got no such column in .*rollouts\.jsonl/,
      ));
    for (const [algorithm, column, substitute] of [
      ['ppo', 'values', ', or advantages'],
      ['mix', 'expert', ''],
      ['mix_chord', 'expert', ''],
      ['on_policy_distill', 'teacher_logprobs', ', or advantages'],
      ['jsd', 'teacher_logprobs', ', or advantages'],
    ] as const)
      it(`no column ${column} for the algorithm ${algorithm}`, () =>
        fails(
          1,
          [EXAMPLE, '--algorithm', algorithm],
          new RegExp(
            `${algorithm}: ${column}: expected this column in every row${substitute}, got .* in .*rollouts\\.jsonl`,
          ),
        ));
    for (const [algorithm, column, says] of [
      [
        'grpo',
        'ref_logprobs',
        /grpo: ref_logprobs: expected this column in every row, got no such column in /,
      ],
      ['grpo', 'old_logprobs', /grpo: old_logprobs: /],
      [
        'grpo',
        'task_id',
        /grpo: task_id: expected this column in every row, or advantages, got none of them in /,
      ],
      [
        'rloo',
        'reward',
        /rloo: token_level_rewards: .*every row, or reward, or advantages, got none of them in /,
      ],
      ['multi_step_grpo', 'run_id', /multi_step_grpo: run_id: /],
      ['dpo', 'ref_logprobs', /dpo: ref_logprobs: /],
    ] as const)
      it(`rows without ${column} for the algorithm ${algorithm}`, () =>
        fails(
          1,
          [
            fileOf(
              `without-${column}.jsonl`,
              ROWS.slice(0, 16).map((row) => ({ ...row, [column]: undefined })),
            ),
            '--algorithm',
            algorithm,
          ],
          says,
        ));
    it('no column entropy with an entropy coefficient', () =>
      fails(
        1,
        [
          fileOf(
            'without-entropy.jsonl',
            ROWS.slice(0, 16).map((row) => ({ ...row, entropy: undefined })),
          ),
          ...['--algorithm', 'grpo', '--entropy-coef', '0.01'],
        ],
        /grpo: entropy: /,
      ));
    it('no advantages, rewards or groups', () =>
      fails(
        1,
        [fileOf('bare.jsonl', [{ ...ROWS[0], reward: undefined }]), '--loss', 'ppo'],
        /ppo: advantages: .*reward and task_id/,
      ));
    for (const [column, other] of [
      ['old_logprobs', 'oldLogProbs'],
      ['reward', 'Reward'],
      ['task_id', 'taskId'],
    ] as const)
      it(`a column ${other} instead of ${column}`, () =>
        fails(
          1,
          [
            fileOf(
              `${other}.jsonl`,
              ROWS.slice(0, 16).map(({ [column]: value, ...row }) => ({ ...row, [other]: value })),
            ),
            '--loss',
            'ppo',
          ],
          new RegExp(`Did you mean ${other}\\? Then add --column ${column}=${other}\\n`),
        ));
    for (const [what, reward] of [
      ['NaN', 'NaN'],
      ['null', 'null'],
      ['absent', undefined],
    ] as const)
      it(`a reward that is ${what}, with what each framework does with it`, async () => {
        const lines = ROWS.slice(0, 16).map((row) => JSON.stringify(row));
        const { reward: _, ...rest } = ROWS[5]!;
        const bad = JSON.stringify(rest);
        lines[5] = reward === undefined ? bad : bad.replace('{', `{"reward":${reward},`);
        const file = fileOf(`reward-${what}.jsonl`, lines);
        for (const words of [
          ['--loss', 'ppo'],
          ['--algorithm', 'grpo'],
        ])
          await fails(1, [file, ...words], /line 6: reward: .*TRL leaves .*verl and NeMo-RL/);
        // Other losses need no rewards.
        assert.equal((await run('evaluate', file, '--loss', 'sft')).code, 0);
      });
    it('an odd number of rows for dpo', () =>
      fails(
        1,
        [fileOf('odd.jsonl', ROWS.slice(0, 3)), '--loss', 'dpo'],
        /odd\.jsonl: expected an even number of rows .*, got 3/,
      ));
    it('different steps for mix_chord', () =>
      fails(
        1,
        [
          fileOf(
            'steps.jsonl',
            ROWS.slice(0, 2).map((row, step) => ({ ...row, expert: true, step })),
          ),
          '--loss',
          'mix_chord',
        ],
        /same step in all rows/,
      ));
  });
});
