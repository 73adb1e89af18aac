/** Compares `policy-loss evaluate --loss` on the example file to the library's results for the same rows. */
import assert from 'node:assert/strict';
import { ADVANTAGE_FN, ALGORITHM_TYPE, POLICY_LOSS_FN } from '../../../lib/index.js';
import {
  EXAMPLE,
  Files,
  fromLibrary,
  fails as programFails,
  ROWS,
  type Row,
  run,
  runJson,
  sixDigits,
  TOKENS,
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

  it('prints help with examples and the options of the named loss', async () => {
    const general = await evaluate('--help');
    assert.equal(general.code, 0);
    assert.match(general.stdout, /Examples:\n +\$ policy-loss evaluate/);
    for (const name of [...POLICY_LOSS_FN.names(), ...ALGORITHM_TYPE.names()])
      assert.match(general.stdout, new RegExp(`\\b${name}\\b`));
    const { code, stdout } = await evaluate('--loss', 'cispo', '--help');
    assert.equal(code, 0);
    assert.match(stdout, /Options of cispo:/);
    assert.match(
      stdout,
      /--clip-range-high <value> +the weight is clipped to at most 1 \+ this\s+\(default: 0\.28\)/,
    );
    assert.match(stdout, /--enable-mask-clip /);
  });

  it('prints help with the options of the named algorithm and its functions', async () => {
    const { code, stdout } = await evaluate('--algorithm', 'gspo', '--advantage-fn', 'rec', '--help');
    assert.equal(code, 0);
    for (const says of [
      /Options of gspo:/,
      /--policy-loss-fn <name> +its policy loss \(default: "gspo"\)/,
      /--kl-loss-fn <name> .*\(default: "k2"\)/,
      /--kl-coef <value> .*\(default:\s+0\.001\)/,
      /--entropy-coef <value> /,
      /--kl-penalty-fn <name> /,
      /--seed <number> /,
      /Options of its policy loss gspo:/,
      /--clip-range-high <value> [^(]+\(default: 0\.0004\)/,
      /Options of its advantage function rec:/,
      /--advantage-drop <value>/,
      /--advantage-std-normalize /,
    ])
      assert.match(stdout, says);
    assert.equal(stdout.match(/^ +--loss-agg-mode /gm)?.length, 1);
    assert.doesNotMatch(stdout, /--advantage-rank-penalty/);
  });

  it('prints one line of help for every option that a function declares, with its range and default', async () => {
    // Returns the help text as one line, because commander breaks long lines.
    const helpOf = async (...words: string[]) =>
      (await evaluate(...words, '--help')).stdout.replace(/\s+/g, ' ');
    const expectFlags = (help: string, prefix: string, options: object) => {
      for (const [option, { help: text }] of Object.entries(options)) {
        const name = option.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
        const flag = ` --${prefix}${name} `;
        assert.ok(help.includes(flag), flag);
        assert.ok(help.slice(help.indexOf(flag)).includes(` ${text}`), `${flag}: ${text}`);
      }
    };
    for (const name of POLICY_LOSS_FN.names())
      expectFlags(await helpOf('--loss', name), '', POLICY_LOSS_FN.get(name).declaration!.options);
    for (const name of ADVANTAGE_FN.names())
      expectFlags(
        await helpOf('--algorithm', 'grpo', '--advantage-fn', name),
        'advantage-',
        ADVANTAGE_FN.get(name).declaration!.options,
      );
    const ppo = await helpOf('--loss', 'ppo');
    assert.match(ppo, / --clip-ratio-c <value> [^(]+; a number above 1 \(default: 3\) /);
    assert.match(
      ppo,
      / --clip-range-low <value> [^(]+; a number of at least 0; if not given, the value of --clip-range /,
    );
    assert.match(ppo, / --loss-agg-mode <value> [^(]+ \(choices: "token-mean", .*default: "token-mean"\) /);
    assert.match(ppo, / --enable-sequence-masking [^(]+ \(default: false\) /);
  });

  for (const name of ['ppo', 'gspo', 'cispo', 'topr', 'sapo', 'sppo', 'rec', 'opmd', 'importance_sampling']) {
    it(`${name}: prints the library's result to the bit, with advantages from rewards`, async () => {
      assert.deepEqual(await evaluateJson(EXAMPLE, '--loss', name), {
        ...(await fromLibrary(name)),
        advantages: 'grpo',
      });
    });
  }

  for (const name of ['sft', 'sft_is', 'sft_phi', 'dpo']) {
    it(`${name}: prints the library's result to the bit, without advantages`, async () => {
      assert.deepEqual(await evaluateJson(EXAMPLE, '--loss', name), await fromLibrary(name));
    });
  }

  for (const name of ['mix', 'mix_chord']) {
    it(`${name}: prints the library's result for rows with experts and a step`, async () => {
      const isExpert = (_: Row, b: number) => b % 3 === 0;
      const file = fileOf(
        'experts.jsonl',
        ROWS.map((row, b) => ({ ...row, expert: isExpert(row, b), step: 4 })),
      );
      const more = { expertMask: ROWS.map(isExpert), step: 4 };
      assert.deepEqual(await evaluateJson(file, '--loss', name), {
        ...(await fromLibrary(name, {}, ROWS, more)),
        advantages: 'grpo',
      });
    });
  }

  it('uses the advantages and the mask of the file', async () => {
    const rows = ROWS.slice(0, 8);
    const given = rows.map((row, b) => ({
      ...row,
      reward: undefined,
      advantages: b === 2 ? row.logprobs.map((_, t) => t - 3) : b - 4,
      action_mask: row.logprobs.map((_, t) => t % 2),
    }));
    const advantages = given.flatMap(({ logprobs, advantages: a }) =>
      logprobs.map((_, t) => (Array.isArray(a) ? a[t]! : a)),
    );
    const actionMask = given.flatMap((row) => row.action_mask);
    assert.deepEqual(await evaluateJson(fileOf('given.jsonl', given), '--loss', 'ppo'), {
      ...(await fromLibrary('ppo', {}, rows, { advantages, actionMask })),
      tokens: actionMask.reduce((sum, m) => sum + m, 0),
      advantages: 'given',
    });
  });

  it('does not need columns that the loss does not read with its options', async () => {
    const file = fileOf(
      'on-policy.jsonl',
      ROWS.map((row) => ({ ...row, old_logprobs: undefined })),
    );
    const { advantages: _, ...computed } = await evaluateJson(
      file,
      '--loss',
      'ppo',
      '--fallback-to-policy-gradient',
    );
    assert.deepEqual(computed, await fromLibrary('ppo', { fallbackToPolicyGradient: true }));
    await fails(
      1,
      [file, '--loss', 'ppo'],
      /ppo: old_logprobs: expected this column in every row, got no such column in .*on-policy\.jsonl/,
    );
  });

  it('reads several files as one', async () => {
    const files = [fileOf('first.jsonl', ROWS.slice(0, 100)), fileOf('second.jsonl', ROWS.slice(100))];
    assert.deepEqual(
      await evaluateJson(...files, '--loss', 'gspo'),
      await evaluateJson(EXAMPLE, '--loss', 'gspo'),
    );
  });

  it('prints a table without colours into a pipe', async () => {
    const { code, stdout, stderr } = await evaluate(EXAMPLE, '--loss', 'ppo');
    const { loss, metrics, gradNorm } = await fromLibrary('ppo');
    assert.equal(code, 0);
    assert.equal(stderr, '');
    // biome-ignore lint/suspicious/noControlCharactersInRegex: what must not be there
    assert.doesNotMatch(stdout, /\x1b/);
    const [table, note] = stdout.split('\n\n');
    const entries = Object.fromEntries(table!.split('\n').map((line) => line.split(/ {2,}/)));
    assert.deepEqual(entries, {
      function: 'ppo',
      loss: sixDigits(loss),
      ...Object.fromEntries(Object.entries(metrics).map(([name, x]) => [name, sixDigits(x!)])),
      'gradient norm': sixDigits(gradNorm),
      rows: String(ROWS.length),
      tokens: String(TOKENS),
    });
    assert.match(note!, /reward and task_id by GRPO's rule/);
    const sft = await evaluate(EXAMPLE, '--loss', 'sft');
    assert.doesNotMatch(sft.stdout, /GRPO/);
  });

  describe('options of a loss', () => {
    it('listed in defaultArgs()', async () => {
      const { advantages: _, ...computed } = await evaluateJson(
        EXAMPLE,
        '--loss',
        'ppo',
        '--clip-range',
        '0.01',
      );
      assert.deepEqual(computed, await fromLibrary('ppo', { clipRange: 0.01 }));
      assert.notEqual(computed.loss, (await fromLibrary('ppo')).loss);
    });

    it('not listed in defaultArgs(), in front of the files', async () => {
      const { advantages: _, ...computed } = await evaluateJson(
        '--clip-range-low=0.01',
        '--clip-range-high',
        '0.02',
        '--loss=ppo',
        EXAMPLE,
      );
      assert.deepEqual(computed, await fromLibrary('ppo', { clipRangeLow: 0.01, clipRangeHigh: 0.02 }));
      assert.notEqual(computed.loss, (await fromLibrary('ppo')).loss);
    });

    it('switches, text and negative numbers', async () => {
      const { advantages: _, ...computed } = await evaluateJson(
        '--loss',
        'ppo',
        '--enable-sequence-masking',
        EXAMPLE,
        '--delta-sequence-masking',
        '-0.05',
        '--loss-agg-mode',
        'seq-mean-token-sum',
      );
      const args = {
        enable_sequence_masking: true,
        delta_sequence_masking: -0.05,
        loss_agg_mode: 'seq-mean-token-sum',
      };
      assert.deepEqual(computed, await fromLibrary('ppo', args));
    });

    it('replace the defaults of two other options', async () => {
      const { advantages: _, ...computed } = await evaluateJson(
        '--loss',
        'gspo',
        EXAMPLE,
        '--clip-range',
        '0.01',
      );
      assert.deepEqual(computed, await fromLibrary('gspo', { clipRange: 0.01 }));
      assert.notEqual(computed.loss, (await fromLibrary('gspo')).loss);
    });

    it('switched off', async () => {
      assert.deepEqual(
        await evaluateJson('--loss', 'dpo', '--no-pairwise', EXAMPLE),
        await fromLibrary('dpo', { pairwise: false }),
      );
    });

    it('switches not listed in defaultArgs() do not take the file as a value', async () => {
      const file = fileOf(
        'expert.jsonl',
        ROWS.map((row, b) => ({ ...row, expert: b % 2 === 0 })),
      );
      const more = { expertMask: ROWS.map((_, b) => b % 2 === 0) };
      const { advantages: _, ...computed } = await evaluateJson(
        '--loss',
        'mix',
        '--use-dynamic-bsz',
        file,
        '--sft-loss-agg-mode',
        'seq-mean-token-mean',
      );
      const args = { use_dynamic_bsz: true, sft_loss_agg_mode: 'seq-mean-token-mean' };
      assert.deepEqual(computed, await fromLibrary('mix', args, ROWS, more));
    });
  });
});
