/** Tests that a loss or gradient that is not finite is printed as such, and that stderr names the first row with one. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { readRollouts } from '../../../lib/tools/rollouts/index.js';
import { Files, parseCsv, run } from './support.js';

const TOKENS = 3;
const ROWS = 7;

/** Writes tensors of float32 values to a safetensors file. */
function writeTensors(file: string, tensors: Record<string, Float32Array>): void {
  const header: Record<string, object> = {};
  let end = 0;
  for (const [name, values] of Object.entries(tensors)) {
    const start = end;
    end += values.byteLength;
    const shape = values.length === ROWS ? [ROWS] : [ROWS, TOKENS];
    header[name] = { dtype: 'F32', shape, data_offsets: [start, end] };
  }
  const json = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  const bodies = Object.values(tensors).map(({ buffer }) => Buffer.from(buffer as ArrayBuffer));
  writeFileSync(file, Buffer.concat([length, json, ...bodies]));
}

describe('a loss that is not finite', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());

  /** Writes rows with one value replaced, in the column and at the token given. */
  function fileWith(column: string, token: number, value: number, masked = false): string {
    const size = ROWS * TOKENS;
    const tensors: Record<string, Float32Array> = {
      logprobs: Float32Array.from({ length: size }, (_, t) => -1 - t / size),
      old_logprobs: Float32Array.from({ length: size }, (_, t) => -1.1 - t / size),
      ref_logprobs: new Float32Array(size).fill(-1),
      entropy: new Float32Array(size).fill(0.5),
      advantages: new Float32Array(size).fill(1),
      action_mask: new Float32Array(size).fill(1),
    };
    tensors[column]![token] = value;
    if (masked) tensors.action_mask![token] = 0;
    const file = files.path(`${column}-${token}-${value}-${masked}.safetensors`);
    writeTensors(file, tensors);
    return file;
  }

  it('is printed as NaN in every form, and stderr names the first row with one', async () => {
    const file = fileWith('logprobs', 4 * TOKENS + 1, Number.NaN);
    const warning = `warning: ppo: the loss is NaN, first because of ${file}, row 5, where logprobs[1] is NaN\n`;
    for (const parts of [[], ['--batch-tokens', '3'], ['--batch-tokens', '6']]) {
      const words = ['evaluate', file, '--loss', 'ppo', ...parts];
      const table = await run(...words);
      assert.match(table.stdout, /^loss +NaN$/m);
      assert.match(table.stdout, /^gradient norm +NaN$/m);
      const json = await run(...words, '--json');
      const { loss, gradNorm, metrics } = JSON.parse(json.stdout);
      assert.deepEqual({ loss, gradNorm, kl: metrics.ppo_kl }, { loss: 'NaN', gradNorm: 'NaN', kl: 'NaN' });
      const csv = await run(...words, '--csv');
      assert.equal(parseCsv(csv.stdout)[0]!.loss, 'NaN');
      for (const { code, stderr } of [table, json, csv]) {
        assert.equal(stderr, warning);
        assert.equal(code, 0);
      }
    }
  });

  it('is explained by every column that the loss reads, and by no masked value', async () => {
    for (const [column, value] of [
      ['old_logprobs', Number.NaN],
      ['advantages', Number.NaN],
      ['ref_logprobs', Number.NaN],
      ['entropy', Number.NEGATIVE_INFINITY],
    ] as const) {
      const words = ['--algorithm', 'grpo', '--entropy-coef', '0.1'];
      const { stderr } = await run('evaluate', fileWith(column, 20, value), ...words);
      assert.ok(stderr.endsWith(`, row 7, where ${column}[2] is ${value}\n`), stderr);
      const masked = await run('evaluate', fileWith(column, 20, value, true), ...words);
      assert.equal(masked.stderr, '');
      assert.doesNotMatch(masked.stdout, /NaN|Infinity/);
    }
  });

  it('is named even if all values of the row are finite', async () => {
    // The product of the advantage and the ratio overflows.
    const file = fileWith('advantages', 6, -3.4e38);
    const { stdout, stderr } = await run('evaluate', file, '--loss', 'importance_sampling');
    assert.match(stdout, /^loss +Infinity$/m);
    assert.equal(
      stderr,
      `warning: importance_sampling: the loss is Infinity, first because of ${file}, row 3\n`,
    );
  });

  it('is reported once for several losses, and not with --quiet', async () => {
    const file = fileWith('logprobs', 0, Number.NaN);
    const words = [file, '--loss', 'sft', '--loss', 'ppo'];
    const { stdout, stderr } = await run('compare', ...words, '--json');
    const { subjects, cosines } = JSON.parse(stdout);
    assert.deepEqual(
      subjects.map(({ loss }: { loss: unknown }) => loss),
      ['NaN', 'NaN'],
    );
    assert.equal(cosines[0][1], 'NaN');
    assert.equal(
      stderr,
      `warning: sft: the loss is NaN, first because of ${file}, row 1, where logprobs[0] is NaN\n`,
    );
    assert.equal((await run('compare', ...words, '--json', '--quiet')).stderr, '');
    const sweep = await run('sweep', file, '--loss', 'ppo', '--clip-range', '0.1,0.2', '--json');
    assert.equal(JSON.parse(sweep.stdout).points[1].loss, 'NaN');
    assert.equal(sweep.stderr.match(/^warning/gm)!.length, 1);
  });

  it('leaves its gradients readable', async () => {
    const file = fileWith('logprobs', 4, Number.NaN);
    const words = ['gradients', file, '--loss', 'ppo', '--ids', 'reward', '--out'];
    const lines = files.path('nan.jsonl');
    const { stderr } = await run(...words, lines);
    assert.match(
      stderr,
      /^warning: ppo: the loss is NaN, first because of .*, row 2, where logprobs\[1\] is NaN\n$/,
    );
    const rows = readFileSync(lines, 'utf8').trimEnd().split('\n');
    assert.equal(JSON.parse(rows[1]!).grad[1], 'NaN');
    const table = files.path('nan.parquet');
    await run(...words, table);
    const { batch } = await readRollouts([table], { rename: { logprobs: 'grad' } });
    assert.ok(Number.isNaN(batch.logprob[4]));
  });

  it('names a number of the row that is not finite', async () => {
    const file = files.write('rewards.jsonl', [
      { logprobs: [-1], old_logprobs: [-1], reward: 1 },
      { logprobs: [-1], old_logprobs: [-1], reward: null },
    ]);
    const { stderr } = await run('evaluate', file, '--loss', 'verl/self_play_sppo');
    assert.equal(
      stderr,
      `warning: verl/self_play_sppo: the loss is NaN, first because of ${file}, line 2, where reward is NaN\n`,
    );
  });
});
