// Reads the batch of a call, which may be in host memory or on a device.
import type { NativeBatch, NativeResident } from '../../binding.js';
import type { Steps } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import type { InputName } from '../batch/columns.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import type { Layout } from '../batch/layout.js';
import { type BatchReader, type Conversions, heldBatch } from '../batch/reader.js';
import { cudaIndex } from './device.js';
import { DeviceBatch, type ResidentValues } from './device-batch.js';

/** Columns with one value per token that a correction computes for a batch. */
export interface ReplacedColumns {
  /** One byte per token that is 0 if the token is masked. Undefined if the batch's own mask stays. */
  mask?: Uint8Array | undefined;
  /** The weights by which the losses of the tokens are multiplied. Undefined if there are none. */
  weights?: Float32Array | undefined;
  /** Undefined if the batch's own log-probabilities stay. */
  logprob?: Float32Array | undefined;
}

/** A batch that was checked and converted for native calls. */
export interface Input {
  native: NativeBatch | NativeResident;
  layout: Layout;
  /**
   * The index of the CUDA device that computes a batch from host memory. Undefined if the CPU computes it, or if the
   * batch already is on a device.
   */
  device: number | undefined;
  /** The values of a batch that already is on a device. */
  resident?: ResidentValues | undefined;
  /** The trainer's step, if the function reads it. */
  step: number | undefined;
  /** For a batch on a device: arrays that replace its own in this call. */
  replaced?: ReplacedColumns | undefined;
}

/** Takes steps, among which are several native calls for an input. Keeps the input on its device until the last one. */
export function whileResident<T>({ resident }: Input, steps: Steps<T>): Steps<T> {
  return resident ? resident.takeResident(steps) : steps;
}

/** Returns whether a batch has an input. */
export function hasInput(reader: BatchReader, batch: Batch | DeviceBatch, name: InputName): boolean {
  return batch instanceof DeviceBatch ? batch.has(name) : reader.has(batch, name);
}

/**
 * Reads a batch from host memory, or checks a batch that is on a device.
 * @param device the `device` option of the call.
 * @param conversions a cache that this reader shares with other readers of the same batch.
 * @throws LossError if a value is missing or invalid. The message names the key, what was expected and what was
 * given.
 */
export function* readInput(
  reader: BatchReader,
  batch: Batch | DeviceBatch,
  device?: string,
  conversions?: Conversions,
): Steps<Input> {
  if (!(batch instanceof DeviceBatch)) {
    const index = cudaIndex(device);
    const { native, layout, step } = yield* reader.read(batch, conversions);
    return { native, layout, step, device: index };
  }
  const { values, layout } = batch.resident(device);
  reader.checkPresent((name) => batch.has(name), layout.rows, batch.device);
  const step = reader.stepOf(batch, layout.rows);
  return { native: values.native, layout, device: undefined, resident: values, step };
}

/** Does the same as heldBatch() for a batch in host memory. Returns a batch on a device itself. */
export function heldInput<B extends object>(batch: B, mapper: KeyMapper, others?: readonly string[]): B {
  return batch instanceof DeviceBatch ? batch : heldBatch(batch, mapper, others);
}
