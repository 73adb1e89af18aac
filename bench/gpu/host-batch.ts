// Times calls on batches in host memory: the upload to the device alone, and calls that upload the batch and evaluate
// it.
import { native } from '../../lib/core/native.js';
import { type Inputs, nativeBatch } from '../lib/batch.js';
import { callFor } from '../lib/native-calls.js';
import { type Contender, contender, race, syncContender } from '../lib/race.js';
import type { Times } from '../lib/report.js';
import { digits, gigabytesPerSecond, type TableContent } from '../lib/tables.js';
import type { Work } from '../lib/works.js';
import { DEVICE } from './device.js';
import type { Effort } from './functions.js';
import type { Torch } from './torch.js';

const PINNED = 'pinned memory to the device (PyTorch)';

/** The times of calls on a batch in host memory. */
export interface HostBatch {
  /** The number of bytes that one call copies to the device. */
  bytes: number;
  times: Times;
}

export async function timeHostBatch(
  work: Work,
  inputs: Inputs,
  torch: Torch | undefined,
  { rounds, mostCalls }: Effort,
): Promise<HostBatch> {
  const tokens = inputs.logprob.length;
  const batch = nativeBatch(inputs, work);
  const bytes = tokens * (4 * work.columns.length + 1);
  const fn = native.createFunction(work.spec);
  const evaluate = (grad: Float32Array | undefined) => {
    const call = { ...callFor(native, fn, batch, grad ? { grad } : {}), device: DEVICE };
    return () => native.evaluate(call);
  };
  const uploadAndRelease = async () => {
    const resident = await native.upload({ device: DEVICE, batch });
    if (resident !== -1) native.release(resident);
  };
  const contenders: Contender[] = [
    syncContender(`${work.id} of a host batch`, evaluate(undefined)),
    syncContender(`${work.id} of a host batch, gradient to the host`, evaluate(new Float32Array(tokens))),
    contender('upload()', uploadAndRelease),
    ...(torch ? [torch.session.copy(PINNED, 'pinned', bytes)] : []),
  ];
  return { bytes, times: await race(contenders, rounds, mostCalls) };
}

export function hostBatchTable({ bytes, times }: HostBatch): TableContent {
  const pinned = times[PINNED];
  return {
    title: `Calls on a host batch, ${digits(bytes / 1e6)} MB to the device. GB/s leave out the gradient’s copy back`,
    head: ['call', 'ms', 'GB/s', 'min – max', '% of pinned'],
    rows: Object.entries(times).map(([name, sample]) => {
      const { median, least, most } = gigabytesPerSecond(bytes, sample);
      return [
        name,
        sample.median.toFixed(2),
        digits(median),
        `${digits(least)} – ${digits(most)}`,
        pinned ? digits((100 * pinned.median) / sample.median) : '',
      ];
    }),
  };
}
