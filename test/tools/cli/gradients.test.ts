/**
 * Tests `policy-loss gradients`. The files must contain the gradient of every token, equal to the library's to the last
 * bit, and the ids of each row.
 */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { ALGORITHM_TYPE } from '../../../lib/index.js';
import { assertRounded } from '../../support/half.js';
import {
  batchOf,
  computedLoss,
  EXAMPLE,
  Files,
  fails,
  fromLibrary,
  ROWS,
  run,
  runJson,
  TOKENS,
} from './support.js';

interface GradientRow {
  grad: number[];
  grad_entropy?: number[];
  [id: string]: unknown;
}

const rowsOf = (text: string): GradientRow[] =>
  text
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line));

/** Splits a gradient of the example file's tokens into the gradients of its rows. */
function byRow(grad: Float32Array): number[][] {
  const { cuSeqlens } = batchOf(ROWS);
  return ROWS.map((_, b) => [...grad.subarray(cuSeqlens[b], cuSeqlens[b + 1])]);
}

/** Reads the tensors of a safetensors file without any code under test. */
function tensorsOf(file: string): Record<string, { dtype: string; shape: number[]; bytes: Uint8Array }> {
  const data = readFileSync(file);
  const size = Number(data.readBigUInt64LE(0));
  const { __metadata__: _, ...header } = JSON.parse(data.toString('utf8', 8, 8 + size));
  return Object.fromEntries(
    Object.entries(header).map(([name, about]) => {
      const { dtype, shape, data_offsets } = about as {
        dtype: string;
        shape: number[];
        data_offsets: [number, number];
      };
      return [
        name,
        {
          dtype,
          shape,
          bytes: Uint8Array.from(data.subarray(8 + size + data_offsets[0], 8 + size + data_offsets[1])),
        },
      ];
    }),
  );
}

describe('policy-loss gradients', () => {
  let files: Files;
  before(() => {
    files = new Files();
  });
  after(() => files.remove());

  it("writes the library's gradients and the row ids as JSON lines", async () => {
    const out = files.path('ppo.jsonl');
    const said = await runJson('gradients', EXAMPLE, '--loss', 'ppo', '--out', out);
    const { loss, gradNorm } = await fromLibrary('ppo');
    const { grad } = await computedLoss('ppo');
    assert.deepEqual(said, {
      name: 'ppo',
      file: out,
      loss,
      gradNorm,
      rows: ROWS.length,
      tokens: TOKENS,
      bytes: readFileSync(out).length,
    });
    const expected = byRow(grad);
    assert.deepEqual(
      rowsOf(readFileSync(out, 'utf8')).map(({ grad, ...ids }) => ({ ...ids, grad: grad.map(Math.fround) })),
      ROWS.map(({ task_id, run_id }, b) => ({
        file: EXAMPLE,
        row: b + 1,
        task_id,
        run_id,
        grad: expected[b],
      })),
    );
  });

  it("writes the library's gradients as safetensors", async () => {
    const out = files.path('gspo.safetensors');
    await runJson('gradients', EXAMPLE, '--loss', 'gspo', '-o', out);
    const { grad, cu_seqlens } = tensorsOf(out);
    const expected = (await computedLoss('gspo')).grad;
    assert.equal(grad!.dtype, 'F32');
    assert.deepEqual(grad!.shape, [TOKENS]);
    assert.deepEqual(new Float32Array(grad!.bytes.buffer), expected);
    assert.deepEqual(cu_seqlens!.shape, [ROWS.length + 1]);
  });

  for (const dtype of ['float16', 'bfloat16'] as const)
    it(`writes gradients of ${dtype}, also of a plan`, async () => {
      const out = files.path(`${dtype}.safetensors`);
      const said = await runJson('gradients', EXAMPLE, '--loss', 'gspo', '--dtype', dtype, '-o', out);
      const { gradNorm } = await fromLibrary('gspo');
      assert.equal((said as { gradNorm: number }).gradNorm, gradNorm);
      const { grad } = await computedLoss('gspo');
      const written = tensorsOf(out).grad!;
      assert.equal(written.dtype, dtype === 'float16' ? 'F16' : 'BF16');
      assertRounded({ data: new Uint16Array(written.bytes.buffer), dtype }, grad, dtype, 'grad');

      const plan = files.path(`${dtype}.json`);
      const parts = files.path(`${dtype}-parts`);
      const words = ['--gradients', 'safetensors', '--dtype', dtype, '--out', plan];
      await runJson('plan', EXAMPLE, '--loss', 'gspo', ...words);
      await runJson('run', plan, '--out', parts);
      assert.deepEqual(readFileSync(join(parts, 'gradients-00000.safetensors')), readFileSync(out));
    });

  it('refuses a dtype that the format lacks before it reads files', async () => {
    const says = /--dtype: expected float32 for a file that ends in \.jsonl, got float16\. .*\.safetensors/;
    const words = ['--loss', 'ppo', '--dtype', 'float16'];
    const out = files.path('half.jsonl');
    await fails(2, ['gradients', EXAMPLE, ...words, '--out', out], says);
    const queue = ['--queue', 'redis://localhost:1', '--parts', files.directory];
    await fails(2, ['gradients', EXAMPLE, ...words, '--out', out, ...queue], says);
    await fails(2, ['plan', EXAMPLE, ...words, '--gradients', 'jsonl', '--out', files.path('p.json')], says);
  });

  it('writes the gradients of the entropy loss', async () => {
    const out = files.path('entropy.jsonl.gz');
    const words = ['--algorithm', 'grpo', '--entropy-coef', '0.01', '--batch-tokens', '1000'];
    await runJson('gradients', EXAMPLE, ...words, '--out', out);
    const objective = ALGORITHM_TYPE.get('grpo').objective({ entropy_loss_fn_args: { entropy_coef: 0.01 } });
    const { grad, gradEntropy } = await objective.compute(batchOf(ROWS), { grad: true });
    const expected = { grad: byRow(grad!), grad_entropy: byRow(gradEntropy!) };
    rowsOf(gunzipSync(readFileSync(out)).toString()).forEach((row, b) => {
      for (const name of ['grad', 'grad_entropy'] as const)
        row[name]!.forEach((x, t) => {
          const whole = expected[name][b]![t]!;
          assert.ok(
            Math.abs(x - whole) <= 1e-6 * Math.abs(whole),
            `${name}[${t}] of row ${b}: ${x}, ${whole}`,
          );
        });
    });
  });

  it('writes the columns of --ids', async () => {
    const file = files.write(
      'uids.jsonl',
      ROWS.map((row, b) => ({ ...row, uid: `row ${b}`, meta: { b } })),
    );
    const out = files.path('uids-out.jsonl');
    const { code, stdout } = await run(
      'gradients',
      file,
      '--loss',
      'sft',
      '--ids',
      'uid, reward',
      '--out',
      out,
    );
    assert.equal(code, 0);
    assert.match(stdout, /^gradient norm +\d/m);
    assert.deepEqual(
      rowsOf(readFileSync(out, 'utf8')).map(({ grad: _, ...ids }) => ids),
      ROWS.map(({ reward }, b) => ({ file, row: b + 1, uid: `row ${b}`, reward })),
    );
  });

  it('leaves no new file and keeps an old one if the data are bad', async () => {
    const bad = files.write('bad.jsonl', [...ROWS, '{']);
    const out = files.path('never.jsonl');
    const words = ['gradients', bad, '--loss', 'ppo', '--batch-tokens', '900', '--out', out];
    await fails(1, words, /bad\.jsonl, line 257/);
    assert.ok(!existsSync(out));
    writeFileSync(out, 'of old');
    await fails(1, words, /bad\.jsonl, line 257/);
    assert.equal(readFileSync(out, 'utf8'), 'of old');
  });

  it('requires --out with a known file extension', async () => {
    await fails(2, ['gradients', EXAMPLE, '--loss', 'ppo'], /required option '-o, --out <file>'/);
    await fails(2, ['gradients', EXAMPLE, '--loss', 'ppo', '--out', 'x.txt'], /x\.txt.*\.safetensors/);
  });
});
