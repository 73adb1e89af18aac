// Times every function on a batch that is already on the device. The contenders are this package's passes (kernels), a
// copy within the device's memory, and PyTorch.
import type { NativeResident } from '../../binding.js';
import type { Shape } from '../lib/batch.js';
import { race } from '../lib/race.js';
import type { Times } from '../lib/report.js';
import { digits, gigabytesPerSecond, ratio, spread, type TableContent } from '../lib/tables.js';
import type { Work } from '../lib/works.js';
import type { Prepared } from '../peers/peer.js';
import { bytesPerToken, copyContender, deviceContender } from './device.js';
import type { Torch } from './torch.js';

/** How many rounds and calls to measure, and how many bytes to copy. */
export interface Effort {
  rounds: number;
  /** The largest number of calls that a contender makes in one turn. If undefined, race() uses its own limit. */
  mostCalls?: number;
  /** The size of one copy within the device's memory, in bytes. */
  copyBytes: number;
}

/** The times of one function on the device, and of what it is compared with. */
export interface DeviceTimes {
  bytesPerToken: number;
  /**
   * The times by contender: 'token pass', 'all passes', 'copy', and the names of PyTorch's forms (eager and compiled).
   */
  times: Times;
  /** For each form of PyTorch that could not be measured, the reason. */
  problems: Record<string, string>;
}

/** Times one function. If `torch` is given, it must already have loaded the inputs that `resident` holds. */
export async function timeOnDevice(
  work: Work,
  resident: NativeResident,
  torch: Torch | undefined,
  { rounds, mostCalls, copyBytes }: Effort,
): Promise<DeviceTimes> {
  const problems: Record<string, string> = {};
  const prepared: Prepared[] = [];
  try {
    for (const peer of torch?.peers.filter((each) => each.covers(work)) ?? [])
      try {
        const theirs = await peer.prepare(work, true);
        prepared.push(theirs);
        await theirs.time(1); // The first call may run out of memory.
      } catch (error) {
        problems[peer.name] = (error as Error).message;
      }
    const contenders = [
      deviceContender('token pass', 'token pass', work, resident),
      deviceContender('all passes', 'all passes', work, resident),
      copyContender('copy', copyBytes),
      ...prepared.filter(({ name }) => !problems[name]),
    ];
    const times = await race(contenders, rounds, mostCalls);
    return { bytesPerToken: bytesPerToken(work), times, problems };
  } finally {
    for (const theirs of prepared) await theirs.release();
  }
}

/** Returns the table of token passes. It compares their speed with the speed of a copy. */
export function tokenPassTable(
  results: Record<string, DeviceTimes>,
  [rows, columns]: Shape,
  { copyBytes }: Effort,
): TableContent {
  return {
    title: `Token pass on the device, forward and gradient, ${rows}×${columns}`,
    head: ['function', 'bytes/token', 'ms', 'min – max', 'GB/s', '% of a copy’s', 'all passes, ms'],
    rows: Object.entries(results).map(([id, { bytesPerToken: bytes, times }]) => {
      const tokenPass = times['token pass']!;
      const rate = gigabytesPerSecond(bytes * rows * columns, tokenPass).median;
      // A copy reads each byte and writes it, so each byte counts twice.
      const copyRate = gigabytesPerSecond(2 * copyBytes, times.copy!).median;
      return [
        id,
        String(bytes),
        tokenPass.median.toFixed(3),
        spread(tokenPass),
        digits(rate),
        digits((100 * rate) / copyRate),
        times['all passes']!.median.toFixed(3),
      ];
    }),
  };
}

/** Returns the table that compares all passes of this package with PyTorch. */
export function torchTable(results: Record<string, DeviceTimes>, torch: Torch): TableContent {
  const names = torch.peers.map(({ name }) => name);
  return {
    title:
      'All passes on the device compared with PyTorch’s forward and backward; × is PyTorch’s time divided by ours',
    head: ['function', 'policy-loss, ms', ...names.flatMap((name) => [`${name}, ms`, '×'])],
    rows: Object.entries(results).map(([id, { times }]) => {
      const ours = times['all passes']!;
      return [
        id,
        ours.median.toFixed(3),
        ...names.flatMap((name) => [times[name]?.median.toFixed(3) ?? '', ratio(times[name], ours)]),
      ];
    }),
  };
}
