// Advantage functions that are computed on the host, from batches in host memory.
import { checkSignal } from '../base/abortable.js';
import { describeValue, LossError } from '../base/errors.js';
import { resultArray } from '../base/result-arrays.js';
import { inSlices, type Steps, take } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import { emptyAdvantageBatch } from '../batch/empty-batch.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import type { Metrics } from '../call/calls.js';
import { DeviceBatch } from '../device/device-batch.js';
import { type AdvantageOutputs, checkOutputs } from './advantage-arrays.js';
import { HostTokens } from './host-tokens.js';

/** What an advantage function computes on the host. */
interface HostAdvantages {
  readonly advantages: Float64Array;
  /** The advantages if absent. */
  readonly returns?: Float64Array;
  readonly metrics: Metrics;
}
/** Computes the advantages of a batch on the host. */
export type HostAdvantage = (tokens: HostTokens) => Steps<HostAdvantages>;

/** Computes the advantages of a batch, and rounds them to float32. */
export function* computeOnHost(
  compute: HostAdvantage,
  batch: Batch | DeviceBatch,
  { mapper, out, hasReturns }: { mapper: KeyMapper; out: AdvantageOutputs; hasReturns: boolean },
): Steps<{ advantages: Float32Array; returns: Float32Array; metrics: Metrics; rows: number }> {
  if (batch instanceof DeviceBatch) throw needsHost(batch.device);
  if (batch === null || typeof batch !== 'object')
    throw new LossError('ERR_INVALID_INPUT', {
      at: 'batch',
      expected: 'an object',
      received: describeValue(batch),
    });
  yield* take(({ signal }) => checkSignal(signal));
  const tokens = yield* HostTokens.read(batch, mapper);
  const { layout } = tokens;
  checkOutputs(out, { native: emptyAdvantageBatch(layout), layout }, hasReturns);
  const { advantages: values, returns = values, metrics } = yield* compute(tokens);
  const advantages = yield* rounded(values, out.advantages);
  return {
    advantages,
    returns: hasReturns ? yield* rounded(returns, out.returns) : advantages,
    metrics,
    rows: layout.rows,
  };
}

function* rounded(values: Float64Array, given: Float32Array | undefined): Steps<Float32Array> {
  const { length } = values;
  const to = given ?? resultArray(`the advantages of ${length} tokens`, length);
  yield* inSlices(length, (begin, end) => {
    for (let i = begin; i < end; i++) to[i] = values[i]!;
  });
  return to;
}

/** Returns the error for a batch on a device. */
export function needsHost(device: string): LossError {
  return new LossError('ERR_INVALID_INPUT', {
    at: 'batch',
    expected: 'a batch in host memory, where this function is computed',
    received: `a batch on ${device}`,
  });
}
