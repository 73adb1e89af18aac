/** The command line, run as a program of its own on the example's rollouts, against the library on the same rows. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { groupAdvantages } from '../lib/advantage/group-advantages.js';
import { type Batch, POLICY_LOSS_FN } from '../lib/index.js';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const EXAMPLE = join(ROOT, 'examples', 'rollouts.jsonl');

interface Run {
  code: number | null;
  stdout: string;
  stderr: string;
}

function run(...words: string[]): Promise<Run> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, ['--import', 'tsx', 'lib/cli/main.ts', ...words], { cwd: ROOT });
    const result: Run = { code: null, stdout: '', stderr: '' };
    for (const stream of ['stdout', 'stderr'] as const)
      child[stream].setEncoding('utf8').on('data', (text: string) => {
        result[stream] += text;
      });
    child.on('error', reject);
    child.on('close', (code) => resolve({ ...result, code }));
  });
}

const evaluate = (...words: string[]) => run('evaluate', ...words);

async function evaluateJson(...words: string[]) {
  const { code, stdout, stderr } = await evaluate(...words, '--json');
  assert.equal(stderr, '');
  assert.equal(code, 0);
  return JSON.parse(stdout);
}

async function fails(code: 1 | 2, words: string[], ...says: RegExp[]): Promise<void> {
  const result = await evaluate(...words);
  assert.equal(result.code, code, result.stderr);
  assert.equal(result.stdout, '');
  for (const pattern of says) assert.match(result.stderr, pattern);
  assert.doesNotMatch(result.stderr, /\n\s+at /, 'a stack trace');
}

interface Row {
  task_id: number;
  reward: number;
  logprobs: number[];
  old_logprobs: number[];
  ref_logprobs: number[];
  [column: string]: unknown;
}
const ROWS: Row[] = readFileSync(EXAMPLE, 'utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line));
const TOKENS = ROWS.reduce((sum, row) => sum + row.logprobs.length, 0);

/** The library's own answer: a batch made here, with none of the code under test but groupAdvantages. */
async function fromLibrary(name: string, args: object = {}, rows: Row[] = ROWS, more: Partial<Batch> = {}) {
  const offsets = [0];
  for (const { logprobs } of rows) offsets.push(offsets.at(-1)! + logprobs.length);
  const tokens = offsets.at(-1)!;
  const advantages = groupAdvantages(
    rows.map((row) => row.reward),
    rows.map((row) => row.task_id),
  );
  const batch: Batch = {
    cuSeqlens: offsets,
    logprob: rows.flatMap((row) => row.logprobs),
    oldLogprob: rows.flatMap((row) => row.old_logprobs),
    refLogprob: rows.flatMap((row) => row.ref_logprobs),
    actionMask: new Uint8Array(tokens).fill(1),
    advantages: rows.flatMap((row, b) => row.logprobs.map(() => advantages[b]!)),
    ...more,
  };
  const { loss, metrics, grad } = await POLICY_LOSS_FN.create(name, { ...args }).compute(batch, {
    grad: true,
  });
  const gradNorm = Math.sqrt(grad!.reduce((sum, g) => sum + g * g, 0));
  return { name, loss, metrics, rows: rows.length, tokens, gradNorm };
}

describe('policy-loss', () => {
  let directory: string;
  before(() => {
    directory = mkdtempSync(join(tmpdir(), 'policy-loss-'));
  });
  after(() => rmSync(directory, { recursive: true }));

  function fileOf(name: string, rows: readonly (object | string)[]): string {
    const file = join(directory, name);
    writeFileSync(file, rows.map((row) => (typeof row === 'string' ? row : JSON.stringify(row))).join('\n'));
    return file;
  }

  it('tells its version', async () => {
    const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
    assert.deepEqual(await run('--version'), { code: 0, stdout: `${version}\n`, stderr: '' });
  });

  it('helps', async () => {
    const { code, stdout } = await run('--help');
    assert.equal(code, 0);
    assert.match(stdout, /evaluate/);
  });

  it('explains itself and exits with 2 when called with nothing, or with a command that is not there', async () => {
    const nothing = await run();
    assert.equal(nothing.code, 2);
    assert.equal(nothing.stdout, '');
    assert.match(nothing.stderr, /Usage: policy-loss/);
    const misspelt = await run('evaluat', EXAMPLE);
    assert.equal(misspelt.code, 2);
    assert.match(misspelt.stderr, /Did you mean evaluate\?/);
  });

  describe('evaluate', () => {
    it('helps with examples, and with the options of the loss named', async () => {
      const general = await evaluate('--help');
      assert.equal(general.code, 0);
      assert.match(general.stdout, /Examples:\n +\$ policy-loss evaluate/);
      for (const name of POLICY_LOSS_FN.names()) assert.match(general.stdout, new RegExp(`\\b${name}\\b`));
      const { code, stdout } = await evaluate('--loss', 'cispo', '--help');
      assert.equal(code, 0);
      assert.match(stdout, /Options of cispo:/);
      assert.match(stdout, /--clip-range-high <value> +\(default: 0\.28\)/);
      assert.match(stdout, /--enable-mask-clip /);
    });

    for (const name of [
      'ppo',
      'gspo',
      'cispo',
      'topr',
      'sapo',
      'sppo',
      'rec',
      'opmd',
      'importance_sampling',
    ]) {
      it(`${name}: the library's result to the bit, on advantages from rewards`, async () => {
        assert.deepEqual(await evaluateJson(EXAMPLE, '--loss', name), {
          ...(await fromLibrary(name)),
          advantages: 'grpo',
        });
      });
    }

    for (const name of ['sft', 'sft_is', 'sft_phi', 'dpo']) {
      it(`${name}: the library's result to the bit, without advantages`, async () => {
        assert.deepEqual(await evaluateJson(EXAMPLE, '--loss', name), await fromLibrary(name));
      });
    }

    for (const name of ['mix', 'mix_chord']) {
      it(`${name}: on rows that name experts and the step`, async () => {
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

    it('takes the advantages and the mask that the file gives', async () => {
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

    it('needs no column that the loss, with its options, does not read', async () => {
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
        /ppo reads the column old_logprobs.*on-policy\.jsonl has it in none/,
      );
    });

    it('takes several files for one', async () => {
      const files = [fileOf('first.jsonl', ROWS.slice(0, 100)), fileOf('second.jsonl', ROWS.slice(100))];
      assert.deepEqual(
        await evaluateJson(...files, '--loss', 'gspo'),
        await evaluateJson(EXAMPLE, '--loss', 'gspo'),
      );
    });

    it('prints a table, plain where it is piped', async () => {
      const { code, stdout, stderr } = await evaluate(EXAMPLE, '--loss', 'ppo');
      const { loss, metrics, gradNorm } = await fromLibrary('ppo');
      assert.equal(code, 0);
      assert.equal(stderr, '');
      // biome-ignore lint/suspicious/noControlCharactersInRegex: what must not be there
      assert.doesNotMatch(stdout, /\x1b/);
      const [table, note] = stdout.split('\n\n');
      const entries = Object.fromEntries(table!.split('\n').map((line) => line.split(/ {2,}/)));
      const sixDigits = (x: number) => String(Number(x.toPrecision(6)));
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

    describe('options', () => {
      it('of the class by default_args', async () => {
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

      it('of the constructor beyond default_args, before the files too', async () => {
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

      it('that are switches, text and negative numbers', async () => {
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

      it('that are switched off', async () => {
        assert.deepEqual(
          await evaluateJson('--loss', 'dpo', '--no-pairwise', EXAMPLE),
          await fromLibrary('dpo', { pairwise: false }),
        );
      });

      it('that are switches beyond default_args, which do not swallow a file', async () => {
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

    describe('bad usage exits with 2', () => {
      it('an unknown loss', () =>
        fails(
          2,
          [EXAMPLE, '--loss', 'grspo'],
          /unknown policy loss 'grspo'.*importance_sampling.*Did you mean 'gspo'\?/,
        ));
      it('no loss', () => fails(2, [EXAMPLE, '--clip-range', '0.2'], /--loss <name>/));
      it('no file', () => fails(2, ['--loss', 'ppo'], /files/));
      it('an unknown option', () =>
        fails(
          2,
          [EXAMPLE, '--loss', 'ppo', '--clip-rnge', '0.2'],
          /clip-rnge.*clip-range-low.*Did you mean 'clip-range'/,
        ));
      it("an option of another loss's", () =>
        fails(2, [EXAMPLE, '--loss', 'sft', '--clip-range', '0.2'], /clip-range/));
      it('the backend, which has no say in files', () =>
        fails(2, [EXAMPLE, '--loss', 'ppo', '--backend', 'verl'], /--backend/));
      it('an unknown aggregation', () =>
        fails(2, [EXAMPLE, '--loss', 'ppo', '--loss-agg-mode', 'mean'], /loss-agg-mode.*token-mean.*'mean'/));
      it('a number that is none', () =>
        fails(2, [EXAMPLE, '--loss', 'ppo', '--clip-range', 'wide'], /--clip-range.*'wide'/));
      it('an option out of its range', () =>
        fails(2, [EXAMPLE, '--loss', 'ppo', '--clip-ratio-c', '1'], /clip-ratio-c must be a number above 1/));
      it('said before the files are looked at', () =>
        fails(2, ['nowhere.jsonl', '--loss', 'ppo', '--clip-ratio-c', '1'], /clip-ratio-c/));
    });

    describe('bad data exits with 1 and prints no table', () => {
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
      it('a missing file', () => fails(1, ['nowhere.jsonl', '--loss', 'ppo'], /nowhere\.jsonl.*ENOENT/));
      it('an empty file', () =>
        fails(1, [fileOf('empty.jsonl', []), '--loss', 'ppo'], /empty\.jsonl.*the file is empty/));
      it('no experts for mix', () =>
        fails(1, [EXAMPLE, '--loss', 'mix'], /mix reads the column expert.*rollouts\.jsonl has it in none/));
      it('neither advantages nor rewards and groups', () =>
        fails(
          1,
          [fileOf('bare.jsonl', [{ ...ROWS[0], reward: undefined }]), '--loss', 'ppo'],
          /ppo reads the column advantages.*reward and task_id/,
        ));
      it('an odd number of rows for dpo', () =>
        fails(1, [fileOf('odd.jsonl', ROWS.slice(0, 3)), '--loss', 'dpo'], /even number of rows/));
      it('steps that differ for mix_chord', () =>
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
});
