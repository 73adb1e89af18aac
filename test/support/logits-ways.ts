/** The ways to call the functions of lib/logits, on the CPU and on a CUDA device. */
import {
  type DeviceColumn,
  type Logits,
  type LogprobsBackwardSyncOptions,
  type LogprobsResult,
  type LogprobsSyncOptions,
  logprobs,
  logprobsBackward,
  logprobsBackwardSync,
  logprobsSync,
} from '../../lib/index.js';
import { framework } from './framework.js';
import { dataOf } from './logits.js';
import { DEVICE, gpus } from './on-device.js';

export interface Way {
  logprobs(logits: Logits, options: LogprobsSyncOptions): Promise<LogprobsResult>;
  backward(logits: Logits, options: LogprobsBackwardSyncOptions): Promise<Logits>;
}

export const CPU_WAYS = {
  sync: {
    logprobs: async (...args) => logprobsSync(...args),
    backward: async (logits, options) => logprobsBackwardSync(logits, options),
  },
  async: {
    logprobs,
    backward: (logits, options) => logprobsBackward(logits, options),
  },
} satisfies Record<string, Way>;

const other = framework();
const dtypeOf = (logits: Logits) =>
  'data' in logits ? logits.dtype : logits instanceof Float32Array ? 'float32' : 'float16';

/** An array in memory of the device. */
interface There extends DeviceColumn {
  /** Copies the values to the array on the host from which they came. */
  fetch(): void;
  free(): void;
}

/** Copies an array to memory of the device that is as long as the array, rounded up to four bytes. */
export function copyToDevice(logits: Logits, shape: readonly number[]): There {
  const data = dataOf(logits);
  const from = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  const words = Math.ceil(from.length / 4);
  const bytes = new Uint8Array(4 * words);
  bytes.set(from);
  const memory = new Float32Array(bytes.buffer);
  const pointer = words === 0 ? 0n : other!.allocate(0, 4 * words);
  if (words > 0) other!.write(0n, pointer, memory);
  return {
    pointer,
    dtype: dtypeOf(logits),
    device: DEVICE,
    shape,
    fetch() {
      if (words > 0) other!.read(0n, pointer, memory);
      from.set(bytes.subarray(0, from.length));
    },
    free() {
      if (words > 0) other!.free(pointer);
    },
  };
}

const onDevice: Way = {
  logprobs: (logits, options) => logprobs(logits, { ...options, device: DEVICE }),
  backward: (logits, options) => logprobsBackward(logits, { ...options, device: DEVICE }),
};

/** Computes with logits in memory of the device. Their gradient goes where `options.out` says, in memory of the device. */
const resident: Way = {
  async logprobs(logits, options) {
    const [rows, vocabulary] = options.shape;
    const there = copyToDevice(logits, [rows, options.rowStride ?? vocabulary]);
    try {
      return await logprobs(there, { ...options, device: DEVICE });
    } finally {
      there.free();
    }
  },
  async backward(logits, options) {
    const [rows, vocabulary] = options.shape;
    const there = copyToDevice(logits, [rows, options.rowStride ?? vocabulary]);
    const { out, ...others } = options;
    const inPlace = out !== undefined && dataOf(out) === dataOf(logits);
    const to = inPlace || out === undefined ? there : copyToDevice(out, [rows, vocabulary]);
    try {
      if (out === undefined) return await logprobsBackward(there, { ...others, device: DEVICE });
      await logprobsBackward(there, { ...others, device: DEVICE, out: to });
      to.fetch();
      return out;
    } finally {
      there.free();
      if (to !== there) to.free();
    }
  },
};

export const DEVICE_WAYS: Record<string, Way> = {
  ...(gpus.length > 0 && { [DEVICE]: onDevice }),
  ...(gpus.length > 0 && other && { [`logits on ${DEVICE}`]: resident }),
};
