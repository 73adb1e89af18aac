// Batches whose rows come in pairs.
import type { Input } from '../../core/batch-reader.js';
import { LossError } from '../../core/errors.js';

/**
 * Checks that the rows of a batch come in pairs.
 * @param loss the loss that needs them, for the error message.
 * @throws LossError `ERR_SHAPE_MISMATCH` if the number of rows is odd.
 */
export function checkPairs({ layout: { rows } }: Pick<Input, 'layout'>, loss: string): void {
  if (rows % 2 !== 0)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key: 'shape',
      expected: `an even number of rows (chosen, rejected, chosen, …) for ${loss}`,
      received: String(rows),
    });
}
