// Counts the tokens and rows of a batch.
import type { NativeBatch, NativeCall, NativeFunction } from '../../binding.js';
import { abortable, fromNative } from './abortable.js';
import type { Batch } from './batch.js';
import { type BatchReader, type Input, whileKept } from './batch-reader.js';
import { checkFinite, type FusedAdvantage } from './computed-advantages.js';
import { type Correction, withColumns } from './correction.js';
import { type Counts, fromNativeCounts } from './counts.js';
import type { DeviceBatch } from './device-batch.js';
import { guarded, guardedAsync } from './errors.js';
import { native } from './native.js';
import { finish, finishInTurns } from './slices.js';

// A native function without any loss. Evaluating it only counts the tokens and rows of a batch.
const counter: NativeFunction = native.createFunction({});

/** Says which rows of a batch count, and how often, if an advantage function may drop or repeat rows. */
export interface RowsThatCount {
  /** For a host batch, shape [B]: how often each row counts. Undefined if every row counts once. */
  repeats?: Uint32Array | undefined;
  /**
   * For a batch on a device: the advantage function that decides which rows count. Native code runs it before it counts
   * the rows.
   */
  fused?: FusedAdvantage | undefined;
  /** Decides which tokens count. The reader must read what it needs. */
  correction?: Correction | undefined;
}

/**
 * Counts a batch's tokens and rows. Add up the counts of all micro-batches and pass the sum to compute() as
 * `normalizer`.
 */
export async function countBatch(
  reader: BatchReader,
  batch: Batch | DeviceBatch,
  rows: RowsThatCount = {},
): Promise<Counts> {
  return guardedAsync(() =>
    finishInTurns(reader.read(batch), undefined, (whole) =>
      whileKept(whole, async () => {
        const mask = await rows.correction?.mask(whole);
        const input = mask ? withColumns(whole, { mask }) : whole;
        const call = countingCall(input, rows);
        const present = await abortable(undefined, () =>
          native.evaluate(counter, input.native, call, input.device),
        );
        checkFinite(present, rows.fused);
        return fromNativeCounts(call.counts, reader.separatesExperts);
      }),
    ),
  );
}

/** Synchronous version of {@link countBatch}. */
export function countBatchSync(
  reader: BatchReader,
  batch: Batch | DeviceBatch,
  rows: RowsThatCount = {},
): Counts {
  const input = guarded(() => {
    const whole = finish(reader.read(batch));
    const mask = rows.correction?.maskSync(whole);
    return mask ? withColumns(whole, { mask }) : whole;
  });
  const call = countingCall(input, rows);
  let present: number;
  try {
    present = native.evaluateSync(counter, input.native, call, input.device);
  } catch (error) {
    throw fromNative(error);
  }
  checkFinite(present, rows.fused);
  return fromNativeCounts(call.counts, reader.separatesExperts);
}

function countingCall(input: Input, { repeats, fused }: RowsThatCount) {
  if (repeats) (input.native as NativeBatch).repeats = repeats;
  return {
    values: new Float64Array(1),
    grad: undefined,
    gradEntropy: undefined,
    mu: undefined,
    klCoef: undefined,
    entropyCoef: undefined,
    counts: new Float64Array(5),
    advantage: fused?.advantage,
    abort: undefined,
    ...input.replaced,
  } satisfies NativeCall;
}
