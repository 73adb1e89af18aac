/** verl's policy losses that first compute a value for each row: those of its recipes, and geo_mean. */
import type { Variable } from '../autograd.js';
import { type Formula, option, type Tokens } from '../batch.js';
import { groupOfRows, meanOfRow, plainMean } from './shared.js';
import { clipRange, logRatio } from './verl-losses.js';

/** GMPO: the ratio of a row is the geometric mean of its tokens' clipped ratios. Rows without tokens count. */
export const geoMean: Formula = (x, args) => {
  const [low, high] = clipRange(args);
  const { advantages, weights } = x;
  const d = logRatio(x);
  const sign = advantages.sign();
  const clipped = sign.mul(sign.mul(d).min(sign.mul(d.clip(-low, high))));
  let perRow = x.rowMean(advantages).neg().mul(x.rowMean(clipped).exp());
  if (weights) perRow = perRow.mul(x.rowMean(weights.add(1e-10).log()).exp());
  const loss = x.meanOverRows(perRow);
  const outside = d.test((value) => value < -low || value > high);
  return {
    loss,
    metrics: {
      pg_clipfrac: x.mean(outside.mul(advantages.test((a) => a > 0))),
      pg_clipfrac_lower: x.mean(outside.mul(advantages.test((a) => a < 0))),
      ppo_kl: x.mean(d.neg()),
      pg_loss: loss,
    },
  };
};

/** Compares rows within groups of n. A row without tokens is left out; in verl, its mean advantage is NaN. */
export const gvpo: Formula = (x, args) => {
  const n = args.n as number;
  const group = groupOfRows(x);
  const rewards = x.rowSum(logRatio(x)).mul(option(args, 'gvpo_beta', 0.1));
  const groupMeans = rewards.sumBy(group, Math.max(...group) + 1).div(n);
  const errors = rewards.sub(groupMeans.gather(group).detach()).sub(meanOfRow(x, x.advantages));
  const filled = x.tape.leaf(x.counts.map((count) => (count > 0 ? 1 : 0)));
  const loss = filled
    .choose(errors.square(), 0)
    .sum()
    .div(2 * (n - 1));
  return { loss, metrics: { pg_loss: loss } };
};

export const flowrl: Formula = (x, args) => {
  const beta = option(args, 'flowrl_beta_coef', 15);
  const { logprob, refLogprob, oldLogprob, advantages } = x;
  const logZ = x.leaf('logZ');
  const d = logRatio(x);
  const reward = x.rowMean(advantages).mul(beta);
  const errors = logZ.add(x.rowMean(logprob)).sub(reward).sub(x.rowMean(refLogprob));
  const weights = x.rowSum(d).exp().clip(0, 10).detach();
  const loss = x.meanOverRows(weights.mul(errors.square()));
  return {
    loss,
    metrics: {
      log_prob: x.mean(logprob),
      old_log_prob: x.mean(oldLogprob),
      ref_log_prob: x.mean(refLogprob),
      log_reward: x.mean(advantages),
      log_z: plainMean(logZ),
      importance_weight: plainMean(weights),
      final_loss: loss,
      ppo_kl: x.mean(d.neg()),
      ref_kl: x.mean(refLogprob.sub(logprob)),
    },
  };
};

/** SPPO of self-play. Its metrics are means over all rows, and its loss is the mean over rows with tokens. */
export const selfPlaySppo: Formula = (x, args) => {
  const eta = option(args, 'sppo_eta', 1);
  const logRatios = x.rowSum(logRatio(x));
  const preferences = x.tape.leaf(x.rows.map((b) => eta * x.batch.rewards![b]!));
  const filled = x.tape.leaf(x.counts.map((n) => (n > 0 ? 1 : 0)));
  const squares = logRatios.sub(preferences).square().mul(filled);
  const loss = squares.sum().div(filled.sum().add(1e-8));
  return {
    loss,
    metrics: {
      log_ratio_mean: plainMean(logRatios),
      preference_mean: plainMean(preferences),
      pg_loss: loss,
    },
  };
};

/** Returns the values of rows 0, 2, … minus those of rows 1, 3, … */
function pairDifferences(x: Tokens, perRow: Variable): Variable {
  const rows = x.rows.map((_, row) => row);
  const every = (parity: number) => perRow.gather(rows.filter((row) => row % 2 === parity));
  return every(0).sub(every(1));
}

export const onlineDpo: Formula = (x, args) => {
  const [beta, smoothing] = [args.beta as number, option(args, 'label_smoothing', 0)];
  const perToken = option(args, 'reference_free', false) ? x.logprob : x.logprob.sub(x.refLogprob);
  const h = pairDifferences(x, x.rowSum(perToken));
  const ofType: Record<string, () => Variable> = {
    ipo: () => h.sub(1 / (2 * beta)).square(),
    sigmoid: () => {
      const logits = h.mul(beta);
      return logits
        .logSigmoid()
        .mul(smoothing - 1)
        .sub(logits.neg().logSigmoid().mul(smoothing));
    },
  };
  const loss = plainMean(ofType[option(args, 'loss_type', 'sigmoid')]!());
  return { loss, metrics: { dpo_loss: loss } };
};
