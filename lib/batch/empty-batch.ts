// Native batches without inputs, to which readers add what they read.
import type { NativeAdvantageBatch, NativeBatch } from '../../binding.js';
import { COLUMNS } from './columns.js';
import type { Layout } from './layout.js';

/** Returns a native batch without inputs. */
export function emptyBatch(layout: Layout): NativeBatch {
  return {
    rows: layout.rows,
    rowLength: layout.rowLength,
    offsets: layout.offsets,
    data: new Array(COLUMNS.length).fill(undefined),
    dtypes: new Array(COLUMNS.length + 1).fill(0),
    mask: undefined,
    expert: undefined,
  };
}

/** Returns a native batch for advantage functions without inputs. */
export function emptyAdvantageBatch(layout: Layout): NativeAdvantageBatch {
  return {
    ...emptyBatch(layout),
    rewards: undefined,
    baselines: undefined,
    groups: undefined,
    runs: undefined,
  };
}
