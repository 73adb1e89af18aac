// `policy-loss identify`: finds the configurations that reproduce the numbers which a trainer logged.
import { type Command, InvalidArgumentError, Option } from 'commander';
import { LossError } from '../../../index.js';
import { type Candidate, type Identification, identify, TRAINER_NAMES } from '../../identify/index.js';
import { grpoMethod, perToken } from '../../parts/advantage-method.js';
import { type PackedRows, type RolloutPart, streamRollouts } from '../../rollouts/index.js';
import { fitted } from '../lines.js';
import { parseCount } from '../numbers.js';
import { countsOf, csv, type Printable, readable, styled, table, type Value } from '../output.js';
import {
  type RolloutsOptions,
  type RolloutsRun,
  rolloutsCommand,
  runOnRollouts,
} from '../rollouts-command.js';

interface IdentifyCommandOptions extends RolloutsOptions {
  logged: Record<string, string>;
  loss?: string[];
  trainer?: string;
  microBatches?: number[];
  tolerance: number;
  top: number;
}

/** The result of `policy-loss identify`, as `--json` prints it. */
export interface IdentifyReport {
  candidates: readonly Candidate[];
  /** How many configurations were tried, and how many per second. */
  tried: number;
  perSecond: number;
  rows: number;
  /** The number of unmasked tokens in all rows. */
  tokens: number;
  /** Numbers that were not logged and that would tell the candidates of rank 1 apart. */
  wouldTellApart: readonly string[];
  /** What a reader of the candidates should know about the files. */
  notes: readonly string[];
}

/** Adds the command `identify` to the command-line program. */
export function addIdentify(program: Command): void {
  rolloutsCommand(program, {
    name: 'identify',
    summary: "find the configuration behind a trainer's logged numbers",
    description:
      'Searches for the loss, its options, its aggregation, the KL term, the entropy coefficient, the micro-batches, ' +
      "the rollout correction and the roles of the columns that reproduce a trainer's logged numbers.",
    computes: false,
    options: OPTIONS(),
    help: HELP,
    examples: EXAMPLES,
  }).action((patterns: string[], options: IdentifyCommandOptions) =>
    runOnRollouts(patterns, options, [], {}, async (run) => {
      const part = await readAll(run);
      const hasMadeAdvantages = await addAdvantages(part);
      const { logged, loss, trainer, microBatches, tolerance, top } = options;
      const { progress } = run.settings;
      progress.begin('searching');
      const result = await identify(part.batch as PackedRows, {
        logged,
        tolerance,
        top,
        files: filesIn(part),
        ...(loss && { losses: loss }),
        ...(trainer !== undefined && { trainer }),
        ...(microBatches && { microBatches }),
        onProgress: (share, tried) => progress.advance(share, part.rows, tried * part.tokens),
      });
      return printable(result, part, hasMadeAdvantages, run);
    }),
  );
}

const OPTIONS = () => [
  new Option(
    '--logged <name=number>',
    'a number that the trainer logged: loss, pg_loss, kl_loss, entropy_loss, grad_norm (the 2-norm of ∂loss/∂logprob) ' +
      'or a metric such as pg_clipfrac; repeatable',
  )
    .argParser(parseLogged)
    .makeOptionMandatory(),
  new Option('--loss <name>', 'try only this policy loss; repeatable').argParser(
    (name: string, before: string[] = []) => [...before, name],
  ),
  new Option('--trainer <name>', 'apply the factors with which a trainer logs').choices([...TRAINER_NAMES]),
  new Option(
    '--micro-batches <numbers>',
    'the numbers of micro-batches to try, separated by commas; by default powers of two, and one per file',
  ).argParser(parseCounts),
  new Option('--tolerance <number>', 'the largest relative error of a number that counts as met')
    .default(1e-3)
    .argParser(parseTolerance),
  new Option('--top <number>', 'how many ranks to print').default(5).argParser(parseCount),
];

const HELP = `\
Candidates are ranked by how many logged numbers they meet, and then by the digits. Candidates that the logged numbers
cannot tell apart share a rank. Numbers are known to as many digits as are given: write 0.0300 for 0.03 if the log does.
A trainer's own grad_norm is over parameters, so it does not help. If the files have no logprobs, old_logprobs stand in.`;

const EXAMPLES = [
  'identify step-5.pkl --logged loss=-0.0381 --logged pg_clipfrac=0',
  "identify 'token_exports/step_3/*.jsonl' --logged loss=-0.08301 --logged ppo_kl=-0.000733 --top 3",
  'identify batch.pt --logged pg_loss=0.0285 --logged kl_loss=0.258 --loss ppo --loss verl/vanilla --json',
];

function parseLogged(text: string, before: Record<string, string> = {}): Record<string, string> {
  const at = text.indexOf('=');
  if (at <= 0 || text.slice(at + 1).trim() === '' || !Number.isFinite(Number(text.slice(at + 1))))
    throw new InvalidArgumentError("Expected a name and a number, such as 'loss=0.0336'.");
  return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
}

const parseCounts = (text: string) => text.split(',').map(parseCount);

function parseTolerance(text: string): number {
  const value = Number(text);
  if (!(value > 0 && value < 1)) throw new InvalidArgumentError('Expected a number between 0 and 1.');
  return value;
}

// Reads all rows, because every candidate runs on them.
async function readAll({ files, settings: { read, progress } }: RolloutsRun): Promise<RolloutPart> {
  progress.begin('reading');
  for await (const part of streamRollouts(files, {
    ...read,
    logprobs: 'optional',
    onProgress: ({ bytes, totalBytes, rows, tokens }) =>
      progress.advance(totalBytes > 0 ? bytes / totalBytes : 0, rows, tokens),
  }))
    return part;
  throw new LossError('ERR_INVALID_INPUT', { expected: 'rollouts', received: 'none' });
}

// Computes GRPO's advantages if the rows have none but rewards and groups. Returns whether it did.
async function addAdvantages({ batch }: RolloutPart): Promise<boolean> {
  const method = grpoMethod();
  if (!method.appliesTo(batch)) return false;
  const { computed } = await method.compute(batch);
  batch.advantages = perToken(batch, computed);
  return true;
}

// Returns the first row of each file.
function filesIn({ places }: RolloutPart): number[] {
  return places.flatMap(({ file }, row) => (file === places[row - 1]?.file ? [] : [row]));
}

function printable(
  result: Identification,
  part: RolloutPart,
  hasMadeAdvantages: boolean,
  { skipped }: RolloutsRun,
): Printable {
  const { candidates, tried, seconds, wouldTellApart } = result;
  const report: IdentifyReport = {
    candidates,
    tried,
    perSecond: Math.round(tried / seconds),
    rows: part.rows,
    tokens: part.tokens,
    wouldTellApart,
    notes: notesOn(part, hasMadeAdvantages, candidates),
  };
  const names = Object.keys(candidates[0]?.logged ?? {});
  const lines = (
    shown: readonly Candidate[],
    form: (x: number) => Value,
    rankOf: (candidate: Candidate) => Value = ({ rank }) => rank,
  ) =>
    shown.map((candidate): Value[] => [
      rankOf(candidate),
      describeLoss(candidate),
      describeTerms(candidate),
      `${candidate.logprobsFrom} / ${candidate.oldLogprobsFrom}`,
      ...names.map((name) => {
        const { value } = candidate.logged[name]!;
        return value === null ? undefined : form(value);
      }),
    ]);
  const head = ['rank', 'loss', 'and', 'current / old', ...names];
  return {
    json: () => report,
    csv: () =>
      csv(
        head,
        lines(candidates, (x) => x),
      ),
    text: () => {
      const shown = candidates.filter(
        (candidate, i) =>
          candidates.filter((other, j) => j < i && other.rank === candidate.rank).length < MOST_SHOWN,
      );
      const left = candidates.length - shown.length;
      const logged: Value[] = [
        '',
        'logged',
        '',
        '',
        ...names.map((name) => candidates[0]!.logged[name]!.logged),
      ];
      const told =
        wouldTellApart.length > 0
          ? [`To tell rank 1 apart, add --logged for: ${listed(wouldTellApart)}`]
          : [];
      const counts = countsOf({ ...report, ...(skipped !== undefined && { skipped }) });
      const inFull =
        candidates.length > 0 ? [logged, ...lines(shown, (x) => Number(readable(x)), labelIn(shown))] : [];
      return [
        table(head, inFull, 'left'),
        ...(left > 0 ? [dim(`${left} more that share a rank with these; --json lists them`)] : []),
        ...[...report.notes, ...told].map((text) => fitted(text)),
        dim(`${tried} configurations in ${seconds.toFixed(1)} s, ${report.perSecond} a second; ${counts}`),
      ].join('\n\n');
    },
  };
}

// How many candidates of a rank the table shows.
const MOST_SHOWN = 8;

// How many names of numbers a note lists.
const MOST_NAMES = 12;

function listed(names: readonly string[]): string {
  const more = names.length - MOST_NAMES;
  return more > 1
    ? `${names.slice(0, MOST_NAMES).join(', ')} and ${more} more; --json lists them`
    : names.join(', ');
}

const dim = (text: string) => styled('dim', fitted(text));

// Returns a function that labels the candidates of a rank 1a, 1b and so on, so that a table in parts shows which is which.
function labelIn(shown: readonly Candidate[]): (candidate: Candidate) => Value {
  return (candidate) => {
    const sharing = shown.filter(({ rank }) => rank === candidate.rank);
    const letter = String.fromCharCode('a'.charCodeAt(0) + sharing.indexOf(candidate));
    return sharing.length > 1 ? `${candidate.rank}${letter}` : candidate.rank;
  };
}

function notesOn(part: RolloutPart, hasMadeAdvantages: boolean, candidates: readonly Candidate[]): string[] {
  const best = candidates.filter(({ rank }) => rank === 1);
  const isAtOne = best.some(({ logprobsFrom, oldLogprobsFrom }) => logprobsFrom === oldLogprobsFrom);
  return [
    ...(part.batch.logprob === undefined
      ? ['The files have no logprobs, so old_logprobs or rollout_logprobs stand in for them.']
      : []),
    ...(hasMadeAdvantages
      ? ["The files have no advantages, so GRPO's are computed from reward and task_id."]
      : []),
    ...(isAtOne
      ? [
          'With the same log-probabilities in both roles, all ratios are 1: losses that differ only in how they clip ' +
            'are equal. A step after the first mini-batch would tell them apart.',
        ]
      : []),
  ];
}

function describeLoss({ loss, options, undetermined, lossAggMode, correction }: Candidate): string {
  const known = Object.entries({ ...options, ...correction })
    .filter(([name, value]) => !undetermined.includes(name) && typeof value === 'number')
    .map(([name, value]) => `${name}=${value}`);
  return [loss, lossAggMode, ...known].filter(Boolean).join(' ');
}

function describeTerms({
  kl,
  entropyCoef,
  microBatches,
  microBatchWeights,
  correction,
  factor,
}: Candidate): string {
  return [
    ...(kl ? [`${kl.coef ?? '?'}·${kl.fn}`] : []),
    ...(entropyCoef === 0 ? [] : [`−${entropyCoef}·entropy`]),
    ...(microBatches === 1
      ? []
      : [`${microBatches} micro-batches${microBatchWeights === 'rows' ? ' by rows' : ''}`]),
    ...(correction
      ? [
          Object.entries(correction)
            .map((pair) => pair.join('='))
            .join(' '),
        ]
      : []),
    ...(factor === 1 ? [] : [`×${readable(factor)}`]),
  ].join(', ');
}
