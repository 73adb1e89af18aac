// SkyRL: the batch of a step, in a pickle. Rows are padded on the left, and the last rows may only fill up a batch.
import { bytesOf, itemsOf, opaqueOf, tensorOf } from '../pickle/globals.js';
import { BadObject, Instance, type Opaque, shown } from '../pickle/values.js';
import { loadTorch } from '../torch/load.js';
import { dtypeNamed, Storage, Strided } from '../torch/strided.js';
import type { Dump, DumpColumn } from './dump.js';
import { paddedDump } from './padded.js';

const MAPPING: Readonly<Record<string, readonly string[]>> = {
  old_logprobs: ['action_log_probs'],
  ref_logprobs: ['base_action_log_probs'],
  rollout_logprobs: ['rollout_logprobs'],
  action_mask: ['loss_mask'],
  advantages: ['advantages'],
  values: ['values'],
  old_values: ['values'],
  returns: ['returns'],
};

/** Returns the rows of a TrainingInputBatch; undefined for another value. */
export function skyrlDump(value: unknown): Dump | undefined {
  if (!(value instanceof Instance) || !value.name.endsWith('.TrainingInputBatch')) return undefined;
  const { state } = value;
  const batch = state instanceof Map ? state.get('batch_dict') : undefined;
  if (!(state instanceof Map) || !(batch instanceof Map))
    throw new BadObject('the state of a TrainingInputBatch', 'another value');
  const tensors = new Map([...batch].map(([name, value]) => [name, tensorIn(value)]));
  const mask = tensorOf(tensors.get('response_mask')) ?? tensorOf(tensors.get('loss_mask'));
  if (!mask) throw new BadObject('a response_mask or loss_mask', 'neither');
  const metadata: unknown = state.get('metadata');
  const padding = metadata instanceof Map ? (metadata.get('pad_size') ?? 0) : 0;
  if (!Number.isSafeInteger(padding) || padding < 0 || padding > mask.shape[0]!)
    throw new BadObject(`at most ${mask.shape[0]} rows that fill up the batch`, shown(padding));
  const groupOf = groups(metadata instanceof Map ? metadata.get('policy_prompt_boundaries') : undefined);
  return paddedDump({
    tensors,
    mapping: MAPPING,
    paddingAt: 'left',
    rows: mask.shape[0]! - padding,
    computed: () => (groupOf ? { task_id: groupOf } : {}),
  });
}

/** A tensor is a dict of its bytes, shape and type, or of a torch file. */
function tensorIn(value: unknown): Strided | Opaque | undefined {
  if (!(value instanceof Map)) return tensorOf(value) ?? opaqueOf(value);
  const data = bytesOf(value.get('data'));
  if (!data) return undefined;
  if (value.get('format') === 'torch') return tensorOf(loadTorch(data, 1));
  const shape = itemsOf(value.get('shape'));
  if (!shape) throw new BadObject('the shape of a tensor', 'another value');
  return Strided.contiguous(Storage.of(data, dtypeNamed(value.get('dtype'))), shape);
}

/** Returns a function that gives the group of a row, from the first and last rows of each group. */
function groups(boundaries: unknown): DumpColumn | undefined {
  const pairs = itemsOf(boundaries)?.map((pair) => itemsOf(pair)?.[1]);
  if (!pairs?.every((end, i) => typeof end === 'number' && end >= Number(pairs[i - 1] ?? 0)))
    return undefined;
  const ends = pairs as number[];
  let group = 0;
  return (row) => {
    if (group > 0 && row < ends[group - 1]!) group = 0;
    while (group < ends.length && row >= ends[group]!) group++;
    return group;
  };
}
