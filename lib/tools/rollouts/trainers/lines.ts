// The JSON lines that trainers write. Each layout says by which keys it is recognised, and how the values of a line become
// the columns of a row.
import { badFile, type Place, ROW_TOKENS, type RowValues } from '../source.js';

/** The values of a line, by the trainer's keys. Those that need not be parsed are undefined. */
type Values = Readonly<Record<string, unknown>>;

/** How a trainer writes rows as JSON lines. */
export interface LineLayout {
  /** The keys that every line has, by which the layout is recognised. */
  keys: readonly string[];
  /** The keys that are always parsed. */
  needs: readonly string[];
  /** The keys of the trainer's values that become columns of rollouts, by the names of these columns. */
  columns: Readonly<Record<string, string>>;
  /** Returns the columns of a row. */
  row(values: Values, columns: Readonly<Record<string, string>>): Partial<RowValues>;
  /** Whether a line has the values of several rows, in lists. */
  isTransposed?: boolean;
}

/** Returns a value that is in a list of its own. */
const single = (value: unknown) => (Array.isArray(value) && value.length <= 1 ? value[0] : value);

/** Returns the elements `from` to `to` of a list. */
const cut = (value: unknown, from: number, to: number) =>
  Array.isArray(value) ? value.slice(from, to) : value;

/**
 * Returns the columns of a row whose lists have the prompt before the response.
 * @param mask a list that is 0 on the prompt and on padding.
 * @param to where padding begins.
 */
function responseOf(
  values: Values,
  columns: Readonly<Record<string, string>>,
  mask: readonly unknown[],
  to: number,
): RowValues {
  // The first token follows nothing, so it is never part of a response.
  const found = mask.findIndex((flag, t) => t > 0 && t < to && flag !== 0 && flag !== false);
  const from = found < 0 ? to : found;
  const row: RowValues = { [ROW_TOKENS]: to - from };
  const cutIfLong = (value: unknown) => (listOf(value).length === mask.length ? cut(value, from, to) : value);
  for (const [key, value] of Object.entries(values)) row[key] = cutIfLong(value);
  Object.assign(row, renamed(row, columns));
  row.action_mask = mask.slice(from, to);
  return row;
}

const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);

const count = (value: unknown) =>
  Number.isSafeInteger(value) && (value as number) >= 0 ? (value as number) : undefined;

/** NeMo-RL: every value is in a list of its own, and lists of tokens have the prompt and padding. */
const nemoRl: LineLayout = {
  keys: ['token_ids', 'token_loss_mask', 'sample_loss_mask', 'prev_logprobs', 'input_lengths'],
  needs: ['token_loss_mask', 'sample_loss_mask', 'input_lengths'],
  columns: {
    old_logprobs: 'prev_logprobs',
    rollout_logprobs: 'generation_logprobs',
    advantages: 'advantages',
    tokens: 'token_ids',
    reward: 'rewards',
    response: 'content',
  },
  row(theirs, columns) {
    const values = Object.fromEntries(Object.entries(theirs).map(([key, value]) => [key, single(value)]));
    const mask = listOf(values.token_loss_mask);
    const length = Math.min(count(values.input_lengths) ?? mask.length, mask.length);
    const row = responseOf(values, columns, mask, length);
    if (values.sample_loss_mask === 0) row.action_mask = listOf(row.action_mask).map(() => 0);
    return row;
  },
};

/** prime-rl's exports of tokens, with the prompt in front. */
const primeRl: LineLayout = {
  keys: ['token_ids', 'loss_mask', 'inference_logprobs', 'trainer_logprobs'],
  needs: ['loss_mask'],
  columns: {
    logprobs: 'trainer_logprobs',
    old_logprobs: 'inference_logprobs',
    rollout_logprobs: 'inference_logprobs',
    advantages: 'advantages',
    entropy: 'entropy',
    tokens: 'token_ids',
  },
  row(values, columns) {
    const mask = listOf(values.loss_mask);
    return responseOf(values, columns, mask, mask.length);
  },
};

/** Returns columns under other names. */
function renamed(values: Values, columns: Readonly<Record<string, string>>): RowValues {
  const found = Object.entries(columns).filter(([, theirs]) => theirs in values);
  return Object.fromEntries(found.map(([ours, theirs]) => [ours, values[theirs]]));
}

/** AReaL's trajectories: text, rewards and lengths. */
const areal: LineLayout = {
  keys: ['task_id', 'sample_idx', 'seqlen', 'prompt_len', 'completion'],
  needs: ['seqlen', 'prompt_len'],
  columns: { run_id: 'sample_idx', response: 'completion' },
  row(values, columns) {
    const tokens = count(Number(values.seqlen) - Number(values.prompt_len));
    return { ...renamed(values, columns), [ROW_TOKENS]: tokens };
  },
};

/** verl's text of the rollouts. */
const verl: LineLayout = {
  keys: ['input', 'output', 'score', 'step'],
  needs: [],
  columns: { reward: 'score', prompt: 'input', response: 'output', task_id: 'uid' },
  row: renamed,
};

/** Trinity-RFT's buffers as text. */
const trinity: LineLayout = {
  keys: ['eid', 'prompt_length', 'response_length'],
  needs: ['eid', 'response_length'],
  columns: { prompt: 'prompt_text', response: 'response_text' },
  row(values, columns) {
    const { batch, task, run, step } = Object(values.eid) as Values;
    return {
      ...renamed(values, columns),
      task_id: batch === undefined ? task : `${batch}/${task}`,
      run_id: run,
      step,
      [ROW_TOKENS]: count(values.response_length),
    };
  },
};

/** ROLL's rollouts: one line with a list for each column. */
const roll: LineLayout = {
  keys: ['responses', 'scores', 'global_step'],
  needs: ['responses'],
  columns: { reward: 'scores', response: 'responses', step: 'global_step' },
  row: renamed,
  isTransposed: true,
};

const LAYOUTS = [nemoRl, primeRl, areal, verl, trinity, roll];
const METRICS = /^\w+\/./;
const BOOKKEEPING = new Set(['step', 'epoch', 'time', 'timestamp']);

/**
 * Returns the layout of lines with these keys; undefined if they are the package's own.
 * @throws LossError if the lines are a trainer's metrics, not rollouts.
 */
export function layoutOf(keys: readonly string[], { file }: Place): LineLayout | undefined {
  const isVerlsMetrics = keys.length === 2 && keys.includes('step') && keys.includes('data');
  const others = keys.filter((key) => !BOOKKEEPING.has(key));
  if (isVerlsMetrics || (others.length > 0 && others.every((key) => METRICS.test(key))))
    throw badFile(file, {
      expected: 'rollouts',
      received: `a log of metrics with ${keys.slice(0, 4).join(', ')}`,
      hint: 'A loss is computed from the log-probabilities of rollouts, which the trainer writes to other files',
    });
  if (keys.includes('logprobs')) return undefined;
  return LAYOUTS.find((layout) => layout.keys.every((key) => keys.includes(key)));
}
