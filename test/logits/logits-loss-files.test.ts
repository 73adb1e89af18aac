/** Tests the computation of losses of logits from files, whose tensors are read a number of rows at a time. */
import assert from 'node:assert/strict';
import { closeSync, ftruncateSync, openSync, writeSync } from 'node:fs';
import { toSnakeCase } from '../../lib/base/options.js';
import { KeyMapper, LOGITS_LOSS_FN, type LogitsLossBatch, type LossErrorCode } from '../../lib/index.js';
import { type LogitsLossFileOptions, logitsLossOfFiles } from '../../lib/tools/parts/index.js';
import { Fields } from '../fuzz-files/fields.js';
import { F32, npy, npzOf, safetensorsOf, type Tensor } from '../fuzz-files/tensor-files.js';
import { drawLogits, everyLogitsLoss, type Tested } from '../matrix/logits-oracles.js';
import { runAlone } from '../support/alone.js';
import { type LogitsBatchSpec, layLogits } from '../support/logits-losses.js';
import { tensorsOf } from '../support/logits-tensors.js';
import { isLossError } from '../support/loss-error.js';
import { temporaryFolder } from '../support/temporary-folder.js';
import { assertSameArray } from '../support/tolerance.js';

const PARTS = new URL('../../lib/tools/parts/index.js', import.meta.url).href;
const INDEX = new URL('../../lib/index.js', import.meta.url).href;
const I32 = ['I32', '<i4'] as const;

const SPEC: LogitsBatchSpec = {
  seed: 3,
  rows: 5,
  columns: 6,
  vocabulary: 24,
  listed: 5,
  values: 'moderate',
  mask: 'random',
};

/** Returns what a loss reads of a drawn batch. */
function batchFor({ name, args, fn }: Tested, dtype: 'float32' | 'bfloat16', spec = SPEC): LogitsLossBatch {
  const { shape, ...inputs } = layLogits(drawLogits({ name, args }, spec), dtype);
  const reads = [fn.variable, ...fn.selectKeys].map((key) => KeyMapper.get('verl').toTrinity(key));
  const read = Object.entries(inputs).filter(([key]) => reads.includes(toSnakeCase(key)));
  return { shape, ...Object.fromEntries(read) } as LogitsLossBatch;
}

describe('files of logits of losses', () => {
  const folder = temporaryFolder();
  const write = (name: string, pieces: readonly Buffer[]) => folder.write(name, Buffer.concat(pieces));
  const safetensors = (tensors: Record<string, Tensor>, name = 'in.safetensors') =>
    write(name, safetensorsOf(Object.values(tensors), new Fields()));
  const inOne = (file: string, tensors: Record<string, Tensor>) =>
    Object.fromEntries(Object.keys(tensors).map((name) => [name, file]));

  async function compute(options: LogitsLossFileOptions) {
    const grads: number[] = [];
    let about: object = {};
    const result = await logitsLossOfFiles(options, (gradient) => {
      about = gradient;
      return async (values) => {
        grads.push(...values);
      };
    });
    return { ...result, grad: Float32Array.from(grads), about };
  }

  for (const on of everyLogitsLoss(2))
    it(`${on.title}: the bits of a single call, in parts of any size`, async () => {
      for (const dtype of ['float32', 'bfloat16'] as const) {
        const batch = batchFor(on, dtype);
        const expected = on.sync(batch);
        const tensors = tensorsOf(batch);
        const given = { loss: on.fn, name: on.title, tensors: inOne(safetensors(tensors), tensors) };
        const counts = on.fn.countSync(batch);
        for (const [batchBytes, parts] of on.fn.readsWholeBatch
          ? [[2 ** 20, 1] as const]
          : ([
              [1, 5],
              [6 * 24 * 4 * 2 * 2, undefined],
              [2 ** 20, 1],
            ] as const)) {
          const found = await compute({ ...given, batchBytes });
          if (parts) assert.equal(found.parts, parts);
          assert.ok(Object.is(found.loss, expected.loss), `${found.loss}, expected ${expected.loss}`);
          const { metrics } = LOGITS_LOSS_FN.get(on.name).declaration!;
          for (const [metric, value] of Object.entries(expected.metrics))
            if (metric in found.metrics || found.parts === 1 || !metrics[metric]?.when)
              assert.equal(found.metrics[metric], value, metric);
          assertSameArray(found.grad, expected.gradLogits as Float32Array, 'gradient');
          assert.deepEqual([found.rows, found.tokens, found.vocabulary], [5, counts.tokens, 24]);
          assert.deepEqual(found.about, { name: `grad_${on.fn.variable}`, shape: [5, 6, 24] });
        }
        if (!on.fn.readsWholeBatch) continue;
        await assert.rejects(
          compute({ ...given, batchBytes: 999 }),
          isLossError('ERR_INVALID_OPTION', /at least \d+, because .* reduces over all rows/),
        );
      }
    });

  const fn = LOGITS_LOSS_FN.create('verl/distill_topk');
  const on = { name: 'verl/distill_topk', args: {}, fn } as Tested;
  const batch = batchFor(on, 'float32');
  /** Computes the loss with some tensors replaced. */
  const withTensors = (changes: Record<string, Tensor | undefined>, tensors = {}, batchBytes = 1) => {
    const all = { ...tensorsOf(batch), ...changes };
    const present = Object.fromEntries(Object.entries(all).filter(([, tensor]) => tensor !== undefined));
    const file = safetensors(present as Record<string, Tensor>);
    return compute({
      loss: fn,
      name: on.name,
      tensors: { ...inOne(file, present as Record<string, Tensor>), ...tensors },
      batchBytes,
    });
  };
  const changed = (name: string, change: Partial<Tensor>): Record<string, Tensor> => ({
    [name]: { ...tensorsOf(batch)[name]!, ...change },
  });
  const numbers = ({ buffer }: { buffer: ArrayBufferLike }) => Buffer.from(buffer as ArrayBuffer);

  it('may be .npy and .npz files, with ids and masks of any dtype', async () => {
    const expected = await withTensors({});
    const { logits, ...others } = tensorsOf(batch);
    for (const isDeflated of [false, true])
      for (const [dtype, Values] of [
        [F32, Float32Array],
        [['F64', '<f8'], Float64Array],
        [I32, Int32Array],
      ] as const) {
        const of = Values.from(batch.actionMask as Uint8Array);
        const old = numbers(Float64Array.from(batch.oldLogprob as Float32Array));
        const arrays = {
          ...others,
          ...changed('action_mask', { dtype, data: numbers(of) }),
          ...changed('teacher_topk_ids', { dtype: I32, data: numbers(batch.teacherTopkIds as Int32Array) }),
          ...changed('old_logprobs', { dtype: ['F64', '<f8'], data: old }),
        };
        const npz = write('in.npz', npzOf(Object.values(arrays), isDeflated, new Fields()));
        const tensors = {
          ...inOne(npz, arrays),
          logits: write('logits.npy', npy(logits!, new Fields())),
          action_mask: `${npz}:action_mask`,
        };
        const found = await compute({ loss: fn, name: on.name, tensors, batchBytes: 2000 });
        assert.deepEqual({ ...found, parts: 5 }, expected);
      }
  });

  it('may have no rows, or no tokens', async () => {
    for (const shape of [
      [0, 6],
      [5, 0],
    ]) {
      const empty = (width: number) => ({ shape: [...shape, width], data: Buffer.alloc(0) });
      const { loss, tokens, grad } = await withTensors({
        ...changed('logits', empty(24)),
        ...changed('teacher_topk_ids', empty(5)),
        ...changed('teacher_topk_logprobs', empty(5)),
        ...changed('action_mask', { shape, data: Buffer.alloc(0) }),
        targets: undefined,
        old_logprobs: undefined,
        advantages: undefined,
      });
      assert.deepEqual([loss, tokens, grad.length], [0, 0, 0]);
    }
  });

  const ids = batch.teacherTopkIds as Int32Array;
  const mask = batch.actionMask as Uint8Array;
  const token = mask.lastIndexOf(1);
  const place = `${Math.floor(token / 6)}, ${token % 6}`;
  const int64 = (values: ArrayLike<number>) => numbers(BigInt64Array.from(Array.from(values), BigInt));
  const errors: [string, Record<string, Tensor | undefined>, LossErrorCode, RegExp][] = [
    [
      'an id outside of the vocabulary',
      changed('teacher_topk_ids', { data: int64(ids.with(token * 5 + 1, 24)) }),
      'ERR_INVALID_INPUT',
      new RegExp(
        `in\\.safetensors: teacher_topk_ids\\[${place}, 1\\]: expected a token id from 0 to 23.*, got 24`,
      ),
    ],
    [
      'an id of more than 32 bits',
      changed('teacher_topk_ids', { data: int64(Float64Array.from(ids).with(37, 2 ** 40)) }),
      'ERR_INVALID_INPUT',
      /teacher_topk_ids\[1, 1, 2\]: expected an integer of 32 bits, got 1099511627776/,
    ],
    [
      'a mask of other numbers',
      changed('action_mask', { dtype: ['U8', '|u1'], data: Buffer.from(mask.with(13, 2)) }),
      'ERR_INVALID_INPUT',
      /action_mask\[2, 1\]: expected 0 or 1, got 2/,
    ],
    [
      'logits of two dimensions',
      changed('logits', { shape: [30, 24] }),
      'ERR_SHAPE_MISMATCH',
      /in\.safetensors: logits: expected \[B, T, V\], got \[30, 24\]/,
    ],
    [
      'lists of another length',
      changed('teacher_topk_logprobs', { shape: [6, 5, 5] }),
      'ERR_SHAPE_MISMATCH',
      /teacher_topk_logprobs: expected \[5, 6, K\], because logits has shape \[5, 6, 24\], got \[6, 5, 5\]/,
    ],
    [
      'logits of integers',
      changed('logits', { dtype: I32 }),
      'ERR_INVALID_INPUT',
      /logits: expected floats of 16 or 32 bits \(dtype F32, F16, BF16\), got I32/,
    ],
    [
      'no logits',
      { logits: undefined },
      'ERR_INVALID_OPTION',
      /logits: expected V logits per token, got nothing/,
    ],
    [
      'no ids',
      { teacher_topk_ids: undefined },
      'ERR_INVALID_OPTION',
      /teacher_topk_ids: expected K token ids per token, got nothing/,
    ],
  ];
  for (const [title, changes, code, message] of errors)
    it(`are refused with ${title}`, async () => {
      await assert.rejects(withTensors(changes), isLossError(code, message));
    });

  it('are refused if the loss does not read them, or if they are not there', async () => {
    await assert.rejects(
      withTensors({}, { ref_logits: 'never.npy' }),
      isLossError('ERR_INVALID_OPTION', /ref_logits: expected only what verl\/distill_topk reads/),
    );
    const file = folder.path('in.safetensors');
    await assert.rejects(
      withTensors({}, { targets: `${file}:labels` }),
      isLossError('ERR_MISSING_INPUT', /in\.safetensors: expected a tensor labels/),
    );
  });

  it('need not fit into memory', function () {
    this.timeout(60_000);
    const shape = [96, 128, 8192];
    const file = folder.path('large.npy');
    const header = Buffer.concat(npy({ name: '', dtype: F32, shape, data: Buffer.alloc(0) }, new Fields()));
    const target = openSync(file, 'w');
    writeSync(target, header);
    ftruncateSync(target, header.length + 4 * shape.reduce((product, n) => product * n));
    closeSync(target);
    const { result, memory } = runAlone<{ loss: number; tokens: number; parts: number }>(
      `const { logitsLossOfFiles } = await import(given[0]);
       const { LOSS_FN } = await import(given[1]);
       const tensors = { logits: given[2], teacher_logits: given[2] };
       return logitsLossOfFiles({ loss: LOSS_FN.create('trl/gkd'), name: 'trl/gkd', tensors, batchBytes: 2 ** 24 });`,
      [PARTS, INDEX, file],
    );
    assert.deepEqual([result.loss, result.tokens, result.parts], [0, 96 * 128, 48]);
    assert.ok(memory < 400e6, `${memory} bytes`);
  });
});
