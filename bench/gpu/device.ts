// Finds the CUDA device to measure, checks its results, and makes contenders that the device's own clock times.
import { execFileSync } from 'node:child_process';
import type { NativeResident } from '../../binding.js';
import { type CudaDevice, devices, upload } from '../../lib/index.js';
import { checkAgreement } from '../lib/agreement.js';
import { type Inputs, makeInputs, type Shape, withCorners } from '../lib/batch.js';
import { ownWorks, resultsOf } from '../lib/functions.js';
import { benchNative, callFor, nativeBatch, nativeForm } from '../lib/native.js';
import type { Contender } from '../lib/race.js';
import type { Work } from '../lib/works.js';

/** How many rounds and calls to measure, and how many bytes to copy. */
export interface Effort {
  rounds: number;
  /** The largest number of calls that a contender makes in one turn. If undefined, race() uses its own limit. */
  mostCalls?: number;
  /** The size of one copy within the device's memory, in bytes. */
  copyBytes: number;
}

/** The index of the device that all measurements use: the first CUDA device. */
export const DEVICE = 0;

/**
 * Returns the CUDA device to measure.
 * @param allowEmulated whether to accept a device that is emulated on the CPU. It has no clock, so all its times are 0.
 * @throws Error if no device is found. An emulated device counts only if the caller accepts it.
 */
export function findDevice(allowEmulated: boolean): CudaDevice {
  const [, first] = devices();
  if (!first?.available) throw new Error(`expected a CUDA device, got none: ${first?.reason.message}`);
  if (isEmulated(first) && !allowEmulated)
    throw new Error(`expected a real CUDA device, got ${first.description}; --smoke runs on it`);
  return first;
}

export const isEmulated = ({ description }: CudaDevice) => /emulat/i.test(description);

/** Returns the version of the NVIDIA driver, or undefined if nvidia-smi cannot be run. */
export function driverVersion(): string | undefined {
  try {
    const query = ['--query-gpu=driver_version', '--format=csv,noheader'];
    const text = execFileSync('nvidia-smi', query, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
    return text.trim();
  } catch {
    return undefined;
  }
}

/** The losses that read inputs which stay in host memory. */
const HOST_ONLY = ['trl/orpo', 'slime/value', 'miles/value', 'easyr1/value'];

/**
 * Returns the functions to time on a device: those that have a gradient with respect to logprob or to values. Only this
 * gradient is computed.
 */
export function deviceWorks(only: RegExp | undefined): Work[] {
  return ownWorks(only)
    .filter(({ id }) => !HOST_ONLY.includes(id))
    .flatMap((work) => {
      const column = (['logprob', 'values'] as const).find((each) => work.wrt.includes(each));
      return column ? [{ ...work, wrt: [column] }] : [];
    });
}

/**
 * Returns how many bytes per token the token pass (the kernel over all tokens) must read or write: 4 for each float
 * column, 1 for the mask, and 4 for the gradient.
 */
export function bytesPerToken(work: Work): number {
  return 4 * nativeForm(work).reads.columns.length + 1 + 4;
}

/** Uploads the inputs that the functions read, for calls of the bench build. The caller must release the batch. */
export async function uploadInputs(inputs: Inputs, list: readonly Work[]): Promise<NativeResident> {
  const reads = list.map((work) => nativeForm(work).reads);
  const columns = [...new Set(reads.flatMap((each) => each.columns))];
  const rowColumns = [...new Set(reads.flatMap((each) => each.rowColumns))];
  const batch = nativeBatch(inputs, { columns, rowColumns, expertMask: true });
  const resident = await benchNative.upload({ device: DEVICE, batch });
  if (resident === -1) throw new Error('the upload was aborted');
  return resident;
}

/**
 * Checks that the results of all functions on the device agree with the results on the CPU.
 * @throws Error if they do not agree.
 */
export async function checkDevice(list: readonly Work[], shape: Shape): Promise<void> {
  const inputs = withCorners(makeInputs(shape));
  using resident = await upload(inputs, `cuda:${DEVICE}`);
  for (const work of list)
    checkAgreement(
      `the device, ${work.id}`,
      resultsOf(work, resident, shape),
      resultsOf(work, inputs, shape),
    );
}

/**
 * Returns a contender that evaluates a function on the device and leaves the gradient there. Depending on
 * `part`, its times are those of all passes (kernels) of a call, or of the token pass alone. The device measures them.
 */
export function deviceContender(
  name: string,
  part: 'all passes' | 'token pass',
  work: Work,
  resident: NativeResident,
): Contender {
  const timing = new Float64Array(2);
  const call = { ...callFor(work, resident, {}), timing };
  const index = part === 'all passes' ? 0 : 1;
  return {
    name,
    time: (calls) =>
      Array.from({ length: calls }, () => {
        benchNative.evaluateOnDevice(call);
        return timing[index]!;
      }),
  };
}

/** One native call makes this many copies and returns their mean speed. */
const COPIES_PER_CALL = 20;

/** Returns a contender that copies `bytes` bytes within the device's memory. Its times are milliseconds per copy. */
export function copyContender(name: string, bytes: number): Contender {
  const milliseconds = () => (2 * bytes * 1e3) / benchNative.copyBandwidth(DEVICE, bytes);
  return {
    name,
    time: (calls) =>
      Array.from({ length: Math.ceil(calls / COPIES_PER_CALL) }, milliseconds)
        .flatMap((time) => new Array<number>(COPIES_PER_CALL).fill(time))
        .slice(0, calls),
  };
}
