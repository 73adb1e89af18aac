/**
 * Tests `--loss-file`: the losses of a user's module must behave like the package's own losses on the command line. The
 * modules are in a folder inside the repository, because they import the package by its name.
 */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { ADVANTAGE_FN, lossFromExpression } from '../../../lib/index.js';
import { assertFailed, batchOf, EXAMPLE, norm, ROOT, ROWS, resultOf, runProcess, TOKENS } from './support.js';

const EXAMPLE_FILE = join(ROOT, 'examples', 'my-losses.mjs');
const USE = ['--loss-file', EXAMPLE_FILE];

const PENALISED = 'max(-A*r, -A*clip(r, 1-range, 1+range)) + beta*square(d)';
const PENALISED_METRICS = { pg_clipfrac: 'abs(r-1) > range', penalty: 'square(d)' };

// The program runs in a process of its own, because a loss that it registers stays registered in its process.
const run = runProcess;
const runJson = async (...words: string[]) => resultOf(await run(...words, '--json'));
const fails = async (code: 1 | 2, words: readonly string[], ...says: RegExp[]) =>
  assertFailed(await run(...words), code, ...says);

/** Computes the first loss of the example file from its formula. */
async function penalised(range: number, beta: number) {
  const batch = batchOf(ROWS);
  const { advantages } = ADVANTAGE_FN.create('grpo').computeSync(batch);
  const fn = lossFromExpression(PENALISED, { options: { range, beta }, metrics: PENALISED_METRICS });
  const { loss, metrics, grad } = await fn.compute({ ...batch, advantages }, { grad: true });
  return { loss, metrics, gradNorm: norm(grad!) };
}

describe('policy-loss --loss-file', () => {
  let folder: string;
  before(() => {
    mkdirSync(join(ROOT, 'build'), { recursive: true });
    folder = mkdtempSync(join(ROOT, 'build', 'losses-'));
  });
  after(() => rmSync(folder, { recursive: true }));

  /** Writes a module into the folder and returns its path. */
  function write(name: string, code: string): string {
    const file = join(folder, name);
    writeFileSync(file, code);
    return file;
  }

  it('evaluates a loss of the file, with its options and metrics', async () => {
    const { loss, metrics, gradNorm } = await penalised(0.1, 0.3);
    const words = ['--loss', 'penalised', '--clip-range', '0.1', '--beta', '0.3'];
    assert.deepEqual(await runJson('evaluate', EXAMPLE, ...USE, ...words), {
      name: 'penalised',
      loss,
      metrics,
      rows: ROWS.length,
      tokens: TOKENS,
      gradNorm,
      advantages: 'grpo',
    });
    const file = relative(process.cwd(), EXAMPLE_FILE);
    const byDefault = await runJson('evaluate', EXAMPLE, `--loss-file=${file}`, '--loss', 'penalised');
    assert.equal(byDefault.loss, (await penalised(0.2, 0.1)).loss);
  });

  it('compares and sweeps losses of the file', async () => {
    const { subjects } = await runJson(
      ...['compare', EXAMPLE, ...USE, '--loss', 'ppo', '--loss', 'row_ratio', '--high', '0.05'],
    );
    assert.deepEqual(
      subjects.map(({ name }: { name: string }) => name),
      ['ppo', 'row_ratio'],
    );
    const { axes, points } = await runJson(
      ...['sweep', EXAMPLE, ...USE, '--loss', 'penalised', '--beta', '0:0.2:0.1'],
    );
    assert.deepEqual(axes, { beta: [0, 0.1, 0.2] });
    for (const { options, loss } of points) assert.equal(loss, (await penalised(0.2, options.beta)).loss);
  });

  it('uses a loss of the file in an algorithm', async () => {
    const words = ['--algorithm', 'grpo', '--policy-loss-fn', 'penalised', '--beta', '0.3', '--kl-coef', '0'];
    const { loss, algorithm } = await runJson('evaluate', EXAMPLE, ...USE, ...words);
    assert.equal(algorithm.policyLossFn, 'penalised');
    assert.ok(Math.abs(loss - (await penalised(0.2, 0.3)).loss) < 1e-6);
  });

  it('describes the losses of the file', async () => {
    const [entry] = await runJson('list', 'penalised', ...USE);
    assert.equal(entry.about, 'ℓ = max(−A·r, −A·clip(r)) + beta·(ln r)²');
    assert.deepEqual(entry.options, { clip_range: 0.2, beta: 0.1, loss_agg_mode: 'token-mean' });
    assert.deepEqual(entry.reads, ['old_logprob', 'advantages', 'action_mask']);
    const { stdout } = await run('evaluate', ...USE, '--loss', 'penalised', '--help');
    assert.match(stdout, /Options of penalised:/);
    assert.match(stdout, /--beta <value> +penalty on a squared nat of log-ratio; a number of\s+at least 0/);
    assert.equal((await run('list', 'row_ratio', ...USE)).code, 0);
  });

  it('checks the options of a loss', async () => {
    const words = ['evaluate', EXAMPLE, ...USE, '--loss', 'penalised'];
    await fails(2, [...words, '--beta', '-1'], /--beta: expected a number of at least 0, got number -1/);
    await fails(
      2,
      [...words, '--bata', '1'],
      /^error: Did you mean '--beta'\? unknown option of penalised: got '--bata'/,
    );
    await fails(2, ['evaluate', EXAMPLE, ...USE, '--loss', 'penalized'], /Did you mean 'penalised'/);
  });

  it('registers the exports of several files, each loss once', async () => {
    const define = (name: string) => `defineLoss('${name}', { loss: '-A*r' })`;
    const first = write(
      'first.mjs',
      `import { defineLoss } from 'policy-loss';
       export const a = ${define('first_a')}; export default a; export const b = ${define('first_b')};
       export const other = 3;`,
    );
    const second = write(
      'second.cjs',
      `const { defineLoss, POLICY_LOSS_FN } = require('policy-loss');
       module.exports = { own: ${define('second')} };
       POLICY_LOSS_FN.register('second', module.exports.own);`,
    );
    const { subjects } = await runJson(
      ...['compare', EXAMPLE, '--loss-file', first, '--loss', 'first_a', '--loss', 'first_b'],
      ...['--loss-file', second, '--loss', 'second'],
    );
    assert.equal(subjects.length, 3);
    for (const { loss } of subjects) assert.equal(loss, subjects[0].loss);
  });

  it('evaluates losses of values and of rewards', async () => {
    const file = write(
      'critics.mjs',
      `import { defineLoss } from 'policy-loss';
       const options = { c: { type: 'number', default: 0.5, help: 'the weight' } };
       export const A = defineLoss('squares', { options, loss: 'c*square(value - returns)' });
       export const B = defineLoss('better', { loss: '-logsigmoid(chosen(reward) - rejected(reward))' });`,
    );
    const rows = write(
      'rows.jsonl',
      '{"values": [1, 2], "returns": [2, 4], "reward": 1}\n{"values": [0], "returns": [1], "reward": 1}\n',
    );
    const words = ['evaluate', rows, '--loss-file', file, '--loss'];
    const { loss, variable } = await runJson(...words, 'squares', '--c', '0.25');
    assert.ok(Math.abs(loss - 0.5) < 1e-6);
    assert.equal(variable, 'values');
    const { loss: ofPair, variable: other } = await runJson(...words, 'better');
    assert.ok(Math.abs(ofPair - Math.LN2) < 1e-7);
    assert.equal(other, 'rewards');
  });

  it('does not overwrite the file', async () => {
    const file = write('kept.mjs', readFileSync(EXAMPLE_FILE, 'utf8').replaceAll("'penalised'", "'kept'"));
    writeFileSync(file, readFileSync(file, 'utf8').replaceAll("'row_ratio'", "'kept_ratio'"));
    const words = ['--loss-file', file, '--loss', 'kept', '--report', file];
    await fails(2, ['evaluate', EXAMPLE, ...words], /--report .*: expected a file other than the files/);
  });

  describe('fails for', () => {
    const refused = (code: 1 | 2, file: string, ...says: RegExp[]) =>
      fails(code, ['evaluate', EXAMPLE, '--loss-file', file, '--loss', 'ppo'], ...says);

    it('a missing file', () =>
      refused(
        1,
        join(folder, 'none.mjs'),
        /none\.mjs: expected a module that can be imported, got nothing: no such file/,
      ));
    it('a module that does not compile', () =>
      refused(
        1,
        write('syntax.mjs', 'export const = 1'),
        /syntax\.mjs: expected a module that can be imported/,
      ));
    it('a module that throws', () =>
      refused(1, write('throws.mjs', "throw new Error('not today')"), /throws\.mjs.*not today/));
    it('an error in a definition', () =>
      refused(
        1,
        write(
          'text.mjs',
          "import { defineLoss } from 'policy-loss';\nexport const a = defineLoss('wrong', { loss: '-A*q' });",
        ),
        /text\.mjs.*wrong.*'q' at character 4/,
      ));
    it('a module without losses', async () => {
      await refused(1, write('empty.mjs', ''), /empty\.mjs: expected an export of a class .*got no exports/);
      await refused(1, write('numbers.mjs', 'export const a = 1, b = class {}'), /got the exports a, b/);
    });
    it("another loss's name", () =>
      refused(
        2,
        write(
          'taken.mjs',
          "import { defineLoss } from 'policy-loss';\nexport const a = defineLoss('ppo', { loss: '-A*r' });",
        ),
        /--loss-file .*taken\.mjs: expected losses with names of their own, got 'ppo'/,
      ));
    it('no file name', () =>
      fails(2, ['evaluate', EXAMPLE, '--loss', 'ppo', '--loss-file'], /--loss-file <file>.*missing/));
  });

  it('runs no file that another command, or an operand, names', async () => {
    const marker = join(folder, 'ran');
    const file = write(
      'runs.mjs',
      `import { writeFileSync } from 'node:fs'; writeFileSync(${JSON.stringify(marker)}, '')`,
    );
    await run('devices', '--loss-file', file);
    await run('evaluate', file, '--loss', 'ppo');
    await run('evaluate', '--loss', 'ppo', '--', '--loss-file', file);
    assert.throws(() => readFileSync(marker), /ENOENT/);
  });
});
