/**
 * Computes an algorithm's objective (policy loss − entropy loss + KL loss) from the reference's losses. Dropped rows
 * are really removed from the batch, and a row that counts twice really appears twice. The gradient of such a row is
 * the sum over its appearances.
 */
import type { RewardedBatch } from './advantage.js';
import type { Args, ReferenceResult } from './batch.js';
import {
  formulas,
  referenceEntropyLosses,
  referenceKl,
  referencePolicyLosses,
  standsOnEdge,
} from './index.js';

/**
 * The losses of an objective: their registry names, and their arguments including loss_agg_mode. A KL loss or entropy
 * loss with the name `none` adds nothing.
 */
export interface Parts {
  policy: { name: string; args: Args };
  kl: { name: string; args: Args };
  entropy: { name: string; args: Args };
}

export interface ReferenceObjective extends ReferenceResult {
  gradEntropy: Float64Array;
  /**
   * Each element of grad is a sum of terms from the policy loss and the KL loss, which may cancel. This is the largest
   * sum of the absolute values of an element's terms.
   */
  gradMagnitude: number;
}

/**
 * Returns a batch of these rows, in this order. A row may appear more than once. The number of columns stays the same.
 */
export function takeRows(batch: RewardedBatch, rows: readonly number[]): RewardedBatch {
  const taken: Record<string, unknown> = { ...batch, rows: rows.length };
  const places = rows.flatMap((b) => Array.from({ length: batch.columns }, (_, t) => b * batch.columns + t));
  for (const [name, column] of Object.entries(batch) as [string, number | ArrayLike<unknown> | undefined][]) {
    if (typeof column !== 'object') continue;
    const isPerToken = column.length === batch.rows * batch.columns;
    taken[name] = (isPerToken ? places : rows).map((at) => column[at]);
  }
  return taken as unknown as RewardedBatch;
}

/** Computes an objective. `times` holds how often each row counts; by default, each row counts once. */
export function referenceObjective(
  { policy, kl, entropy }: Parts,
  batch: RewardedBatch,
  times?: ArrayLike<number>,
): ReferenceObjective {
  const rows = Array.from({ length: batch.rows }, (_, b) =>
    new Array<number>(times?.[b] ?? 1).fill(b),
  ).flat();
  const counted = takeRows(batch, rows);
  // mix_chord reads the step even if all rows are dropped, so the step comes from the whole batch.
  if (batch.step) counted.step = batch.step;
  const whole: ReferenceObjective = {
    loss: 0,
    metrics: {},
    grad: new Float64Array(batch.rows * batch.columns),
    gradEntropy: new Float64Array(batch.rows * batch.columns),
    gradMagnitude: 0,
    magnitude: { loss: 0, metrics: {} },
  };
  const terms = new Float64Array(batch.rows * batch.columns);
  const add = (part: ReferenceResult, sign: number, gradient: Float64Array) => {
    whole.loss += sign * part.loss;
    whole.magnitude.loss += part.magnitude.loss;
    Object.assign(whole.metrics, part.metrics);
    Object.assign(whole.magnitude.metrics, part.magnitude.metrics);
    addGradient(part.grad, sign, gradient);
    if (part.gradEntropy) addGradient(part.gradEntropy, sign, whole.gradEntropy);
  };
  const addGradient = (from: ArrayLike<number>, sign: number, to: Float64Array) =>
    rows.forEach((b, place) => {
      for (let t = 0; t < batch.columns; t++) {
        const g = from[place * batch.columns + t]!;
        to[b * batch.columns + t]! += sign * g;
        if (to === whole.grad) terms[b * batch.columns + t]! += Math.abs(g);
      }
    });
  add(referencePolicyLosses[policy.name]!(policy.args, counted), 1, whole.grad);
  if (kl.name !== 'none') add(referenceKl[kl.name]!.loss(kl.args, counted), 1, whole.grad);
  if (entropy.name !== 'none')
    add(referenceEntropyLosses[entropy.name]!(entropy.args, counted), -1, whole.gradEntropy);
  whole.gradMagnitude = terms.reduce((most, x) => Math.max(most, x), 0);
  return whole;
}

/** Returns whether rounding to float32 could move a token across a threshold of the policy loss or of the KL loss. */
export function objectiveStandsOnEdge(parts: Parts, batch: RewardedBatch): boolean {
  const { policy } = parts;
  return standsOnEdge(formulas.policy[policy.name]!, policy.args, batch) || klStandsOnEdge(parts, batch);
}

/** Returns whether rounding to float32 could move a token across a threshold of the KL loss. */
export function klStandsOnEdge({ kl }: Parts, batch: RewardedBatch): boolean {
  return kl.name !== 'none' && standsOnEdge(formulas.kl[kl.name]!, kl.args, batch);
}

/**
 * Subtracts a KL penalty from the scores of tokens: score − coef·m·kl(old, ref), where m is the token mask, old the
 * policy that sampled the tokens and ref the reference policy. The result's `kl` is a mean over rows; the value of a
 * row is the mean over its unmasked tokens. The estimator corrected_k3 equals k3 here: it corrects by the ratio to an
 * older policy, and no policy older than `old` is given.
 */
export function penalisedRewards(
  estimator: string,
  coef: number,
  scores: ArrayLike<number>,
  batch: RewardedBatch,
): { tokenLevelRewards: Float64Array; kl: number } {
  const { rows, columns, oldLogprob, refLogprob, actionMask } = batch;
  const kl = referenceKl[estimator]!.values({
    rows,
    columns,
    actionMask,
    ...(batch.rowLengths ? { rowLengths: batch.rowLengths } : {}),
    logprob: oldLogprob!,
    refLogprob: refLogprob!,
  });
  const tokenLevelRewards = Float64Array.from(scores, (score, i) =>
    actionMask[i] ? score - coef * kl[i]! : score,
  );
  let total = 0;
  for (let b = 0; b < rows; b++) {
    const of = Array.from({ length: columns }, (_, t) => b * columns + t).filter((at) => actionMask[at]);
    total += of.reduce((sum, at) => sum + kl[at]!, 0) / (of.length + 1e-8);
  }
  return { tokenLevelRewards, kl: rows ? total / rows : 0 };
}
