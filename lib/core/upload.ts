// From the host to a device.

import { type AdvantageInput, AdvantageReader } from '../functions/advantage/advantage-batch.js';
import { abortable } from './abortable.js';
import { type Batch, COLUMNS, type ColumnName, find, HostReader, keysOf } from './batch.js';
import { cudaIndex } from './device.js';
import { DeviceBatch } from './device-batch.js';
import { describeValue, guardedAsync, LossError } from './errors.js';
import { KeyMapper } from './key-mapper.js';
import { native } from './native.js';

/** Options of {@link upload}. */
export interface UploadOptions {
  /** Whose names the batch's keys may have, beside Trinity's; 'verl' by default. */
  backend?: string;
  /** Ends the upload early: it rejects with `ERR_ABORTED`. */
  signal?: AbortSignal;
}

const MASKS = ['action_mask', 'expert_mask'] as const;
// Of what advantage functions read, all that losses do not.
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
 * Copies a batch to a CUDA device: everything that some function reads and that the batch has, each once; rewards and
 * ids, which advantage functions read, with it.
 *
 * @param batch a host batch.
 * @param device 'cuda', 'cuda:0', …
 * @returns rejects with LossError: `ERR_DEVICE_UNAVAILABLE`, `ERR_OUT_OF_MEMORY`, `ERR_ABORTED`, and those of compute()
 * for a batch that is not as it must be.
 */
export function upload(batch: Batch, device: string, options?: UploadOptions): Promise<DeviceBatch> {
  return guardedAsync(() => copy(batch, device, options));
}

async function copy(batch: Batch, device: string, options: UploadOptions | undefined): Promise<DeviceBatch> {
  const index = cudaIndex(device);
  if (index === undefined)
    throw new LossError(
      'ERR_DEVICE_UNAVAILABLE',
      `upload: expected a CUDA device, not ${describeValue(device)}; host batches are computed on the CPU as they are`,
    );
  const mapper = KeyMapper.get(options?.backend ?? 'verl');
  if (batch === null || typeof batch !== 'object')
    throw new LossError('ERR_INVALID_INPUT', `batch must be an object, not ${describeValue(batch)}`);
  const there = (name: string) => find(batch, keysOf(mapper, name)) !== undefined;
  const columns: ColumnName[] = COLUMNS.filter(there);
  const masks = MASKS.filter(there);
  const reader = new HostReader(mapper, {
    columns,
    mask: masks.includes('action_mask'),
    expertMask: masks.includes('expert_mask'),
    perToken: ['logprob', 'entropy'],
  });
  const input = reader.read(batch);
  // Without a mask no advantage function reads the batch.
  const inputs = masks.includes('action_mask') ? ADVANTAGE_INPUTS.filter(there) : [];
  const read = inputs.length > 0 ? new AdvantageReader(mapper, inputs).read(batch).native : undefined;
  const resident = await abortable(options?.signal, (flag) => native.upload(index, input.native, flag, read));
  const step = find(batch, keysOf(mapper, 'step'))?.value;
  return new DeviceBatch(index, input.layout, new Set([...columns, ...masks, ...inputs]), step, resident);
}
