// Copies batches from the host to a device.
import type { NativeAdvantageBatch, NativeBatch } from '../../binding.js';
import { abortable } from './abortable.js';
import { type Batch, find } from './batch.js';
import {
  type AdvantageInput,
  BatchReader,
  COLUMNS,
  type Conversions,
  type InputName,
} from './batch-reader.js';
import { cudaIndex } from './device.js';
import { DeviceBatch } from './device-batch.js';
import { describeValue, guardedAsync, LossError } from './errors.js';
import { KeyMapper } from './key-mapper.js';
import { native } from './native.js';

/** Options of {@link upload}. */
export interface UploadOptions {
  /** The framework whose key names the batch may use, in addition to Trinity's; 'verl' by default. */
  backend?: string;
  /** Ends the upload early: it rejects with `ERR_ABORTED`. */
  signal?: AbortSignal;
}

const MASKS = ['action_mask', 'expert_mask'] as const;
// The inputs that only advantage functions read.
const ADVANTAGE_INPUTS: readonly AdvantageInput[] = [
  'token_level_rewards',
  'rewards',
  'values',
  'reward_baselines',
  'group_ids',
  'run_ids',
  'teacher_logprob',
];

/**
 * Copies a batch to a CUDA device: every column that losses read and, if the batch has a mask, the inputs of advantage
 * functions.
 *
 * @param batch a host batch.
 * @param device 'cuda', 'cuda:0', …
 * @returns rejects with LossError: `ERR_DEVICE_UNAVAILABLE`, `ERR_OUT_OF_MEMORY`, `ERR_ABORTED`, and with the errors of
 * compute() for an invalid batch.
 */
export function upload(batch: Batch, device: string, options?: UploadOptions): Promise<DeviceBatch> {
  return guardedAsync(() => copy(batch, device, options));
}

async function copy(batch: Batch, device: string, options: UploadOptions | undefined): Promise<DeviceBatch> {
  const index = cudaIndex(device);
  if (index === undefined)
    throw new LossError('ERR_DEVICE_UNAVAILABLE', {
      at: 'upload',
      option: 'device',
      expected: 'a CUDA device',
      received: describeValue(device),
      hint: 'The CPU computes host batches without an upload',
    });
  const mapper = KeyMapper.get(options?.backend ?? 'verl');
  const isPresent = (name: InputName) =>
    batch !== null && typeof batch === 'object' && find(batch, mapper.keys(name)) !== undefined;
  const columns = COLUMNS.filter(isPresent);
  const masks = MASKS.filter(isPresent);
  const conversions: Conversions = new Map();
  const loss = new BatchReader(mapper, { inputs: [...columns, ...masks], perToken: ['logprob', 'entropy'] });
  const { native: lossBatch, layout } = loss.readHost(batch, conversions);
  // Every advantage function needs a mask.
  const inputs = masks.includes('action_mask') ? ADVANTAGE_INPUTS.filter(isPresent) : [];
  let advantageBatch: NativeBatch | undefined;
  if (inputs.length > 0) {
    const reader = new BatchReader(mapper, { inputs: ['action_mask', ...inputs], order: 'advantage' });
    advantageBatch = reader.readHost(batch, conversions).native;
  }
  const resident = await abortable(options?.signal, (flag) =>
    native.upload(index, lossBatch, flag, advantageBatch as NativeAdvantageBatch | undefined),
  );
  const step = find(batch, mapper.keys('step'))?.value;
  return new DeviceBatch(index, layout, new Set([...columns, ...masks, ...inputs]), step, resident);
}
