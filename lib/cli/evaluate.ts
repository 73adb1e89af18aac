// `policy-loss evaluate`: one loss on rollout files.
import type { Command } from 'commander';
import { groupAdvantages } from '../advantage/group-advantages.js';
import { KeyMapper, LossError, POLICY_LOSS_FN } from '../index.js';
import { type ReadRolloutsOptions, type RolloutColumn, type Rollouts, readRollouts } from '../rollouts.js';
import { lossOptions, optionValue } from './loss-options.js';
import { readable, readingProgress, twoColumns } from './output.js';

/** What `--json` prints, numbers that are not finite as null. */
export interface Evaluation {
  /** The loss function's name. */
  name: string;
  loss: number;
  metrics: Partial<Record<string, number>>;
  rows: number;
  /** Those that the masks let count. */
  tokens: number;
  /** Of ∂loss/∂logprob over all tokens. */
  gradNorm: number;
  /** Where the advantages are from: the files, or their rewards by GRPO's rule. Absent where the loss reads none. */
  advantages?: 'given' | 'grpo';
}

const OWN_OPTIONS: ReadonlySet<string> = new Set(['--loss', '--json', '--help']);

/**
 * Adds the command to a program.
 * @param words those that the program is about to parse: the options there are depend on the loss that they name.
 * @throws LossError for an unknown loss, and for options that it does not have.
 */
export function addEvaluate(program: Command, words: readonly string[]): void {
  const command = program
    .command('evaluate')
    .summary('compute a policy loss on rollout files')
    .description('Computes a policy loss, its metrics and the norm of its gradient on rollout files.')
    .argument('<files...>', 'JSON lines, one rollout each; several files count as one')
    .requiredOption('--loss <name>', `the loss: ${POLICY_LOSS_FN.names().join(', ')}`)
    .option('--json', 'print one JSON object, numbers in full')
    .addHelpText('after', HELP)
    .action(async (files: string[], { loss, json, ...args }: { loss: string; json?: true }) => {
      const evaluation = await evaluate(files, loss, args);
      process.stdout.write(`${json ? JSON.stringify(evaluation) : describe(evaluation)}\n`);
    });
  const loss = words[0] === command.name() ? optionValue('--loss', words) : undefined;
  if (loss !== undefined)
    for (const option of lossOptions(loss, words.slice(1), OWN_OPTIONS)) command.addOption(option);
}

const HELP = `
The loss's own options follow its name, in kebab case: clip_range_low is --clip-range-low.
'policy-loss evaluate --loss NAME --help' lists them with their defaults.

Columns that are read: logprobs, old_logprobs, ref_logprobs, advantages, action_mask, expert, step, as the loss needs
them. Where a loss needs advantages and the files have none, they come from reward and task_id by GRPO's rule.

Exit codes: 0 done, 1 bad data, 2 bad usage.

Examples:
  $ policy-loss evaluate rollouts.jsonl --loss ppo
  $ policy-loss evaluate rollouts.jsonl --loss ppo --clip-range-low 0.2 --clip-range-high 0.28
  $ policy-loss evaluate part-*.jsonl --loss gspo --json
  $ policy-loss evaluate rollouts.jsonl --loss cispo --enable-mask-clip --loss-agg-mode seq-mean-token-mean
  $ policy-loss evaluate pairs.jsonl --loss dpo --beta 0.05`;

async function evaluate(files: string[], name: string, args: Record<string, unknown>): Promise<Evaluation> {
  const fn = POLICY_LOSS_FN.create(name, args);
  const mapper = KeyMapper.get(fn.backend);
  const needed = fn.selectKeys.flatMap((key) => COLUMN_OF[mapper.toTrinity(key)] ?? []);
  const rollouts = await read(files, needed);

  const { batch } = rollouts;
  let advantages: Evaluation['advantages'];
  if (needed.includes('advantages')) {
    advantages = batch.advantages === undefined && batch.rewards && batch.groupIds ? 'grpo' : 'given';
    if (advantages === 'grpo')
      batch.advantages = perToken(groupAdvantages(batch.rewards!, batch.groupIds!), batch.cuSeqlens);
  }
  const { loss, metrics, grad } = await fn.compute(batch, { grad: true }).catch((error: unknown) => {
    throw inTermsOfColumns(error, name, needed, rollouts, files);
  });
  const { rows, tokens } = rollouts;
  const evaluation: Evaluation = { name, loss, metrics, rows, tokens, gradNorm: norm(grad!) };
  if (advantages) evaluation.advantages = advantages;
  return evaluation;
}

// The columns behind Trinity's names of the keys that losses read, and the batch keys that they become.
const COLUMN_OF: Partial<Record<string, RolloutColumn>> = {
  old_logprob: 'old_logprobs',
  ref_logprob: 'ref_logprobs',
  advantages: 'advantages',
  expert_mask: 'expert',
  step: 'step',
};
const KEY_OF: Partial<Record<RolloutColumn, string>> = {
  old_logprobs: 'oldLogprob',
  ref_logprobs: 'refLogprob',
  advantages: 'advantages',
  expert: 'expertMask',
  step: 'step',
};

async function read(files: string[], needed: readonly RolloutColumn[]): Promise<Rollouts> {
  const columns = needed.includes('advantages') ? [...needed, 'reward' as const, 'task_id' as const] : needed;
  const progress = await readingProgress(files);
  const onProgress: ReadRolloutsOptions['onProgress'] = (bytes, rows) => progress.advance(bytes, rows);
  try {
    return await readRollouts(files, { columns, onProgress });
  } finally {
    progress.stop();
  }
}

// The loss itself knows best what it cannot do without: with some options it reads less than its keys.
function inTermsOfColumns(
  error: unknown,
  loss: string,
  needed: readonly RolloutColumn[],
  { batch }: Rollouts,
  files: readonly string[],
): unknown {
  if (!(error instanceof LossError) || error.code !== 'ERR_MISSING_INPUT') return error;
  const column = needed.find((name) => {
    const key = KEY_OF[name]!;
    return batch[key] === undefined && error.message.includes(key);
  });
  if (column === undefined) return error;
  const where = files.length === 1 ? `${files[0]} has` : 'the files have';
  return new LossError(
    'ERR_MISSING_INPUT',
    column === 'advantages'
      ? `${loss} reads the column advantages: expected it in every row, or both reward and task_id to compute it ` +
          `from by GRPO's rule, and ${where} neither`
      : `${loss} reads the column ${column}: expected it in every row, and ${where} it in none`,
    { cause: error },
  );
}

// A number per row would do for the loss, but for batches with as many tokens as rows and a row that has none.
function perToken(perRow: Float64Array, cuSeqlens: Int32Array): Float32Array {
  const values = new Float32Array(cuSeqlens.at(-1)!);
  perRow.forEach((x, row) => {
    values.fill(x, cuSeqlens[row], cuSeqlens[row + 1]);
  });
  return values;
}

function norm(values: Float32Array): number {
  let squares = 0;
  for (const x of values) squares += x * x;
  return Math.sqrt(squares);
}

function describe({ name, loss, metrics, rows, tokens, gradNorm, advantages }: Evaluation): string {
  const table = twoColumns([
    ['function', name],
    ...Object.entries({ loss, ...metrics }).map(([metric, value]) => [metric, readable(value!)] as const),
    ['gradient norm', readable(gradNorm)],
    ['rows', String(rows)],
    ['tokens', String(tokens)],
  ]);
  return advantages === 'grpo' ? `${table}\n\n${GRPO_NOTE}` : table;
}

const GRPO_NOTE =
  "Advantages come from reward and task_id by GRPO's rule: (reward − mean) / (std + 1e-6) within each task.";
