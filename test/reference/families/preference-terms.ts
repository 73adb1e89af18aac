/** What the references of preference losses share. Rows alternate: chosen, rejected, and for TPO a third row. */
import type { Variable } from '../autograd.js';
import { type Outcome, option, type Tokens } from '../batch.js';

export interface Sides {
  chosen: Variable;
  rejected: Variable;
}

/** Returns the indices of the rows that are at a place of their pair. */
const placesOf = (x: Tokens, place: number, size = 2): number[] =>
  x.rows.map((_, row) => row).filter((row) => row % size === place);

/** Returns a value of the rows at one place. */
export const atPlace = (x: Tokens, perRow: Variable, place: number, size = 2): Variable =>
  perRow.gather(placesOf(x, place, size));

export const sidesOf = (x: Tokens, perRow: Variable, size = 2): Sides => ({
  chosen: atPlace(x, perRow, 0, size),
  rejected: atPlace(x, perRow, 1, size),
});

export const difference = ({ chosen, rejected }: Sides): Variable => chosen.sub(rejected);
export const times = ({ chosen, rejected }: Sides, by: number): Sides => ({
  chosen: chosen.mul(by),
  rejected: rejected.mul(by),
});

/** The mean over all pairs; 0 without pairs. */
export const meanOf = (values: Variable): Variable => values.sum().per(values.length || 1);
export const wins = ({ chosen, rejected }: Sides): Variable =>
  meanOf(chosen.sub(rejected).test((d) => d > 0));

/** Numbers of rows as constants. */
export const constants = (x: Tokens, values: ArrayLike<number>): Variable =>
  x.tape.leaf(x.rows.map((row) => Number(values[row])));
/** The number of tokens of each row. */
export const lengths = (x: Tokens): Variable => x.tape.leaf(x.counts);
/** A sum of each row, divided by its number of tokens, or by 1. */
export const averaged = (x: Tokens, perRow: Variable): Variable =>
  perRow.div(x.tape.leaf(x.counts.map((n) => Math.max(n, 1))));

export interface RowSums {
  policy: Variable;
  reference: Variable;
  z: Variable;
}

/** Returns the sums of the rows' log-probabilities under the policy and the reference, and their difference. */
export function rowSums(x: Tokens, weight?: Variable, ofReference: Variable | undefined = weight): RowSums {
  const weighted = (values: Variable, by: Variable | undefined) => (by ? values.mul(by) : values);
  const policy = x.rowSum(weighted(x.logprob, weight));
  const { refLogps } = x.batch;
  const reference = refLogps ? constants(x, refLogps) : x.rowSum(weighted(x.refLogprob, ofReference));
  return { policy, reference, z: policy.sub(reference) };
}

/** Returns the place of each unmasked token among those of its row, from 0. */
export function tokenPlaces(x: Tokens): number[] {
  const seen = x.rows.map(() => 0);
  return x.rowOf.map((row) => seen[row]!++);
}

/** Returns the number of tokens of the shorter row of each row's pair. */
export const shorter = (x: Tokens): number[] => {
  const { counts } = x;
  return counts.map((n, row) => Math.min(n, counts[row ^ 1]!));
};

export function lengthWeights(x: Tokens, alpha: number | null): Variable | undefined {
  if (alpha === null) return undefined;
  const limits = shorter(x);
  const places = tokenPlaces(x);
  return x.tape.leaf(places.map((t, i) => (t < limits[x.rowOf[i]!]! ? 1 : alpha)));
}

export const smoothed = (u: Variable, epsilon: number): Variable =>
  u
    .logSigmoid()
    .mul(-(1 - epsilon))
    .add(u.neg().logSigmoid().mul(-epsilon));
export const hinge = (u: Variable): Variable => u.neg().add(1).relu();
export const squaredTo = (h: Variable, target: number): Variable => h.sub(target).square();

/** The losses of a margin that most trainers have. */
export function marginLoss(type: string, h: Variable, beta: number, epsilon: number): Variable {
  if (type === 'ipo') return squaredTo(h, 1 / (2 * beta));
  return type === 'hinge' ? hinge(h.mul(beta)) : smoothed(h.mul(beta), epsilon);
}

/** ln(p/(1 − p)) of the logarithm of p. */
export function logOdds(x: Variable): Variable {
  const rest = x.expm1().neg().max(1e-37);
  return x.sub(rest.log());
}

/** The mean of the negative log-probabilities of all tokens of some rows. */
export function nll(x: Tokens, isCounted: (row: number, at: number) => boolean): Variable {
  const counted = x.index.map((at, i) => (isCounted(x.rowOf[i]!, at) ? 1 : 0));
  const count = counted.reduce((sum: number, each) => sum + each, 0);
  return x.logprob
    .neg()
    .mul(x.tape.leaf(counted))
    .sum()
    .per(count || 1);
}
export const isChosenRow = (row: number): boolean => row % 2 === 0;

export const rewardMetrics = (rewards: Sides): Outcome['metrics'] => ({
  'rewards/chosen': meanOf(rewards.chosen),
  'rewards/rejected': meanOf(rewards.rejected),
  'rewards/accuracies': wins(rewards),
  'rewards/margins': meanOf(difference(rewards)),
});
export const logpsMetrics = (sums: Sides): Outcome['metrics'] => ({
  'logps/chosen': meanOf(sums.chosen),
  'logps/rejected': meanOf(sums.rejected),
});

/** Returns the order of values, and records it as a choice. */
export function orderOf(values: Variable): number[] {
  const order = [...values.value.keys()].sort((a, b) => values.value[a]! - values.value[b]! || a - b);
  values.tape.choose(order.length, (i) => order[i]!);
  return order;
}
export const sorted = (values: Variable): Variable => values.gather(orderOf(values));

/** Returns the estimate of the KL divergence: a given one, or that of the mismatched rows. */
export function klEstimate(x: Tokens): number {
  const { klLogprob, klRefLogprob, klRefLogps, klActionMask } = x.batch;
  const count = x.rows.length;
  if (count === 0) return 0;
  if (x.batch.klEstimate) return x.batch.klEstimate[0]!;
  const width = klLogprob!.length / count;
  let sum = 0;
  for (let row = 0; row < count; row++) {
    for (let at = row * width; at < (row + 1) * width; at++)
      if (!klActionMask || klActionMask[at]) sum += klLogprob![at]! - (klRefLogps ? 0 : klRefLogprob![at]!);
    sum -= klRefLogps?.[row] ?? 0;
  }
  return Math.max(sum / count, 0);
}

/** The loss of labelled rows in KTO. */
export function ktoLosses(x: Tokens, advance: Variable, desirable: number, undesirable: number): Variable {
  const label = constants(x, x.batch.label!);
  const signed = advance.mul(label.mul(2).sub(1));
  const weight = label.mul(desirable - undesirable).add(undesirable);
  return signed.neg().sigmoid().mul(weight);
}

/** Returns the rows of a class. */
export const labelled = (x: Tokens, label: 0 | 1): number[] =>
  x.rows.map((_, row) => row).filter((row) => Number(x.batch.label![row]) === label);

export const meanOverRows = (x: Tokens, perRow: Variable): Variable => perRow.sum().per(x.rows.length || 1);

/** Returns the running mean of a call as a number, and the state for the next call. */
export function running(
  args: Record<string, unknown>,
  mean: Variable,
  count: number,
): { next: Variable; state: Outcome['metrics'] } {
  const before = option(args, 'running_mean', 0);
  const seen = option(args, 'running_count', 1e-24);
  const next = mean
    .sub(before)
    .mul(count / (seen + count))
    .add(before)
    .detach();
  return { next, state: { 'state/runningMean': next, 'state/runningCount': seen + count } };
}
