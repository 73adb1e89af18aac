/** The losses of TRL's GRPO trainer, which differ in the loss of a token and in what it is divided by. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, option, type Tokens } from '../batch.js';
import { isPositive, rowMean, surrogate, tokenMean } from './shared.js';
import {
  beyondRange,
  clipMetrics,
  entropyMetric,
  type Metrics,
  nearPolicy,
  oldLogprob,
  referenceKl,
  topEntropy,
  vllmCorrection,
  weights,
  withBonus,
} from './trl-options.js';

/** What the loss of a token depends on. */
interface Context {
  x: Tokens;
  args: Args;
  /** The difference of the log-probabilities from those of the sampling policy. */
  d: Variable;
  /** The importance ratio of each token. */
  ratio: Variable;
  /** What the metrics count: ratio and advantage of each token, or of each row if they are the same in a row. */
  counted: { perRow: boolean; ratio: Variable; advantages: Variable };
  /** The vLLM correction of each token. */
  correction: Variable | null;
}
type TokenLoss = (context: Context) => { loss: Variable; metrics: Metrics };

/** Returns the importance ratio per token, and also per row if it is one number in a row. */
function importanceRatio(x: Tokens, args: Args, d: Variable): { ratio: Variable; ofRow?: Variable } {
  const level = option(args, 'importance_sampling_level', 'token');
  if (level === 'token') return { ratio: d.exp() };
  const mean = rowMean(x, d);
  if (level === 'sequence') {
    const ofRow = mean.exp();
    return { ratio: x.spread(ofRow), ofRow };
  }
  return { ratio: x.logprob.sub(x.logprob.detach()).add(x.spread(mean).detach()).exp() };
}

const clip: TokenLoss = ({ x, args, ratio, counted }) => {
  const epsilon = option(args, 'epsilon', 0.2);
  const [low, high] = [1 - epsilon, 1 + option(args, 'epsilon_high', epsilon)];
  const cap = option(args, 'delta', Number.POSITIVE_INFINITY);
  const capped = (r: Variable) => r.clip(Number.NEGATIVE_INFINITY, cap);
  const { advantages } = x;
  const unclipped = advantages.neg().mul(capped(ratio));
  const beyond = beyondRange(capped(counted.ratio), counted.advantages, low, high);
  return {
    loss: unclipped.max(surrogate(advantages, ratio, low, high).clipped),
    metrics: clipMetrics(x, counted.perRow, beyond.low, beyond.high),
  };
};

const cispo: TokenLoss = ({ x, args, ratio, counted }) => {
  const cap = option(args, 'epsilon_high', option(args, 'epsilon', 0.2));
  const clipped = counted.ratio.test((r) => r > cap).mul(isPositive(counted.advantages));
  const bounded = ratio.detach().clip(Number.NEGATIVE_INFINITY, cap);
  return {
    loss: x.advantages.neg().mul(bounded).mul(x.logprob),
    metrics: { cispo_clip_ratio: counted.perRow ? x.meanOverRows(clipped) : tokenMean(x, clipped) },
  };
};

const sapo: TokenLoss = ({ x, args, ratio }) => {
  const { advantages } = x;
  const temperature = isPositive(advantages).choose(
    option(args, 'sapo_temperature_pos', 1),
    option(args, 'sapo_temperature_neg', 1.05),
  );
  const gate = ratio.sub(1).mul(temperature).sigmoid().mul(4).div(temperature);
  return { loss: advantages.neg().mul(gate), metrics: {} };
};

/** Weighs every token by φ, which depends on the ratio of the whole row. */
const vespo: TokenLoss = ({ x, args, d, correction }) => {
  const ratioOfTokens = x.rowSum(d.detach().clip(-20, 20));
  const lowest = Math.log(1e-8);
  const ofRow = correction ? ratioOfTokens.add(x.rowSum(correction.log().clip(lowest, 20))) : ratioOfTokens;
  const logRatio = ofRow.clip(lowest, 20);
  const phi = (advantages: Variable, log: Variable) => {
    const gain = advantages.test((a) => a >= 0);
    const kappa = gain.choose(option(args, 'vespo_k_pos', 2), option(args, 'vespo_k_neg', 3));
    const lambda = gain.choose(
      Math.max(option(args, 'vespo_lambda_pos', 3), 1e-4),
      Math.max(option(args, 'vespo_lambda_neg', 2), 1e-4),
    );
    return lambda.add(kappa.mul(log)).sub(lambda.mul(log.exp())).exp();
  };
  const ofTokens = phi(x.advantages, x.spread(logRatio));
  return {
    loss: x.advantages.neg().mul(ofTokens).mul(x.logprob),
    metrics: {
      'vespo/phi_seq_mean': x.hasAdvantagePerRow
        ? x.meanOverRows(phi(x.perRow('advantages'), logRatio))
        : tokenMean(x, ofTokens),
    },
  };
};

/** Returns a loss of the family. `kind` chooses what the sums are divided by. */
const family =
  (kind: (args: Args) => string, tokenLoss: TokenLoss, level = 'token'): Formula =>
  (x, given) => {
    const args = { importance_sampling_level: level, ...given };
    const d = x.logprob.sub(oldLogprob(x));
    const { ratio, ofRow } = importanceRatio(x, args, d);
    const counted =
      ofRow && x.hasAdvantagePerRow
        ? { perRow: true, ratio: ofRow, advantages: x.perRow('advantages') }
        : { perRow: false, ratio, advantages: x.advantages };
    const vllm = vllmCorrection(x, args);
    const token = tokenLoss({ x, args, d, ratio, counted, correction: vllm?.weight ?? null });

    const top = topEntropy(x, args);
    let perToken = token.loss.mul(top).mul(nearPolicy(x, args));
    if (vllm && tokenLoss !== vespo) perToken = perToken.mul(vllm.weight);
    const beta = option(args, 'beta', 0);
    const metrics: Metrics = { ...vllm?.metrics, ...token.metrics, ...entropyMetric(x) };
    if (beta !== 0) {
      const kl = referenceKl(x, args, ratio);
      metrics.kl = tokenMean(x, kl);
      perToken = perToken.add(kl.mul(beta));
    }
    const loss = perToken.mul(weights(x, kind(args), args)).sum();
    const withEntropy = withBonus(x, args, kind(args), top, loss);
    return { loss: withEntropy.loss, metrics: { ...metrics, ...withEntropy.metrics } };
  };

export const grpoFormulas: Record<string, Formula> = {
  grpo: family(() => 'grpo', clip),
  bnpo: family(() => 'bnpo', clip),
  dr_grpo: family(() => 'dr_grpo', clip),
  dapo: family(() => 'dapo', clip),
  cispo: family(() => 'cispo', cispo),
  sapo: family(() => 'sapo', sapo),
  vespo: family(() => 'vespo', vespo),
  luspo: family(() => 'luspo', clip, 'sequence'),
  gspo_token: family((args) => option(args, 'loss_type', 'grpo'), clip),
};
