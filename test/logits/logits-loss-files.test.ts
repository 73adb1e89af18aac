/** Tests the computation of losses of logits from files, whose tensors are read a number of rows at a time. */
import assert from 'node:assert/strict';
import { toSnakeCase } from '../../lib/base/options.js';
import { type Batch, KeyMapper, LOGITS_LOSS_FN } from '../../lib/index.js';
import { type LogitsLossFileOptions, logitsLossOfFiles } from '../../lib/tools/parts/index.js';
import { Fields } from '../fuzz-files/fields.js';
import { safetensorsOf, type Tensor } from '../fuzz-files/tensor-files.js';
import { drawLogits, everyLogitsLoss, type Tested } from '../matrix/logits-oracles.js';
import { type LogitsBatchSpec, layLogits } from '../support/logits-losses.js';
import { tensorsOf } from '../support/logits-tensors.js';
import { isLossError } from '../support/loss-error.js';
import { temporaryFolder } from '../support/temporary-folder.js';
import { assertSameArray } from '../support/tolerance.js';

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
function batchFor({ name, args, fn }: Tested, dtype: 'float32' | 'bfloat16', spec = SPEC): Batch {
  const { shape, ...inputs } = layLogits(drawLogits({ name, args }, spec), dtype);
  const reads = [fn.variable, ...fn.selectKeys].map((key) => KeyMapper.get('verl').toTrinity(key));
  const read = Object.entries(inputs).filter(([key]) => reads.includes(toSnakeCase(key)));
  return { shape, ...Object.fromEntries(read) } as Batch;
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
});
