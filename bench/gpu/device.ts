// The CUDA device under test, and calls whose times come from the device's own clock.
import { execFileSync } from 'node:child_process';
import type { NativeResident } from '../../binding.js';
import { type CudaDevice, devices, upload } from '../../lib/index.js';
import { checkAgreement } from '../lib/agreement.js';
import {
  FLOAT_COLUMNS,
  type Inputs,
  makeInputs,
  nativeBatch,
  type Shape,
  withCorners,
} from '../lib/batch.js';
import { benchNative } from '../lib/native.js';
import { callFor } from '../lib/native-calls.js';
import type { Contender } from '../lib/race.js';
import { gradientsOf, type Work, works } from '../lib/works.js';

/** All measurements are on the first CUDA device. */
export const DEVICE = 0;

/**
 * Returns the device that is measured.
 * @param allowEmulated whether to accept an emulated device. It has no clock, so its times are 0.
 * @throws Error if there is no device.
 */
export function findDevice(allowEmulated: boolean): CudaDevice {
  const [, first] = devices();
  if (!first?.available) throw new Error(`expected a CUDA device, got none: ${first?.reason.message}`);
  if (isEmulated(first) && !allowEmulated)
    throw new Error(`expected a real CUDA device, got ${first.description}; --smoke runs on it`);
  return first;
}

export const isEmulated = ({ description }: CudaDevice) => /emulat/i.test(description);

/** Returns the version of the NVIDIA driver, if nvidia-smi is installed. */
export function driverVersion(): string | undefined {
  try {
    const query = ['--query-gpu=driver_version', '--format=csv,noheader'];
    const text = execFileSync('nvidia-smi', query, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
    return text.trim();
  } catch {
    return undefined;
  }
}

/** Returns the functions that are timed on a device: those that compute a gradient with respect to logprob. */
export function deviceWorks(only: RegExp | undefined): Work[] {
  return works(only)
    .filter(({ computes, wrt }) => computes && wrt.includes('logprob'))
    .map((work) => ({ ...work, wrt: ['logprob'] }));
}

/** Returns the bytes per token that a token pass must move: columns, mask and gradient. */
export function bytesPerToken({ columns }: Work): number {
  return 4 * columns.length + 1 + 4;
}

/** Uploads all columns that losses read, for calls of the bench build. The caller must release the batch. */
export async function uploadInputs(inputs: Inputs): Promise<NativeResident> {
  const resident = await benchNative.upload(
    DEVICE,
    nativeBatch(inputs, Object.values(FLOAT_COLUMNS), true),
    undefined,
  );
  if (resident === -1) throw new Error('the upload was aborted');
  return resident;
}

/** Checks that the device's results agree with the CPU's. */
export async function checkDevice(list: readonly Work[], shape: Shape): Promise<void> {
  const inputs = withCorners(makeInputs(shape));
  using resident = await upload(inputs, `cuda:${DEVICE}`);
  const tokens = shape[0] * shape[1];
  for (const work of list) {
    const expected = work.computeSync(inputs, gradientsOf(work, tokens));
    checkAgreement(`the device, ${work.id}`, work.computeSync(resident, gradientsOf(work, tokens)), expected);
  }
}

/** Returns a contender that leaves its gradient on the device. The device times all passes, or the token pass alone. */
export function deviceContender(
  name: string,
  part: 'all passes' | 'token pass',
  work: Work,
  resident: NativeResident,
): Contender {
  const fn = benchNative.createFunction(work.spec);
  const timing = new Float64Array(2);
  const call = callFor({}, benchNative.valueNames(fn).length);
  const index = part === 'all passes' ? 0 : 1;
  return {
    name,
    time: (calls) =>
      Array.from({ length: calls }, () => {
        benchNative.evaluateOnDevice(fn, resident, call, timing);
        return timing[index]!;
      }),
  };
}

/** The number of copies in one native call, which returns their mean rate. */
const COPIES_PER_CALL = 20;

/** Returns a contender that copies within the device's memory. Each of its times is the time of one copy. */
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
