/**
 * Reads the golden cases: inputs, and the results that Trinity-RFT computed from them in float64. test/golden/README.md
 * describes the files.
 */
import { readFileSync } from 'node:fs';
import type { Batch, LossAggMode } from '../../lib/index.js';
import { camelCase } from '../reference/batch.js';
import type { ReferenceBatch } from '../reference/index.js';
import { fromHalf } from './half.js';
import { generator } from './random.js';

export interface Tensor {
  /** uint16 are the bits of bfloat16. */
  dtype: 'float32' | 'float64' | 'bool' | 'int32' | 'int64' | 'uint16';
  shape: number[];
  /** JSON has no −Infinity, so it is a text, which becomes a number in float32. */
  data: number[];
}

interface Case {
  id: string;
  fn: string;
  inputs: Record<string, Tensor>;
}
export interface PolicyLossCase extends Case {
  args: Record<string, unknown>;
  select_keys_verl: string[];
  expected: { loss: number; metrics: Record<string, number>; grad_logprob: Tensor };
}
export interface KlLossCase extends Case {
  args: { kl_coef: number; loss_agg_mode: string };
  expected: { kl: Tensor; loss: number; metrics: Record<string, number>; grad_logprob: Tensor };
}
export interface EntropyLossCase extends Case {
  args: { entropy_coef: number; loss_agg_mode: string };
  expected: { loss: number; metrics: Record<string, number>; grad_entropy: Tensor };
}

/** A loss written as an expression. `args` holds the values of the options. */
export interface ExpressionCase {
  id: string;
  expression: string;
  args: Record<string, number>;
  loss_agg_mode: LossAggMode;
  inputs: Record<string, Tensor>;
  expected: { loss: number; grad_logprob: Tensor };
}
export interface AdvantageCase extends Case {
  args: Record<string, unknown>;
  expected: { advantages: Tensor; returns: Tensor; kept_rows: number[]; metrics: Record<string, number> };
}
export interface AlgorithmCase {
  id: string;
  algorithm: string;
  policy_loss_fn: string;
  policy_loss_fn_args: Record<string, unknown>;
  kl_loss_fn: string;
  kl_coef: number;
  entropy_loss_fn: string;
  entropy_coef: number;
  loss_agg_mode: string;
  inputs: Record<string, Tensor>;
  expected: { loss: number; metrics: Record<string, number>; grad_logprob: Tensor; grad_entropy: Tensor };
}

export interface FrameworkLossCase extends Case {
  kind: 'policy_loss';
  /** The framework that computed the case, if a file has cases of several. */
  source?: string;
  args: Record<string, unknown>;
  expected: {
    loss: number;
    metrics: Record<string, number>;
    grad_logprob: Tensor;
    grad_log_z?: Tensor;
    grad_entropy?: Tensor;
  };
}
/** A case of a preference loss. The state is that after the call. */
export interface PreferenceCase extends Case {
  kind: 'preference_loss';
  args: Record<string, unknown>;
  expected: {
    loss: number;
    metrics: Record<string, number>;
    grad_logprob: Tensor;
    grad_entropy_other?: Tensor;
    state?: { running_mean: number; running_count: number };
  };
}
/** A case of a loss of values or of rewards. */
export interface FamilyCase extends Case {
  kind: 'value_loss' | 'reward_loss';
  source: string;
  args: Record<string, unknown>;
  expected: {
    loss: number;
    /** A metric that is null is not compared. */
    metrics: Record<string, number | null>;
    grad_values?: Tensor;
    grad_rewards?: Tensor;
  };
}
/** A case of a loss from logits. */
export interface LogitsLossCase extends Case {
  kind: 'distill_loss' | 'sft_loss';
  source: string;
  args: Record<string, unknown>;
  expected: {
    loss: number;
    metrics: Record<string, number>;
    grad_logits?: Tensor;
    grad_probs?: Tensor;
  };
}
/** Logits, and the gradients with respect to the results. The bits of 16-bit logits are integers. */
export interface LogitsGoldenCase {
  id: string;
  args: {
    dtype: 'float32' | 'float16' | 'bfloat16';
    temperature: number | number[] | null;
    softcap: number | null;
    support?: { token_ids: number[]; offsets: number[] };
  };
  inputs: {
    /** JSON has no −Infinity, so it is a text. */
    logits: { shape: number[]; data: (number | string)[] };
    targets: Tensor;
    grad_logprob: Tensor;
    grad_entropy: Tensor;
  };
  expected: { logprob: Tensor; logsumexp: Tensor; entropy: Tensor; grad_logits: Tensor };
}
/** A case of a framework other than Trinity-RFT. */
export type FrameworkCase =
  | FrameworkLossCase
  | (Case & {
      kind: 'rollout_correction';
      args: Record<string, unknown>;
      expected: { weights: Tensor | null; kept_mask: Tensor; metrics: Record<string, number> };
    })
  | (KlLossCase & { kind: 'kl_loss' })
  | (AdvantageCase & { kind: 'advantage' });

const read = <T>(file: string): T[] =>
  JSON.parse(readFileSync(new URL(`../golden/${file}.json`, import.meta.url), 'utf8'));

export const policyLossCases = read<PolicyLossCase>('policy_loss');
export const klLossCases = read<KlLossCase>('kl_loss');
export const entropyLossCases = read<EntropyLossCase>('entropy_loss');

export const expressionCases = read<ExpressionCase>('frameworks/expressions');
export const trlCases = read<FrameworkLossCase | (PreferenceCase & { trainer: string })>('frameworks/trl');
export const papersCases = read<FrameworkLossCase>('frameworks/papers');
export const logitsCases = read<LogitsGoldenCase>('frameworks/logits');
export const verlCases = read<FrameworkCase>('frameworks/verl');
const valueCases = read<FamilyCase | LogitsLossCase>('families/value');
const isFromLogits = (each: FamilyCase | LogitsLossCase): each is LogitsLossCase =>
  each.kind === 'sft_loss' || each.kind === 'distill_loss';
export const familyCases = valueCases.filter((each): each is FamilyCase => !isFromLogits(each));
export const logitsLossCases: readonly LogitsLossCase[] = [
  ...read<LogitsLossCase>('families/distill'),
  ...read<LogitsLossCase>('families/sft'),
  ...valueCases.filter(isFromLogits),
];
/** Losses of log-probabilities, and advantages of on-policy distillation. */
export const logprobCases = read<
  | (Omit<FrameworkLossCase, 'kind'> & { kind: 'sft_loss' | 'distill_loss' })
  | (Omit<AdvantageCase, 'expected'> & {
      kind: 'advantage';
      expected: Pick<AdvantageCase['expected'], 'advantages' | 'metrics'> & { returns?: Tensor };
    })
>('families/sft-logprobs');
/** The cases of all preference losses, under the losses' registry names. */
export const preferenceCases: PreferenceCase[] = [
  ...trlCases.flatMap((each) =>
    each.kind === 'preference_loss' && each.trainer !== 'reward'
      ? [
          {
            ...each,
            fn: `trl/${each.trainer}`,
            args: each.trainer === 'kto' ? { ...each.args, loss_type: each.fn } : each.args,
          },
        ]
      : [],
  ),
  ...read<PreferenceCase>('families/preference'),
];
/** The cases of all advantage functions, under the functions' registry names. */
export const advantageCases: AdvantageCase[] = [
  ...read<AdvantageCase>('advantage'),
  ...logprobCases.flatMap((each) => {
    if (each.kind !== 'advantage') return [];
    const { advantages, returns = advantages, metrics } = each.expected;
    const kept_rows = new Array<number>(each.inputs.action_mask!.shape[0]!).fill(1);
    return [{ ...each, expected: { advantages, returns, kept_rows, metrics } }];
  }),
  ...verlCases.flatMap((each) => (each.kind === 'advantage' ? [{ ...each, fn: `verl/${each.fn}` }] : [])),
];
export const algorithmCases = read<AlgorithmCase>('algorithm');

export function referenceBatch(inputs: Record<string, Tensor>): ReferenceBatch {
  // Losses of rewards read no tokens, so their rows are taken to have one each.
  const { action_mask, targets, rewards } = inputs;
  const [rows, columns] = ((action_mask ?? targets)?.shape ?? [rewards!.data.length, 1]) as [number, number];
  // The files hold float32 inputs with only as many digits as identify them. Rounding to float32 restores the exact
  // numbers.
  const columnsByName = Object.entries(inputs).map(([key, { dtype, data }]) => [
    camelCase(key),
    dtype === 'float32'
      ? data.map(Math.fround)
      : dtype === 'uint16'
        ? data.map((bits) => fromHalf(bits, 'bfloat16'))
        : data,
  ]);
  const actionMask = new Array<number>(rows * columns).fill(1);
  return { rows, columns, actionMask, ...Object.fromEntries(columnsByName) };
}

/** Returns a case's inputs as a batch for the library, under the case's own keys. */
export function goldenBatch(inputs: Record<string, Tensor>): Batch {
  const columns = Object.entries(inputs).map(([key, { dtype, data }]) => {
    if (dtype === 'bool') return [key, Uint8Array.from(data)];
    if (dtype === 'uint16') return [key, { data: Uint16Array.from(data), dtype: 'bfloat16' }];
    return [key, dtype === 'float32' ? Float32Array.from(data) : data];
  });
  const perToken = inputs.action_mask ?? inputs.targets;
  const shape = perToken && { shape: perToken.shape };
  return { ...shape, ...Object.fromEntries(columns) } as Batch;
}

/**
 * Gives the rows of a batch random lengths, so that it is laid out packed: cuts masked tokens off the ends of the rows.
 * Row 0 keeps its full length, so that the longest row stays as long as before.
 */
export function cutRows(batch: ReferenceBatch): ReferenceBatch {
  const { integer } = generator(batch.rows * 1000 + batch.columns);
  const rowLengths = Array.from({ length: batch.rows }, (_, b) => {
    let needed = batch.columns;
    const isRead = (at: number) => batch.actionMask[at] || batch.attentionMask?.[at];
    while (needed > 1 && !isRead(b * batch.columns + needed - 1)) needed--;
    return integer(needed, batch.columns);
  });
  rowLengths[0] = batch.columns;
  return { ...batch, rowLengths };
}
