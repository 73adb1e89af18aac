/**
 * Tests `policy-loss compare`. Each subject's results, and the cosines between gradients, must equal the library's. A
 * subject is a loss, an algorithm or a configuration.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { ALGORITHM_TYPE } from '../../../lib/index.js';
import {
  batchOf,
  computedLoss,
  EXAMPLE,
  Files,
  fails,
  fromLibrary,
  fromObjective,
  functionsOf,
  parseCsv,
  ROWS,
  run,
  runJson,
  sixDigits,
  TOKENS,
  TRINITY,
} from './support.js';

const COMPARED = ['--loss', 'ppo', '--loss', 'gspo', '--loss', 'sft', '--algorithm', 'grpo'];

/** Returns the cosine of the angle between two float32 gradients, computed in float64. */
function cosine(a: Float32Array, b: Float32Array): number {
  const dot = (x: Float32Array, y: Float32Array) => x.reduce((sum, value, i) => sum + value * y[i]!, 0);
  return dot(a, b) / Math.sqrt(dot(a, a)) / Math.sqrt(dot(b, b));
}

async function gradients(): Promise<Float32Array[]> {
  const losses = await Promise.all(['ppo', 'gspo', 'sft'].map((name) => computedLoss(name)));
  const { grad } = await ALGORITHM_TYPE.get('grpo').objective().compute(batchOf(ROWS), { grad: true });
  return [...losses.map(({ grad }) => grad), grad!];
}

describe('policy-loss compare', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());

  it("prints the library's results to the bit, with clipped fractions", async () => {
    const { subjects, rows, tokens } = await runJson('compare', EXAMPLE, ...COMPARED);
    assert.deepEqual([rows, tokens], [ROWS.length, TOKENS]);
    const losses = await Promise.all(['ppo', 'gspo', 'sft'].map((name) => fromLibrary(name)));
    const grpo = await fromObjective(ALGORITHM_TYPE.get('grpo').objective());
    assert.deepEqual(subjects, [
      ...losses.map(({ name, loss, metrics, gradNorm }) => ({
        name,
        options: {},
        loss,
        gradNorm,
        ...('pg_clipfrac' in metrics && { clipFraction: metrics.pg_clipfrac }),
        metrics,
        ...(name !== 'sft' && { advantages: 'grpo' }),
      })),
      {
        name: 'grpo',
        options: {},
        loss: grpo.loss,
        gradNorm: grpo.gradNorm,
        clipFraction: grpo.metrics.pg_clipfrac,
        metrics: grpo.metrics,
        advantages: 'grpo',
        algorithm: functionsOf('grpo'),
      },
    ]);
  });

  it('prints the same cosines between gradients for any parts', async () => {
    const all = await gradients();
    for (const words of [[], ['--batch-tokens', '600']]) {
      const { cosines, batches } = await runJson('compare', EXAMPLE, ...COMPARED, ...words);
      assert.equal(batches === undefined, words.length === 0);
      all.forEach((a, i) => {
        all.forEach((b, j) => {
          const expected = cosine(a, b);
          assert.ok(Math.abs(cosines[i][j] - expected) < 1e-6, `${cosines[i][j]}, not ${expected}`);
        });
        assert.equal(cosines[i][i], 1);
      });
    }
  });

  it('prints the same bits for parts, and for a plan with several shards', async () => {
    const { batches: _, ...alone } = await runJson('compare', EXAMPLE, ...COMPARED);
    const { batches, ...parted } = await runJson('compare', EXAMPLE, ...COMPARED, '--batch-tokens', '600');
    assert.ok(batches > 5);
    assert.deepEqual(parted, alone);
    const [plan, parts] = [files.path('plan.json'), files.path('parts')];
    const planned = await runJson('plan', EXAMPLE, ...COMPARED, '--shard-size', '50K', '--out', plan);
    assert.equal(planned.name, 'ppo, gspo, sft, grpo');
    await runJson('run', plan, '--out', parts);
    const { batches: shards, ...merged } = await runJson('merge', plan, parts);
    assert.equal(shards, planned.shards);
    assert.deepEqual(merged, alone);
  });

  it('prints null for the angle to a zero gradient', async () => {
    const { cosines } = await runJson(
      ...['compare', EXAMPLE, '--loss', 'topr', '--loss', 'ppo', '--algorithm', 'sft'],
      ...['--policy-loss-fn', 'dpo', '--beta', '0', '--kl-coef', '0'],
    );
    assert.deepEqual(cosines[2], [null, null, null]);
    assert.deepEqual([cosines[0][2], cosines[1][2]], [null, null]);
    assert.equal(cosines[0][0], 1);
  });

  it('applies options to the subject before them, or to all if they come first', async () => {
    const { subjects } = await runJson(
      ...['compare', '--loss-agg-mode', 'seq-mean-token-sum', EXAMPLE],
      ...['--loss', 'ppo', '--clip-range', '0.05'],
      ...['--loss=ppo', '--clip-range-low=0.01', '--clip-range-high', '0.02'],
      ...['--algorithm', 'rloo', '--kl-coef', '0.1', '--kl-loss-fn=k3'],
    );
    const mode = { lossAggMode: 'seq-mean-token-sum' };
    const first = await fromLibrary('ppo', { ...mode, clipRange: 0.05 });
    const second = await fromLibrary('ppo', { ...mode, clipRangeLow: 0.01, clipRangeHigh: 0.02 });
    const third = await fromObjective(
      ALGORITHM_TYPE.get('rloo').objective({
        kl_loss_fn: 'k3',
        kl_loss_fn_args: { kl_coef: 0.1 },
        loss_agg_mode: 'seq-mean-token-sum',
      }),
    );
    assert.deepEqual(
      subjects.map(({ loss }: { loss: number }) => loss),
      [first.loss, second.loss, third.loss],
    );
    assert.deepEqual(
      subjects.map(({ options }: { options: object }) => options),
      [
        { 'loss-agg-mode': 'seq-mean-token-sum', 'clip-range': 0.05 },
        { 'loss-agg-mode': 'seq-mean-token-sum', 'clip-range-low': 0.01, 'clip-range-high': 0.02 },
        { 'loss-agg-mode': 'seq-mean-token-sum', 'kl-coef': 0.1, 'kl-loss-fn': 'k3' },
      ],
    );
  });

  it('compares configurations', async () => {
    const { subjects } = await runJson('compare', EXAMPLE, '--config', TRINITY, '--loss', 'ppo');
    const alone = await runJson('evaluate', EXAMPLE, '--config', TRINITY);
    assert.equal(subjects[0].loss, alone.loss);
    assert.deepEqual(subjects[0].algorithm, alone.algorithm);
  });

  it('prints tables side by side, and the cosines', async () => {
    const { code, stdout, stderr } = await run('compare', EXAMPLE, '--loss', 'ppo', '--loss', 'gspo');
    assert.equal(code, 0);
    assert.equal(stderr, '');
    const [ppo, gspo] = await Promise.all(['ppo', 'gspo'].map((name) => fromLibrary(name)));
    const [numbers, cosines, counts] = stdout.trimEnd().split('\n\n');
    const lines = numbers!.split('\n').map((line) => line.trim().split(/ {2,}/));
    assert.deepEqual(lines.slice(0, 4), [
      ['ppo', 'gspo'],
      ['loss', sixDigits(ppo!.loss), sixDigits(gspo!.loss)],
      ['gradient norm', sixDigits(ppo!.gradNorm), sixDigits(gspo!.gradNorm)],
      ['fraction clipped', sixDigits(ppo!.metrics.pg_clipfrac!), sixDigits(gspo!.metrics.pg_clipfrac!)],
    ]);
    assert.ok(lines.some(([name, , other]) => name === 'pg_clipfrac_lower' && other === '–'));
    assert.match(cosines!, /^cosine of gradients +ppo +gspo\nppo +1\.0000 +0\.\d{4}\n/);
    assert.equal(counts, `${ROWS.length} rows, ${TOKENS} tokens`);
  });

  it('prints CSV with a line per subject', async () => {
    const { stdout } = await run('compare', EXAMPLE, ...COMPARED, '--csv');
    const lines = parseCsv(stdout);
    const { subjects, cosines } = await runJson('compare', EXAMPLE, ...COMPARED);
    assert.deepEqual(
      lines.map(({ name, loss, gradNorm }) => [name, Number(loss), Number(gradNorm)]),
      subjects.map((s: { name: string; loss: number; gradNorm: number }) => [s.name, s.loss, s.gradNorm]),
    );
    assert.equal(lines[2]!.pg_clipfrac, '');
    assert.equal(Number(lines[0]!['cosine gspo']), cosines[0][1]);
  });

  it('numbers subjects with equal names', async () => {
    const { stdout } = await run('compare', EXAMPLE, '--loss', 'ppo', '--loss', 'ppo', '--csv');
    assert.deepEqual(
      parseCsv(stdout).map(({ name }) => name),
      ['ppo (1)', 'ppo (2)'],
    );
  });

  it('writes a report', async () => {
    const file = files.path('report.html');
    const { code } = await run('compare', EXAMPLE, ...COMPARED, '--report', file);
    assert.equal(code, 0);
    assert.match(readFileSync(file, 'utf8'), /^<!doctype html>/i);
    await fails(
      2,
      ['compare', 'nowhere.jsonl', ...COMPARED, '--report', files.path('no/where.html')],
      /--report .*where\.html: expected a file that can be written/,
    );
  });

  it('rejects bad usage', async () => {
    await fails(2, ['compare', EXAMPLE], /expected two or more of --loss <name>/);
    await fails(
      2,
      ['compare', EXAMPLE, '--loss', 'ppo'],
      /got only --loss ppo\. Use 'policy-loss evaluate' for one/,
    );
    await fails(2, ['compare', EXAMPLE, '--loss', 'ppo', '--loss', 'gspoo'], /Did you mean 'gspo'/);
    await fails(
      2,
      ['compare', EXAMPLE, '--loss', 'ppo', '--loss', 'sft', '--clip-range', '1'],
      /unknown option of sft: .*'--clip-range'/,
    );
    await fails(
      2,
      ['compare', '--clip-range', '0.1', EXAMPLE, '--loss', 'ppo', '--loss', 'sft'],
      /unknown option of sft: .*'--clip-range'/,
    );
    await fails(2, ['compare', '--loss', 'ppo', '--loss', 'gspo'], /missing required argument 'files'/);
    await fails(
      2,
      ['compare', EXAMPLE, '--loss', 'ppo', '--config', TRINITY, '--kl-coef', '1'],
      /--kl-coef: expected no further option with --config/,
    );
  });
});
