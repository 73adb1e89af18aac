// Times whole calls of PPO: small ones on a batch that is already on the device, and ones that upload a batch from host
// memory.
import { PPOPolicyLossFn, upload } from '../../lib/index.js';
import { type Inputs, makeInputs, type Shape } from '../lib/batch.js';
import { benchNative } from '../lib/native.js';
import { contender, race, renamed, syncContender } from '../lib/race.js';
import type { HostBatch, Times } from '../lib/report.js';
import { digits, spread, type TableContent } from '../lib/tables.js';
import type { Work } from '../lib/works.js';
import type { Torch } from '../peers/torch.js';
import { DEVICE, deviceContender, type Effort, uploadInputs } from './device.js';

const PPO = new PPOPolicyLossFn({ clipRange: 0.2 });
const ON_DEVICE = `cuda:${DEVICE}`;

/**
 * Times calls on a small resident batch. The times include the copy of the results to the host, except those of the
 * kernels alone.
 */
export async function timeSmallCalls(
  ppo: Work,
  shape: Shape,
  torch: Torch | undefined,
  { rounds, mostCalls }: Effort,
): Promise<Times> {
  const inputs = makeInputs(shape);
  const tokens = shape[0] * shape[1];
  const resident = await uploadInputs(inputs, [ppo]);
  using batch = await upload(inputs, ON_DEVICE);
  const grad = new Float32Array(tokens);
  await torch?.load(inputs);
  const theirs = torch ? (await torch.prepare(ppo, tokens)).prepared : [];
  const times = await race(
    [
      syncContender('computeSync(), no gradient', () => PPO.computeSync(batch)),
      syncContender('computeSync(), gradient to the host', () => PPO.computeSync(batch, { grad })),
      contender('compute(), no gradient', () => PPO.compute(batch)),
      deviceContender('the kernels alone', 'all passes', ppo, resident),
      ...theirs.map(({ name, untilHost }) => renamed(name, untilHost)),
    ],
    rounds,
    mostCalls,
  );
  await torch?.release();
  benchNative.release(resident);
  return times;
}

/** Times calls on a batch in host memory, and its upload alone. */
export async function timeHostBatch(
  inputs: Inputs,
  torch: Torch | undefined,
  { rounds, mostCalls }: Effort,
): Promise<HostBatch> {
  const { shape, logprob, oldLogprob, advantages, actionMask } = inputs;
  const batch = { shape, logprob, oldLogprob, advantages, actionMask };
  const bytes = logprob.length * (3 * 4 + 1);
  const grad = new Float32Array(logprob.length);
  const contenders = [
    contender('compute(), no gradient', () => PPO.compute(batch, { device: ON_DEVICE })),
    contender('compute(), gradient to the host', () => PPO.compute(batch, { device: ON_DEVICE, grad })),
    contender('upload()', async () => (await upload(batch, ON_DEVICE)).dispose()),
    ...(torch ? [torch.copy('pinned memory to the device (PyTorch)', 'pinned', bytes)] : []),
  ];
  return { bytes, times: await race(contenders, rounds, mostCalls) };
}

export function hostBatchTable({ bytes, times }: HostBatch): TableContent {
  return {
    title: `Calls on a host batch, ${digits(bytes / 1e6)} MB to the device. GB/s leave out the gradient’s copy back`,
    head: ['call', 'ms', 'min – max', 'GB/s'],
    rows: Object.entries(times).map(([name, sample]) => [
      name,
      digits(sample.median),
      spread(sample),
      digits(bytes / sample.median / 1e6),
    ]),
  };
}
