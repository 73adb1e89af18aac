// The options about how gradients are written.
import { Option } from 'commander';
import { GRADIENT_DTYPES, type GradientDtype } from '../rollouts/index.js';

/** The values of the options that writingOptions() returns. */
export interface WritingOptions {
  ids: string[];
  padded?: boolean;
  dtype: GradientDtype;
}

/** Returns the options about how gradients are written. */
export function writingOptions(): Option[] {
  return [
    new Option('--ids <columns>', 'columns to write with the gradients, separated by commas')
      .default(['id', 'task_id', 'run_id'], 'id,task_id,run_id')
      .argParser((text) => text.split(',').map((name) => name.trim())),
    new Option('--padded', 'write padded tensors [B, T] instead of packed rows with cu_seqlens'),
    new Option(
      '--dtype <dtype>',
      'the dtype of the gradients; Parquet has no bfloat16, JSON lines only have float32',
    )
      .choices(GRADIENT_DTYPES)
      .default('float32'),
  ];
}
