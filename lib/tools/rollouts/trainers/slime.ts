// slime: dumps of the rollouts and of the data of a training step, by torch.save. A row's lists have no padding.
import { itemsOf, opaqueOf, tensorOf } from '../pickle/globals.js';
import { BadObject, PyList } from '../pickle/values.js';
import {
  type Dump,
  type DumpColumn,
  type DumpContext,
  lengthOf,
  numberOf,
  numberOrOpaque,
  partOf,
} from './dump.js';

/** Returns a row's value of a column of the file. */
type Cell = (row: number, key: string) => unknown;

const TEACHER = { teacher_logprobs: 'teacher_log_probs', rollout_logprobs: 'rollout_log_probs' };
const ROLLOUT: Readonly<Record<string, string>> = {
  ...TEACHER,
  action_mask: 'loss_mask',
  task_id: 'group_index',
  run_id: 'index',
};
const TRAIN: Readonly<Record<string, string>> = {
  ...TEACHER,
  ref_logprobs: 'ref_log_probs',
  action_mask: 'loss_masks',
  run_id: 'sample_index',
  rollout_id: 'rollout_ids',
  old_values: 'values',
};

/** Returns the rows of a dump of slime; undefined for another value. */
export function slimeDump(value: unknown, context: DumpContext): Dump | undefined {
  if (!(value instanceof Map)) return undefined;
  const samples: unknown = value.get('samples');
  const columns: unknown = value.get('rollout_data');
  if (columns instanceof Map) return trainDump(...columnsOf(columns), context);
  if (!(samples instanceof PyList)) return undefined;
  const rows = samples.kept();
  const [first] = rows;
  if (!rows.every((row): row is Map<unknown, unknown> => row instanceof Map))
    throw new BadObject('dicts as samples', 'another value');
  const keys = [...((first as Map<unknown, unknown> | undefined)?.keys() ?? [])].filter(isText);
  const cell: Cell = (row, key) => rows[row]!.get(key);
  return value.has('format_version')
    ? trainDump(rows.length, keys, cell, context)
    : rolloutDump(rows.length, keys, cell);
}

function isText(value: unknown): value is string {
  return typeof value === 'string';
}

/** Returns the rows of a dict of lists, the first version of the data of a training step. */
function columnsOf(columns: ReadonlyMap<unknown, unknown>): [rows: number, keys: string[], cell: Cell] {
  const lists = new Map<string, readonly unknown[]>();
  const opaque = new Map<string, unknown>();
  for (const [key, value] of columns) {
    const items = itemsOf(value);
    if (!isText(key)) continue;
    if (items) lists.set(key, items);
    else if (opaqueOf(value)) opaque.set(key, opaqueOf(value));
  }
  const rows = lists.get('response_lengths')?.length;
  if (rows === undefined) throw new BadObject('a list response_lengths in rollout_data', 'none');
  // In this version the rewards of all ranks may be in the file of each of them.
  const own = [...lists].filter(([, items]) => items.length === rows).map(([key]) => key);
  const indices = lists.get('sample_indices');
  if (indices) {
    lists.set('sample_index', indices);
    own.push('sample_index');
    const rewards = lists.get('raw_reward');
    if (rewards && rewards.length > rows) {
      lists.set(
        'raw_reward',
        indices.map((index) => (typeof index === 'number' ? rewards[index] : undefined)),
      );
      own.push('raw_reward');
    }
  }
  return [rows, [...own, ...opaque.keys()], (row, key) => lists.get(key)?.[row] ?? opaque.get(key)];
}

function rolloutDump(rows: number, keys: readonly string[], cell: Cell): Dump {
  const columns = columnsFrom(keys, cell, ROLLOUT, 'response_length');
  const reward = columns.get('reward');
  // A reward of several parts is a dict. Which of them trained the policy is not in the file.
  if (reward) columns.set('reward', (row) => numberOrOpaque(reward(row)));
  return { rows, columns, tokens: (row) => numberOf(cell(row, 'response_length')) };
}

function trainDump(rows: number, keys: readonly string[], cell: Cell, context: DumpContext): Dump {
  const mapping: Record<string, string> = { ...TRAIN };
  if (keys.includes('log_probs') && !isNamed(context)) assignPolicies(mapping, rows, keys, cell, context);
  for (const name of ['local_raw_reward', 'raw_reward']) if (keys.includes(name)) mapping.reward ??= name;
  const columns = columnsFrom(keys, cell, mapping, 'response_lengths');
  return { rows, columns, tokens: (row) => numberOf(cell(row, 'response_lengths')) };
}

// The rows and tokens that decide what log_probs are, and the largest mean difference between the log-probabilities of
// the trainer and of its rollout engine, for the same policy.
const ROWS_TO_COMPARE = 64;
const MAX_TOKENS_TO_COMPARE = 1 << 20;
const ENGINE_DIFFERENCE = 0.03;

/** Whether the user said which policy `log_probs` belong to, by reading a column from them. */
function isNamed({ names }: DumpContext): boolean {
  return names.isRead('log_probs');
}

/**
 * Decides whether log_probs are the old policy's, which slime recomputes before training, or the current policy's, which
 * it captures in training if the rollout engine's log-probabilities are the old ones. The file does not say it.
 */
function assignPolicies(
  mapping: Record<string, string>,
  rows: number,
  keys: readonly string[],
  cell: Cell,
  { file, names, settings }: DumpContext,
): void {
  const difference = keys.includes('rollout_log_probs') ? meanDifference(rows, cell) : 0;
  const isCurrent = difference > ENGINE_DIFFERENCE;
  Object.assign(
    mapping,
    isCurrent ? { logprobs: 'log_probs', old_logprobs: 'rollout_log_probs' } : { old_logprobs: 'log_probs' },
  );
  if (!names.isRead('logprobs') && !names.isRead('old_logprobs')) return;
  const [policy, words] = isCurrent
    ? ['current', '--column old_logprobs=log_probs']
    : ['old', '--column logprobs=log_probs --column old_logprobs=rollout_log_probs'];
  settings.warn(
    { file },
    {
      key: 'log_probs',
      expected: 'a note in the file whether they are of the old or of the current policy',
      received: `none; they differ from the rollout engine's by ${difference.toFixed(3)} on average`,
    },
    `They count as the ${policy} policy's. To say otherwise: ${words}`,
  );
}

function meanDifference(rows: number, cell: Cell): number {
  let sum = 0;
  let tokens = 0;
  for (let row = 0; row < Math.min(rows, ROWS_TO_COMPARE); row++) {
    const ours = tensorOf(cell(row, 'log_probs'));
    const engines = tensorOf(cell(row, 'rollout_log_probs'));
    const length = lengthOf(ours);
    if (!ours || !engines || length === undefined || length !== lengthOf(engines)) continue;
    if (tokens + length > MAX_TOKENS_TO_COMPARE) break;
    const a = ours.values();
    const b = engines.values();
    for (let t = 0; t < length; t++) {
      const difference = Math.abs(Number(a[t]) - Number(b[t]));
      if (!Number.isFinite(difference)) continue;
      sum += difference;
      tokens++;
    }
  }
  return tokens > 0 ? sum / tokens : 0;
}

function columnsFrom(
  keys: readonly string[],
  cell: Cell,
  mapping: Readonly<Record<string, string>>,
  lengthKey: string,
): Map<string, DumpColumn> {
  const columns = new Map<string, DumpColumn>();
  for (const [ours, theirs] of Object.entries(mapping))
    if (keys.includes(theirs)) columns.set(ours, (row) => cell(row, theirs));
  for (const key of keys) if (!columns.has(key)) columns.set(key, (row) => cell(row, key));
  columns.set('tokens', (row) => {
    const tokens = cell(row, 'tokens');
    const all = lengthOf(tokens);
    const length = numberOf(cell(row, lengthKey));
    return all === undefined || length === undefined ? tokens : partOf(tokens, all - length, all);
  });
  return columns;
}
