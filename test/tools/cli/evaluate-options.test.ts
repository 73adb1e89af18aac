/** Tests the options that `policy-loss evaluate` shares with all commands that read rollout files. */
import assert from 'node:assert/strict';
import {
  EXAMPLE,
  Files,
  fromLibrary,
  parseCsv,
  fails as programFails,
  ROWS,
  run,
  runJson,
  runProcess,
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

  describe('shared options', () => {
    it('--csv prints a header and one line with all digits', async () => {
      const { code, stdout, stderr } = await evaluate(EXAMPLE, '--loss', 'ppo', '--csv');
      assert.equal(code, 0);
      assert.equal(stderr, '');
      const { loss, metrics, gradNorm } = await fromLibrary('ppo');
      assert.deepEqual(parseCsv(stdout), [
        {
          name: 'ppo',
          loss: String(loss),
          rows: String(ROWS.length),
          tokens: String(TOKENS),
          gradNorm: String(gradNorm),
          advantages: 'grpo',
          ...Object.fromEntries(Object.entries(metrics).map(([name, x]) => [name, String(x)])),
        },
      ]);
    });

    it('--csv and --json exclude each other', () =>
      fails(2, [EXAMPLE, '--loss', 'ppo', '--csv', '--json'], /--csv.*cannot be used with.*--json/));

    it('--quiet prints no notes and no warnings', async () => {
      // Each run has its own process, because Node emits this warning only once per process.
      const words = ['evaluate', EXAMPLE, '--loss', 'gspo', '--loss-agg-mode=token-mean'];
      const { stdout, stderr } = await runProcess(...words, '-q');
      assert.doesNotMatch(stdout, /GRPO/);
      assert.equal(stderr, '');
      const loud = await runProcess(...words);
      assert.match(loud.stdout, /GRPO/);
      assert.match(loud.stderr, /^warning: GSPO was published with [^\n]*\n$/);
    });

    it('--column renames columns, by column name or batch key', async () => {
      const renamed = ROWS.map(({ logprobs, old_logprobs, ...row }) => ({
        ...row,
        lp: logprobs,
        'of the sampler': old_logprobs,
      }));
      const file = fileOf('renamed.jsonl', renamed);
      const words = ['--loss', 'ppo', '--column', 'logprobs=lp', '--column=oldLogprob=of the sampler'];
      assert.deepEqual(await evaluateJson(file, ...words), await evaluateJson(EXAMPLE, '--loss', 'ppo'));
      await fails(2, [file, '--loss', 'ppo', '--column', 'logprobs'], /--column.*'logprobs=lp'/);
      await fails(
        2,
        [file, '--loss', 'ppo', '--column', 'logprbs=lp'],
        /Did you mean 'logprobs'\? .*logprbs/,
      );
    });

    it("--backend accepts a framework's column names", async () => {
      const verl = ROWS.map(({ logprobs, old_logprobs, ...row }) => ({
        ...row,
        log_prob: logprobs,
        old_log_probs: old_logprobs,
        response_mask: logprobs.map(() => 1),
      }));
      const file = fileOf('verl.jsonl', verl);
      const ours = await evaluateJson(EXAMPLE, '--loss', 'ppo');
      assert.deepEqual(await evaluateJson(file, '--loss', 'ppo', '--backend', 'verl'), ours);
      assert.deepEqual(await evaluateJson(file, '--loss', 'ppo'), ours);
      await fails(1, [file, '--loss', 'ppo', '--backend', 'tinker'], /logprob/);
    });

    it('--skip-bad-rows skips, reports and counts bad rows', async () => {
      const lines = ROWS.map((row) => JSON.stringify(row));
      const bad = [3, 50, 51, 52, 120, 200, 255];
      const file = fileOf(
        'bad.jsonl',
        lines.map((line, i) => (bad.includes(i) ? line.slice(0, 200) : line)),
      );
      await fails(1, [file, '--loss', 'ppo'], /bad\.jsonl, line 4: /);
      const { code, stdout, stderr } = await evaluate(file, '--loss', 'ppo', '--skip-bad-rows', '--json');
      assert.equal(code, 0);
      const good = ROWS.filter((_, i) => !bad.includes(i));
      assert.deepEqual(JSON.parse(stdout), {
        ...(await fromLibrary('ppo', {}, good)),
        advantages: 'grpo',
        skipped: 7,
      });
      const [first, ...others] = stderr.trimEnd().split('\n');
      assert.match(first!, /^skipped: .*bad\.jsonl, line 4: expected a JSON object/);
      assert.equal(others.length, 5);
      assert.equal(others.at(-1), 'skipped: 2 more');
      const parted = await evaluate(file, '--loss', 'ppo', '--skip-bad-rows', '-q', '--batch-tokens', '999');
      assert.equal(parted.stderr, '');
      assert.match(parted.stdout, /^rows skipped +7$/m);
      // Like errors, these messages spell options as flags.
      const long = await evaluate(file, '--loss', 'ppo', '--skip-bad-rows', '--max-row-tokens', '40');
      assert.match(long.stderr, /^skipped: .* raise --max-row-tokens$/m);
    });

    it('--strict makes errors of warnings, which are printed once', async () => {
      const lines = ROWS.map((row) => JSON.stringify(row));
      const twice = lines.map((line, i) => (i === 7 || i === 9 ? line.replace('{', '{"reward":5,') : line));
      const file = fileOf('twice.jsonl', twice);
      const ours = await evaluate(EXAMPLE, '--loss', 'ppo', '--json');
      for (const words of [[], ['--batch-tokens', '999']]) {
        const { code, stdout, stderr } = await evaluate(file, '--loss', 'ppo', '--json', ...words);
        assert.equal(code, 0);
        assert.match(
          stderr,
          /^warning: .*twice\.jsonl, line 8: reward: expected one value, got two\. The last one counts\n$/,
        );
        if (words.length === 0) assert.equal(stdout, ours.stdout);
      }
      assert.equal((await evaluate(file, '--loss', 'ppo', '--quiet')).stderr, '');
      await fails(1, [file, '--loss', 'ppo', '--strict'], /line 8: reward: expected one value, got two$/m);
      const skipped = await evaluateJson(file, '--loss', 'ppo', '--strict', '--skip-bad-rows', '-q');
      assert.equal(skipped.skipped, 2);
    });

    it('--max-row-tokens and --max-rows limit what a file may hold', async () => {
      const longest = Math.max(...ROWS.map(({ logprobs }) => logprobs.length));
      const words = [EXAMPLE, '--loss', 'ppo'];
      await evaluateJson(...words, '--max-row-tokens', String(longest), '--max-rows', String(ROWS.length));
      await fails(
        1,
        [...words, '--max-row-tokens', String(longest - 1)],
        /logprobs: expected at most \d+ tokens in a row, got \d+\. If the row is correct, raise --max-row-tokens/,
      );
      await fails(
        1,
        [...words, '--max-rows', String(ROWS.length - 1)],
        /expected at most 255 rows, got more\. If memory suffices, raise --max-rows/,
      );
      await fails(2, [...words, '--max-rows', '0'], /--max-rows.*whole number/);
    });

    it('--device reports a missing device as bad usage before it reads files', async () => {
      await fails(
        2,
        ['nowhere.jsonl', '--loss', 'ppo', '--device', 'cuda:99'],
        /--device: expected one of cpu.*'cuda:99'/,
      );
      assert.deepEqual(
        await evaluateJson(EXAMPLE, '--loss', 'ppo', '--device', 'cpu'),
        await evaluateJson(EXAMPLE, '--loss', 'ppo'),
      );
    });

    it('--batch-tokens must be a whole number', () =>
      fails(2, [EXAMPLE, '--loss', 'ppo', '--batch-tokens', '1.5'], /--batch-tokens.*whole number/));

    it('accepts glob patterns for files', async () => {
      fileOf('shard-1.jsonl', ROWS.slice(0, 77));
      fileOf('shard-2.jsonl', ROWS.slice(77));
      assert.deepEqual(
        await evaluateJson(files.path('shard-*.jsonl'), '--loss', 'ppo'),
        await evaluateJson(EXAMPLE, '--loss', 'ppo'),
      );
      await fails(1, [files.path('shred-*.jsonl'), '--loss', 'ppo'], /shred-\*\.jsonl/);
    });
  });
});
