// What a function reads of a batch, wherever the batch lies.
import type { NativeBatch, NativeResident } from '../../binding.js';
import {
  type Batch,
  type ColumnName,
  find,
  HostReader,
  keysOf,
  type Layout,
  missing,
  type Reads,
} from './batch.js';
import { cudaIndex } from './device.js';
import { DeviceBatch } from './device-batch.js';
import type { KeyMapper } from './key-mapper.js';

/** A batch as native calls take it. */
export interface Input {
  native: NativeBatch | NativeResident;
  layout: Layout;
  /** The CUDA device that a host batch is to be computed on; undefined: the CPU, or where the batch lies. */
  device: number | undefined;
}

/** Reads batches of the host and of devices. */
export class BatchReader {
  /** Whether it tells the experts' rows from the others. */
  readonly tellsExperts: boolean;
  readonly #mapper: KeyMapper;
  readonly #host: HostReader;
  readonly #needed: readonly string[];

  constructor(mapper: KeyMapper, reads: Reads) {
    this.tellsExperts = reads.expertMask === true;
    this.#mapper = mapper;
    this.#host = new HostReader(mapper, reads);
    this.#needed = [
      ...reads.columns,
      ...(reads.mask === false ? [] : ['action_mask']),
      ...(reads.expertMask ? ['expert_mask'] : []),
    ];
  }

  /** Whether a batch has an optional column. */
  has(batch: Batch | DeviceBatch, name: ColumnName): boolean {
    if (batch instanceof DeviceBatch) return batch.has(name);
    return (
      batch !== null && typeof batch === 'object' && find(batch, keysOf(this.#mapper, name)) !== undefined
    );
  }

  /**
   * @param device the `device` option of the call.
   * @throws LossError naming the key, what was expected and what came.
   */
  read(batch: Batch | DeviceBatch, device?: string): Input {
    if (!(batch instanceof DeviceBatch)) {
      const { native, layout } = this.#host.read(batch);
      return { native, layout, device: cudaIndex(device) };
    }
    const { native, layout } = batch.resident(device);
    for (const name of this.#needed)
      if (!batch.has(name))
        throw missing(keysOf(this.#mapper, name), `it to have been uploaded to ${batch.device}`);
    return { native, layout, device: undefined };
  }
}
