// The names and the order of the columns in the batches that native code receives.
import type { NativeAdvantageBatch, NativeBatch } from '../../binding.js';
import type { Layout } from './layout.js';

/** The names of the float columns that losses read. The order is the order of NativeColumns in binding.d.ts. */
export const COLUMNS = [
  'logprob',
  'old_logprob',
  'ref_logprob',
  'advantages',
  'entropy',
  'rollout_logprob',
  'prox_logprob',
  'teacher_logprob',
  'old_entropy',
  'clip_cov_keys',
] as const;
/** The Trinity-RFT name of a float column that losses read. */
export type ColumnName = (typeof COLUMNS)[number];

/** The index in NativeBatch.data of the weights that a correction gives to the tokens. */
export const WEIGHTS_COLUMN = COLUMNS.length;

/** The names of the numbers per row that losses read. */
export const ROW_COLUMNS = ['rewards', 'v_star', 'probability', 'log_z'] as const;
/** The name of a number per row that losses read. */
export type RowColumnName = (typeof ROW_COLUMNS)[number];
/** The names of all that losses read of rows. The order is that of NativeBatch.rowData in binding.d.ts. */
export const ROW_DATA = [...ROW_COLUMNS, 'group_ids'] as const;
export type RowDataName = (typeof ROW_DATA)[number];

/**
 * The names of the float columns that advantage functions read, in the order of NativeAdvantageColumns in binding.d.ts.
 */
export const ADVANTAGE_COLUMNS = [
  'token_level_rewards',
  'old_logprob',
  'teacher_logprob',
  'values',
  'sum_pi_squared',
  'rollout_is_weights',
] as const;

/** Returns a native batch without inputs. */
export function emptyBatch(layout: Layout): NativeBatch {
  return {
    rows: layout.rows,
    rowLength: layout.rowLength,
    offsets: layout.offsets,
    data: [undefined, undefined, undefined, undefined, undefined, undefined, undefined, undefined, undefined],
    dtypes: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
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
