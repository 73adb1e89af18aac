// Times calls on a small batch that is already on the device. The times include the copy of the results to the host,
// except where the device itself times its passes (kernels).
import { upload } from '../../lib/index.js';
import { makeInputs, type Shape } from '../lib/batch.js';
import { benchNative } from '../lib/native.js';
import { callFor } from '../lib/native-calls.js';
import { type Contender, contender, race, renamed, syncContender } from '../lib/race.js';
import type { Times } from '../lib/report.js';
import type { Work } from '../lib/works.js';
import type { PreparedTorch } from '../peers/torch.js';
import { DEVICE, deviceContender, uploadInputs } from './device.js';
import type { Effort } from './functions.js';
import type { Torch } from './torch.js';

export async function timeSmallCalls(
  work: Work,
  shape: Shape,
  torch: Torch | undefined,
  { rounds, mostCalls }: Effort,
): Promise<Times> {
  const inputs = makeInputs(shape);
  const resident = await uploadInputs(inputs, [work]);
  using batch = await upload(inputs, `cuda:${DEVICE}`);
  const grad = new Float32Array(shape[0] * shape[1]);
  const fn = benchNative.createFunction(work.spec);
  const call = callFor(benchNative, fn, resident, {});
  const ours: Contender[] = [
    syncContender('native call, gradient stays on the device', () => benchNative.evaluateOnDevice(call)),
    syncContender('computeSync(), no gradient', () => work.computeSync(batch)),
    syncContender('computeSync(), gradient to the host', () => work.computeSync(batch, { grad })),
    contender('compute(), no gradient', () => work.compute(batch)),
    deviceContender('the passes on the device alone', 'all passes', work, resident),
  ];
  const prepared: PreparedTorch[] = [];
  try {
    for (const peer of torch?.peers.filter((each) => each.covers(work)) ?? []) {
      await peer.load(inputs);
      prepared.push(await peer.prepare(work, true));
    }
    const theirs = prepared.map(({ name, untilHost }) => renamed(name, untilHost));
    return await race([...ours, ...theirs], rounds, mostCalls);
  } finally {
    for (const peer of prepared) await peer.release();
    benchNative.release(resident);
  }
}
