// Times calls that compute from logits in the memory of a device, and compares them with a copy of memory.
import type { NativeLogits } from '../../binding.js';
import { DTYPE_CODES } from '../../lib/batch/convert.js';
import { SFTLossFn, upload } from '../../lib/index.js';
import { benchNative } from '../lib/native.js';
import { type Contender, race, renamed } from '../lib/race.js';
import type { Times } from '../lib/report.js';
import { ratio, type TableContent } from '../lib/tables.js';
import { copyContender, DEVICE, type Effort } from './device.js';

type Size = readonly [rows: number, vocabulary: number];

const DTYPES = ['float32', 'bfloat16'] as const;
const FORWARD = 'log-probabilities and entropies';
const BACKWARD = 'the gradient, in place';
const READ = 'a copy that reads and writes as many bytes as the logits have';
const READ_AND_WRITE = 'a copy of the logits';

/** Returns a contender whose times are those of the kernels of a call. The device measures them. */
function logitsContender(name: string, call: NativeLogits): Contender {
  const timing = new Float64Array(1);
  return {
    name,
    time: (calls) =>
      Array.from({ length: calls }, () => {
        benchNative.logits({ ...call, timing });
        return timing[0]!;
      }),
  };
}

/** Times the calls for each size and dtype. The keys are like '512×151936 float32'. */
export async function timeLogits(
  sizes: readonly Size[],
  { rounds, mostCalls }: Effort,
): Promise<Record<string, Times>> {
  const results: Record<string, Times> = {};
  for (const [rows, vocabulary] of sizes) {
    const size = rows * vocabulary;
    // The memory of the logits is that of a gradient.
    using batch = await upload(
      {
        shape: [rows, vocabulary],
        logprob: new Float32Array(size).fill(-1),
        actionMask: new Uint8Array(size).fill(1),
      },
      `cuda:${DEVICE}`,
    );
    using grad = (await new SFTLossFn().compute(batch, { grad: 'device' })).deviceGrad!;
    for (const dtype of DTYPES) {
      const bytes = size * (dtype === 'float32' ? 4 : 2);
      const [data, code] = [grad.pointer, DTYPE_CODES[dtype]];
      const numbers = () => new Float64Array(rows);
      const shared = {
        ...{ rows, vocabulary, rowStride: vocabulary, data, dtype: code, device: DEVICE },
        ...{ targets: new Int32Array(rows), temperature: 1, temperatures: undefined, softcap: 0 },
        ...{ logsumexp: numbers(), entropy: new Float32Array(rows) },
      };
      const out = { out: data, outDtype: code, outStride: vocabulary };
      const contenders = [
        logitsContender(FORWARD, { ...shared, logprob: new Float32Array(rows) }),
        renamed(READ, copyContender('', bytes / 2)),
        logitsContender(BACKWARD, { ...shared, ...out, gradLogprob: numbers(), gradEntropy: numbers() }),
        renamed(READ_AND_WRITE, copyContender('', bytes)),
      ];
      results[`${rows}×${vocabulary} ${dtype}`] = await race(contenders, rounds, mostCalls);
    }
  }
  return results;
}

export function logitsTable(results: Record<string, Times>): TableContent {
  const microseconds = (times: Times, name: string) => (1e3 * times[name]!.median).toFixed(1);
  return {
    title:
      'From logits in the memory of the device: the kernels alone, and the speed relative to a copy of memory',
    head: ['logits', 'forward, µs', 'of the copy', 'gradient in place, µs', 'of the copy'],
    rows: Object.entries(results).map(([id, times]) => [
      id,
      microseconds(times, FORWARD),
      ratio(times[READ], times[FORWARD]),
      microseconds(times, BACKWARD),
      ratio(times[READ_AND_WRITE], times[BACKWARD]),
    ]),
  };
}
