// Times every function on a batch that is on the device: this package's passes, a copy of memory, and PyTorch.
import type { NativeResident } from '../../binding.js';
import type { Shape } from '../lib/batch.js';
import { race } from '../lib/race.js';
import type { Times } from '../lib/report.js';
import { digits, gigabytesPerSecond, ratio, spread, type TableContent } from '../lib/tables.js';
import type { Work } from '../lib/works.js';
import type { Prepared } from '../peers/peer.js';
import { bytesPerToken, copyContender, deviceContender } from './device.js';
import type { Torch } from './torch.js';

/** How thoroughly to measure. */
export interface Effort {
  rounds: number;
  /** The most calls of one contender in one turn. Without it, as many as fit into the turn. */
  mostCalls?: number;
  /** The bytes of one copy. */
  copyBytes: number;
}

/** The times of one function on the device. */
export interface DeviceTimes {
  bytesPerToken: number;
  /** Times by contender: 'token pass', 'all passes', 'copy', and the forms of PyTorch. */
  times: Times;
  /** Why a form of PyTorch was not measured, by form. */
  problems: Record<string, string>;
}

/** Times one function. PyTorch, if given, must have loaded the same inputs. */
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
        await theirs.time(1); // May run out of memory.
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

/** Returns the table of token passes. */
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
      // A copy reads each byte and writes it, so it moves each byte twice.
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

/** Returns the table that compares all passes with PyTorch. */
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
