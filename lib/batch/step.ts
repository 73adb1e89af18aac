// Reads the trainer's step, which a batch has once or once per row.
import { describeValue, LossError } from '../base/errors.js';
import { inSlices, type Steps, takeNow } from '../base/steps.js';

/**
 * Returns the trainer's step number, which may be given once or once per row, but must be the same for all rows.
 * @throws LossError `ERR_INVALID_INPUT` if the rows' steps differ or a step is not a finite number,
 * `ERR_SHAPE_MISMATCH` if the number of steps is wrong.
 */
export function readStep(key: string, value: unknown, rows: number): number {
  return takeNow(checkSteps(key, value, rows));
}

/** Checks steps of rows and returns their one step. Large arrays are checked in slices. */
export function* checkSteps(key: string, value: unknown, rows: number): Steps<number> {
  if (typeof value === 'number') return checkStep(key, value);
  if (!Array.isArray(value) && !ArrayBuffer.isView(value))
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'a number, or one per row',
      received: describeValue(value),
    });
  const steps = value as unknown as ArrayLike<number>;
  if (steps.length !== rows)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key,
      expected: `[${rows}], one value per row`,
      received: String(steps.length),
    });
  const first = steps[0];
  yield* inSlices(rows, (begin, end) => {
    for (let row = Math.max(begin, 1); row < end; row++)
      if (steps[row] !== first)
        throw new LossError('ERR_INVALID_INPUT', {
          key,
          expected: 'the same step in all rows',
          received: `${first} in row 0 and ${steps[row]} in row ${row}`,
        });
  });
  return rows === 0 ? 0 : checkStep(key, first);
}

function checkStep(key: string, step: unknown): number {
  if (typeof step !== 'number' || !Number.isFinite(step))
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'a finite number',
      received: describeValue(step),
    });
  return step;
}
