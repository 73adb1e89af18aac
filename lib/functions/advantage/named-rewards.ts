// Reads the rewards per row that an advantage function finds under keys which the caller chose.
import type { NativeAdvantageBatch } from '../../../binding.js';
import { type Batch, find } from '../../core/batch.js';
import type { Input } from '../../core/batch-reader.js';
import { readRowNumbers } from '../../core/columns.js';
import { DeviceBatch } from '../../core/device-batch.js';
import { LossError } from '../../core/errors.js';
import type { KeyMapper } from '../../core/key-mapper.js';
import type { Steps } from '../../core/steps.js';
import type { NamedRewards } from './advantage-fn.js';

/**
 * Adds the named rewards of a host batch to the native batch.
 * @throws LossError `ERR_MISSING_INPUT` if a key is missing or the batch is on a device, `ERR_INVALID_INPUT` for a
 * reward that is not finite, `ERR_SHAPE_MISMATCH` for a wrong number of rewards.
 */
export function* readNamedRewards(
  batch: Batch | DeviceBatch,
  mapper: KeyMapper,
  { keys, weights }: NamedRewards,
  { layout: { rows }, native }: Pick<Input, 'layout' | 'native'>,
): Steps<void> {
  const rewards = new Float64Array(keys.length * rows);
  for (const [k, name] of keys.entries()) {
    const onDevice = batch instanceof DeviceBatch;
    const found = onDevice ? undefined : find(batch, mapper.keys(name));
    if (!found)
      throw new LossError('ERR_MISSING_INPUT', {
        key: name,
        expected: 'a reward per row, in host memory',
        received: onDevice ? 'a batch on a device' : 'a batch without it',
      });
    const numbers = yield* readRowNumbers(found.key, found.value, rows);
    const index = numbers.findIndex((reward) => !Number.isFinite(reward));
    if (index >= 0)
      throw new LossError('ERR_INVALID_INPUT', {
        key: found.key,
        index,
        expected: 'a finite number',
        received: String(numbers[index]),
      });
    rewards.set(numbers, k * rows);
  }
  const hostBatch = native as NativeAdvantageBatch;
  hostBatch.namedRewards = rewards;
  hostBatch.rewardWeights = Float64Array.from(weights);
}
