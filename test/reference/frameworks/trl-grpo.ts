/** The losses of TRL's GRPO trainer. They differ in the loss of a token and in what the sum is divided by. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, option, type Tokens } from '../batch.js';
import { surrogate, type TokenLosses } from '../dual-clip.js';
import { isPositive, meanOfRow, ones, tokenMean } from './shared.js';
import {
  clipMetrics,
  entropyMetric,
  klPenalty,
  nearPolicy,
  oldLogprob,
  outside,
  topEntropy,
  vllmCorrection,
  weights,
  withBonus,
} from './trl-options.js';

/** What the loss of a token depends on. */
interface Context {
  x: Tokens;
  args: Args;
  /** The difference of the log-probabilities from those of the policy that sampled the tokens. */
  d: Variable;
  /** The importance ratio of each token. */
  ratio: Variable;
  /** Whether the metrics of ratios count rows instead of tokens. */
  perRow: boolean;
  /** Whether the metrics of weights count rows if weights are the same in a row. */
  countsRows: boolean;
  /** The vLLM correction of each token. */
  correction: Variable | undefined;
}
type TokenLoss = (context: Context) => TokenLosses;

/** Returns the importance ratio of each token, and whether it is one number in a row. */
function importanceRatio(x: Tokens, args: Args, d: Variable): { ratio: Variable; isOfRow: boolean } {
  const level = option(args, 'importance_sampling_level', 'token');
  if (level === 'token') return { ratio: d.exp(), isOfRow: false };
  const mean = meanOfRow(x, d);
  if (level === 'sequence') return { ratio: x.spread(mean.exp()), isOfRow: true };
  const ratio = x.logprob.sub(x.logprob.detach()).add(x.spread(mean).detach()).exp();
  return { ratio, isOfRow: false };
}

/** Returns the ratios and advantages that metrics count: of tokens, or of rows. The ratio of a row without tokens is 1. */
function countedRatios(x: Tokens, ratio: Variable, perRow: boolean) {
  if (!perRow) return { ratio, advantages: x.advantages };
  const isEmpty = x.rowSum(ones(x)).test((n) => n === 0);
  return { ratio: meanOfRow(x, ratio).add(isEmpty), advantages: x.perRow('advantages') };
}

const clip: TokenLoss = ({ x, args, ratio, perRow }) => {
  const epsilon = option(args, 'epsilon', 0.2);
  const range = [1 - epsilon, 1 + option(args, 'epsilon_high', epsilon)] as const;
  const cap = option(args, 'delta', Number.POSITIVE_INFINITY);
  const capped = (r: Variable) => r.clip(Number.NEGATIVE_INFINITY, cap);
  const { clipped } = surrogate(x.advantages, ratio, range);
  const counted = countedRatios(x, ratio, perRow);
  return {
    perToken: x.advantages.neg().mul(capped(ratio)).max(clipped),
    metrics: clipMetrics(x, perRow, outside(capped(counted.ratio), counted.advantages, range)),
  };
};

const cispo: TokenLoss = ({ x, args, ratio, perRow }) => {
  const cap = option(args, 'epsilon_high', option(args, 'epsilon', 0.2));
  const counted = countedRatios(x, ratio, perRow);
  const clipped = counted.ratio.test((r) => r > cap).mul(isPositive(counted.advantages));
  const weight = ratio.detach().clip(Number.NEGATIVE_INFINITY, cap);
  return {
    perToken: x.advantages.neg().mul(weight).mul(x.logprob),
    metrics: { cispo_clip_ratio: perRow ? x.meanOverRows(clipped) : tokenMean(x, clipped) },
  };
};

const sapo: TokenLoss = ({ x, args, ratio }) => {
  const temperature = isPositive(x.advantages).choose(
    option(args, 'sapo_temperature_pos', 1),
    option(args, 'sapo_temperature_neg', 1.05),
  );
  const gate = ratio.sub(1).mul(temperature).sigmoid().mul(4).div(temperature);
  return { perToken: x.advantages.neg().mul(gate), metrics: {} };
};

/** Returns the weight φ of advantages in rows with these log-ratios. */
function gammaWeight(args: Args, advantages: Variable, logRatio: Variable): Variable {
  const isGain = advantages.test((a) => a >= 0);
  const k = isGain.choose(option(args, 'vespo_k_pos', 2), option(args, 'vespo_k_neg', 3));
  const lambda = isGain
    .choose(option(args, 'vespo_lambda_pos', 3), option(args, 'vespo_lambda_neg', 2))
    .max(1e-4);
  return lambda.add(k.mul(logRatio)).sub(lambda.mul(logRatio.exp())).exp();
}

/** Weighs each token by a function of the ratio of the whole row, which includes the correction. */
const vespo: TokenLoss = ({ x, args, d, correction, countsRows }) => {
  const smallest = Math.log(1e-8);
  const perToken = d.detach().clip(-20, 20);
  const corrected = correction ? perToken.add(correction.log().clip(smallest, 20)) : perToken;
  const logRatio = x.rowSum(corrected).clip(smallest, 20);
  const weight = gammaWeight(args, x.advantages, x.spread(logRatio));
  return {
    perToken: x.advantages.neg().mul(weight).mul(x.logprob),
    metrics: {
      // In a row without tokens, the log-ratio is 0 and the weight is 1.
      'vespo/phi_seq_mean': countsRows
        ? x.meanOverRows(meanOfRow(x, weight).add(x.rowSum(ones(x)).test((n) => n === 0)))
        : tokenMean(x, weight),
    },
  };
};

/** Makes a loss of the family. `kind` names what the sum is divided by. */
const family =
  (tokenLoss: TokenLoss, kind: string | ((args: Args) => string)): Formula =>
  (x, args) => {
    const divisor = typeof kind === 'string' ? kind : kind(args);
    const d = x.logprob.sub(oldLogprob(x));
    const { ratio, isOfRow } = importanceRatio(x, args, d);
    const correction = vllmCorrection(x, args);
    const { perToken, metrics } = tokenLoss({
      x,
      args,
      d,
      ratio,
      perRow: isOfRow && x.hasAdvantagePerRow,
      countsRows: x.hasAdvantagePerRow,
      correction: correction?.weights,
    });

    const top = topEntropy(x, args);
    const kept = perToken.mul(top).mul(nearPolicy(x, args));
    let sum = correction && tokenLoss !== vespo ? kept.mul(correction.weights) : kept;
    const beta = option(args, 'beta', 0);
    if (beta !== 0) {
      const kl = klPenalty(x, args, ratio);
      metrics.kl = tokenMean(x, kl);
      sum = sum.add(kl.mul(beta));
    }
    const whole = withBonus(x, args, divisor, top, sum.mul(weights(x, divisor, args)).sum());
    return {
      loss: whole.loss,
      metrics: { ...correction?.metrics, ...metrics, ...entropyMetric(x), ...whole.metrics },
    };
  };

const clippedAs = (kind: string) => family(clip, kind);

/** TRL's losses. Their metrics count rows if the batch has an advantage per row, and tokens otherwise. */
export const grpoFormulas: Record<string, Formula> = {
  grpo: clippedAs('grpo'),
  bnpo: clippedAs('bnpo'),
  dr_grpo: clippedAs('dr_grpo'),
  dapo: clippedAs('dapo'),
  cispo: family(cispo, 'cispo'),
  sapo: family(sapo, 'sapo'),
  vespo: family(vespo, 'vespo'),
  luspo: (x, args) => clippedAs('luspo')(x, { importance_sampling_level: 'sequence', ...args }),
  gspo_token: family(clip, (args) => option(args, 'loss_type', 'grpo')),
};
