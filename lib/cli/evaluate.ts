// `policy-loss evaluate`: a policy loss or a whole algorithm on rollout files.
import { readFile } from 'node:fs/promises';
import type { Command } from 'commander';
import { columnOfKey, type ReadOptions, type Rollouts, readRollouts } from '../files/index.js';
import { ALGORITHM_TYPE, type Batch, fromTrinityConfig, LossError, POLICY_LOSS_FN } from '../index.js';
import { algorithmArguments, algorithmOptions } from './algorithm-options.js';
import { flagsIn, inSnakeCase, lossOptions, optionValue } from './function-options.js';
import { readable, readingProgress, twoColumns } from './output.js';
import { type AlgorithmParts, lossSubject, objectiveSubject, type Subject } from './subject.js';

/** What `--json` prints, numbers that are not finite as null. */
export interface Evaluation {
  /** The policy loss's or the algorithm's name. */
  name: string;
  loss: number;
  metrics: Partial<Record<string, number>>;
  rows: number;
  /** Those that the masks let count. */
  tokens: number;
  /** Of ∂loss/∂logprob over all tokens. */
  gradNorm: number;
  /** Of ∂loss/∂entropy over all tokens. Absent where there is no entropy loss, or no entropy that it could read. */
  gradEntropyNorm?: number;
  /**
   * Where the advantages are from: 'given' in the files, else the name of the advantage function that made them.
   * Absent where none are read.
   */
  advantages?: string;
  /** Of an algorithm: what it is made of. */
  algorithm?: AlgorithmParts;
}

// What says what is evaluated. Exactly one of them.
const CHOICES = ['--loss', '--algorithm', '--config'] as const;
type Choice = (typeof CHOICES)[number];
const OWN_OPTIONS: ReadonlySet<string> = new Set([...CHOICES, '--json', '--help']);

/**
 * Adds the command to a program.
 * @param words those that the program is about to parse: the options there are depend on the loss or the algorithm that
 * they name.
 * @throws LossError for an unknown loss or algorithm, for options that it does not have, and where the words do not say
 * what to evaluate, or say it twice.
 */
export function addEvaluate(program: Command, words: readonly string[]): void {
  const command = program
    .command('evaluate')
    .summary('compute a policy loss or an algorithm on rollout files')
    .description(
      "Computes a policy loss, or an algorithm's objective, on rollout files, with its metrics and the norm of its " +
        'gradient.',
    )
    .argument('<files...>', 'JSON lines, one rollout each; several files count as one')
    .option('--loss <name>', `a policy loss: ${POLICY_LOSS_FN.names().join(', ')}`)
    .option('--algorithm <name>', `an algorithm: ${ALGORITHM_TYPE.names().join(', ')}`)
    .option(
      '--config <file>',
      "the algorithm of a Trinity-RFT configuration, by the file's section algorithm",
    )
    .option('--json', 'print one JSON object, numbers in full')
    .addHelpText('after', HELP);
  if (words[0] !== command.name()) return;

  const choice = choiceIn(words.slice(1));
  const name = choice && optionValue(choice, words);
  if (choice === '--config') refuseFurther(words);
  else if (name !== undefined)
    for (const option of (choice === '--loss' ? lossOptions : algorithmOptions)(
      name,
      words.slice(1),
      OWN_OPTIONS,
    ))
      command.addOption(option);
  command.action(async (files: string[], options: Record<string, unknown>) => {
    const { loss, algorithm, config, json, ...values } = options;
    // Defaults are shown in the help, and are the functions' own business.
    for (const value of Object.keys(values))
      if (command.getOptionValueSource(value) === 'default') delete values[value];
    const evaluation = await evaluate(files, await subjectOf(choice!, name!, values));
    process.stdout.write(`${json ? JSON.stringify(evaluation) : describe(evaluation)}\n`);
  });
}

const HELP = `
The options of a loss follow its name, in kebab case: clip_range_low is --clip-range-low. An algorithm takes those of
its policy loss, those of its advantage function with 'advantage-' before them (--advantage-std-threshold), the names
of its functions (--kl-loss-fn) and their coefficients. With --config the file says it all.
'policy-loss evaluate --loss NAME --help' and 'policy-loss evaluate --algorithm NAME --help' list them with defaults.

Columns that are read: logprobs, old_logprobs, ref_logprobs, teacher_logprobs, advantages, action_mask, entropy,
reward, token_level_rewards, values, reward_baseline, task_id, run_id, expert, step, as the loss or the algorithm
needs them. Where the files have no advantages, an algorithm computes its own, and for a loss they come from reward and
task_id by GRPO's rule.

Exit codes: 0 done, 1 bad data, 2 bad usage.

Examples:
  $ policy-loss evaluate rollouts.jsonl --loss ppo
  $ policy-loss evaluate rollouts.jsonl --loss ppo --clip-range-low 0.2 --clip-range-high 0.28
  $ policy-loss evaluate part-*.jsonl --loss gspo --json
  $ policy-loss evaluate pairs.jsonl --loss dpo --beta 0.05
  $ policy-loss evaluate rollouts.jsonl --algorithm grpo
  $ policy-loss evaluate rollouts.jsonl --algorithm grpo --kl-loss-fn k3 --kl-coef 0.01 --advantage-std-threshold 0.01
  $ policy-loss evaluate rollouts.jsonl --algorithm rloo --policy-loss-fn cispo --clip-range-high 0.3 --json
  $ policy-loss evaluate rollouts.jsonl --config trinity.yaml`;

/** @returns undefined where help is asked for and nothing else. */
function choiceIn(words: readonly string[]): Choice | undefined {
  const flags = flagsIn(words);
  const chosen = CHOICES.filter((flag) => flags.includes(flag));
  if (chosen.length > 1)
    throw new LossError(
      'ERR_INVALID_OPTION',
      `expected exactly one of ${listed(CHOICES, 'or')}, and ${listed(chosen, 'and')} came`,
    );
  if (chosen.length === 0 && !flags.includes('--help') && !words.includes('-h'))
    throw new LossError(
      'ERR_INVALID_OPTION',
      'expected exactly one of --loss <name>, --algorithm <name> or --config <file>, to say what to evaluate, and none ' +
        "came; 'policy-loss evaluate --help' has examples",
    );
  return chosen[0];
}

function refuseFurther(words: readonly string[]): void {
  const further = flagsIn(words).filter((flag) => !OWN_OPTIONS.has(flag));
  if (further.length > 0)
    throw new LossError(
      'ERR_INVALID_OPTION',
      `${listed(further, 'and')}: not with --config, whose file says it all; options go with --loss or --algorithm`,
    );
}

function listed(words: readonly string[], last: 'and' | 'or'): string {
  return [words.slice(0, -1).join(', '), words.at(-1)].filter(Boolean).join(` ${last} `);
}

async function subjectOf(choice: Choice, name: string, values: Record<string, unknown>): Promise<Subject> {
  if (choice === '--loss') return lossSubject(name, values);
  if (choice === '--config') return objectiveSubject(await configured(name));
  const { config, seed } = algorithmArguments(name, values);
  return objectiveSubject(ALGORITHM_TYPE.get(name).objective(config), seed);
}

async function configured(file: string) {
  let text: string;
  try {
    text = await readFile(file, 'utf8');
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new LossError(
      'ERR_INVALID_INPUT',
      `${file}: expected a configuration, and it cannot be read: ${reason}`,
      { cause: error },
    );
  }
  try {
    return fromTrinityConfig(text);
  } catch (error) {
    if (!(error instanceof LossError)) throw error;
    throw new LossError(error.code, `${file}: ${inSnakeCase(error.message)}`, { cause: error });
  }
}

async function evaluate(files: string[], subject: Subject): Promise<Evaluation> {
  const { batch, rows, tokens } = await read(files, subject);
  const { result, advantages } = await subject.compute(batch).catch((error: unknown) => {
    throw inTermsOfColumns(error, subject, batch, files);
  });
  const { loss, metrics, grad, gradEntropy } = result;
  const evaluation: Evaluation = { name: subject.name, loss, metrics, rows, tokens, gradNorm: norm(grad!) };
  if (gradEntropy && metrics.entropy_loss !== undefined) evaluation.gradEntropyNorm = norm(gradEntropy);
  if (advantages !== undefined) evaluation.advantages = advantages;
  if (subject.parts) evaluation.algorithm = subject.parts;
  return evaluation;
}

async function read(files: string[], { columns }: Subject): Promise<Rollouts> {
  const progress = await readingProgress(files);
  let read = 0;
  const onProgress: ReadOptions['onProgress'] = ({ bytes, rows }) => {
    progress.advance(bytes - read, rows);
    read = bytes;
  };
  try {
    return await readRollouts(files, { columns, onProgress });
  } finally {
    progress.stop();
  }
}

// The functions themselves know best what they cannot do without: with some options they read less than their keys.
function inTermsOfColumns(error: unknown, subject: Subject, batch: Batch, files: readonly string[]): unknown {
  if (!(error instanceof LossError) || error.code !== 'ERR_MISSING_INPUT') return error;
  const key = /^the batch has no (\w+)/.exec(error.message)?.[1];
  if (key === undefined || batch[key] !== undefined) return error;
  // Of rewards that a penalty is to be taken from files have one a row.
  const column = key === 'tokenLevelScores' ? 'reward' : columnOfKey(key);
  if (column === undefined) return error;
  const instead = subject.insteadOf(column);
  const expected = ['it in every row', ...instead].join(', or ');
  const found = ['it in none', 'neither', 'none of them'][instead.length]!;
  const where = files.length === 1 ? `${files[0]} has` : 'the files have';
  return new LossError(
    'ERR_MISSING_INPUT',
    `${subject.name} reads the column ${column}: expected ${expected}, and ${where} ${found}`,
    { cause: error },
  );
}

function norm(values: Float32Array): number {
  let squares = 0;
  for (const x of values) squares += x * x;
  return Math.sqrt(squares);
}

function describe(evaluation: Evaluation): string {
  const { name, loss, metrics, rows, tokens, gradNorm, gradEntropyNorm, advantages, algorithm } = evaluation;
  const table = twoColumns([
    ...(algorithm ? describeParts(name, algorithm, advantages) : [['function', name] as const]),
    ...Object.entries({ loss, ...metrics }).map(([metric, value]) => [metric, readable(value!)] as const),
    ['gradient norm', readable(gradNorm)],
    ...(gradEntropyNorm === undefined ? [] : [['entropy gradient norm', readable(gradEntropyNorm)] as const]),
    ['rows', String(rows)],
    ['tokens', String(tokens)],
  ]);
  return !algorithm && advantages === 'grpo' ? `${table}\n\n${GRPO_NOTE}` : table;
}

function describeParts(name: string, parts: AlgorithmParts, advantages: string | undefined) {
  const weighted = (fn: string, coefficient: number) =>
    fn === 'none' ? fn : `${readable(coefficient)} × ${fn}`;
  const lines: [string, string][] = [
    ['algorithm', name],
    ['policy loss', parts.policyLossFn],
    ['advantages', advantages ?? 'none'],
    ['KL loss', weighted(parts.klLossFn, parts.klCoef)],
    ['entropy loss', weighted(parts.entropyLossFn, parts.entropyCoef)],
  ];
  if (parts.klPenaltyFn !== undefined) lines.splice(3, 0, ['KL penalty', parts.klPenaltyFn]);
  return lines;
}

const GRPO_NOTE =
  "Advantages come from reward and task_id by GRPO's rule: (reward − mean) / (std + 1e-6) within each task.";
