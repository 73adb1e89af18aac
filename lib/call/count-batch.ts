// Counts the tokens and rows of a batch.
import type { NativeBatch, NativeFunction } from '../../binding.js';
import { native } from '../base/native.js';
import { type Steps, takeCall } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import { type Counts, fromNativeCounts } from '../batch/counts.js';
import type { BatchReader } from '../batch/reader.js';
import type { DeviceBatch } from '../device/device-batch.js';
import { type Input, readInput, whileResident } from '../device/input.js';
import { checkFinite, type FusedAdvantage } from './computed-advantages.js';
import { type Correction, withColumns } from './correction.js';

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
  /** For a host batch: 1 for the tokens that count. */
  mask?: Uint8Array | undefined;
}

/**
 * Counts a batch's tokens and rows. Add up the counts of all micro-batches and pass the sum to compute() as
 * `normalizer`.
 */
export function* countBatch(
  reader: BatchReader,
  batch: Batch | DeviceBatch,
  rows: RowsThatCount = {},
): Steps<Counts> {
  const input = yield* readInput(reader, batch);
  const counts = yield* whileResident(input, countInput(input, rows));
  return fromNativeCounts(counts, reader.separatesExperts);
}

function* countInput(whole: Input, { repeats, fused, ...tokens }: RowsThatCount): Steps<Float64Array> {
  const mask = tokens.mask ?? (tokens.correction && (yield* tokens.correction.mask(whole)));
  const input = mask ? withColumns(whole, { mask }) : whole;
  if (repeats) (input.native as NativeBatch).repeats = repeats;
  const counts = new Float64Array(5);
  const present = yield* takeCall(native.evaluate, {
    fn: counter,
    batch: input.native,
    values: new Float64Array(1),
    grad: undefined,
    gradEntropy: undefined,
    mu: undefined,
    klCoef: undefined,
    entropyCoef: undefined,
    counts,
    advantage: fused?.advantage,
    ...input.replaced,
  });
  checkFinite(present, fused);
  return counts;
}
