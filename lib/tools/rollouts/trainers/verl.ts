// verl and ROLL: a DataProto in a pickle, and dicts of tensors by torch.save.
import { bytesOf, tensorOf } from '../pickle/globals.js';
import { BadObject, Instance, Opaque, PyList } from '../pickle/values.js';
import { loadTorch } from '../torch/load.js';
import { dtypeNamed, isShape, Jagged, Storage, Strided } from '../torch/strided.js';
import type { Dump } from './dump.js';
import { paddedDump, sumOf, TensorRows } from './padded.js';

const MAPPING: Readonly<Record<string, readonly string[]>> = {
  logprobs: ['logprobs', 'log_probs', 'log_prob'],
  old_logprobs: ['old_logprobs', 'old_log_probs'],
  ref_logprobs: ['ref_logprobs', 'ref_log_prob', 'ref_log_probs'],
  rollout_logprobs: ['rollout_logprobs', 'rollout_log_probs', 'infer_logprobs'],
  entropy: ['entropy', 'entropys'],
  action_mask: ['action_mask', 'response_mask'],
  advantages: ['advantages'],
  // A batch has the values from before the update, and what a user passes may have the current ones too.
  values: ['vpreds', 'values'],
  old_values: ['old_values', 'values'],
  returns: ['returns'],
  token_level_rewards: ['token_level_rewards'],
  reward: ['reward', 'scores', 'response_level_rewards'],
  task_id: ['task_id', 'uid'],
  tokens: ['responses'],
};

// The tensors whose rows add up to the reward: the score of the response, before a KL penalty is taken from it.
const REWARDS = ['token_level_scores', 'token_level_rewards'];

/** Returns the rows of a DataProto, or of a dict of tensors; undefined for another value. */
export function verlDump(value: unknown): Dump | undefined {
  if (value instanceof Map) {
    const isBatch = Object.values(MAPPING).some((names) => names.some((name) => isTensor(value.get(name))));
    return isBatch ? batchOf(value) : undefined;
  }
  if (!(value instanceof Instance) || !value.name.endsWith('.protocol.DataProto')) return undefined;
  const [batch, others] = Array.isArray(value.state) ? value.state : [];
  return batchOf(tensorsOf(batch), others instanceof Map ? others : undefined);
}

function isTensor(value: unknown): boolean {
  return value instanceof Jagged || tensorOf(value) !== undefined;
}

function batchOf(tensors: ReadonlyMap<unknown, unknown>, others?: ReadonlyMap<unknown, unknown>): Dump {
  const rewards = REWARDS.find((name) => tensors.has(name));
  const hasReward = MAPPING.reward!.some((name) => tensors.has(name));
  return paddedDump({
    tensors,
    ...(others && { others }),
    mapping: MAPPING,
    paddingAt: 'right',
    computed: (cells) =>
      rewards === undefined || hasReward ? {} : { reward: (row) => sumOf(cells(rewards, row)) },
  });
}

/** Returns the tensors of a DataProto: in a torch file, or with verl's numpy method in (type, shape, bytes). */
function tensorsOf(batch: unknown): ReadonlyMap<unknown, unknown> {
  const bytes = bytesOf(batch);
  const found = bytes ? loadTorch(bytes, 1) : Array.isArray(batch) ? batch[2] : batch;
  if (!(found instanceof Map)) throw new BadObject('the tensors of a DataProto', 'another value');
  if (bytes) return found;
  return new Map([...found].map(([name, value]) => [name, numpyTensor(value)]));
}

function numpyTensor(value: unknown): Strided | TensorRows | Opaque | undefined {
  if (value instanceof Opaque) return value;
  const [type, shape, data] = Array.isArray(value) ? value : [];
  if (shape instanceof PyList) {
    const tensors = shape.kept().map(numpyTensor);
    return tensors.every((tensor) => tensor instanceof Strided) ? new TensorRows(tensors) : undefined;
  }
  const all = tensorOf(data);
  if (!all || !isShape(shape) || all.storage.elementBytes !== 1) return undefined;
  const storage = Storage.of(all.storage.bytes, dtypeNamed(type));
  return Strided.contiguous(storage, shape);
}
