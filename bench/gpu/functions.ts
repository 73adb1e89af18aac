// Times a function on a batch that is already on the device. The contenders are this package's kernels, a copy within the
// device's memory, and PyTorch.
import type { NativeResident } from '../../binding.js';
import { race } from '../lib/race.js';
import { type FunctionTimes, ON_DEVICE, OURS } from '../lib/report.js';
import type { Work } from '../lib/works.js';
import type { Torch } from '../peers/torch.js';
import { copyContender, deviceContender, type Effort } from './device.js';

/** Times one function. If `torch` is given, it must already have loaded the inputs that `resident` holds. */
export async function timeOnDevice(
  work: Work,
  shape: FunctionTimes['shape'],
  resident: NativeResident,
  torch: Torch | undefined,
  { rounds, mostCalls, copyBytes }: Effort,
): Promise<FunctionTimes> {
  const { prepared, problems } = torch?.covers(work)
    ? await torch.prepare(work, shape[0] * shape[1])
    : { prepared: [], problems: {} };
  const contenders = [
    deviceContender(OURS, 'all passes', work, resident),
    deviceContender(ON_DEVICE.tokenPass, 'token pass', work, resident),
    copyContender(ON_DEVICE.copy, copyBytes),
    ...prepared,
  ];
  const times = await race(contenders, rounds, mostCalls);
  await torch?.release();
  return { id: work.id, shape, times, problems };
}
