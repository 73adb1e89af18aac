/** The losses of a critic's values in float64, by name. */
import type { Variable } from '../autograd.js';
import { type Args, type Formula, type Outcome, option, type Tokens } from '../batch.js';
import { extreme } from '../frameworks/shared.js';
import { aggregate } from '../frameworks/verl-aggregate.js';

type OfError = (error: Variable) => Variable;

const half: OfError = (error) => error.square().div(2);
const huber =
  (delta: number): OfError =>
  (error) => {
    const size = error.abs();
    return size.test((x) => x < delta).choose(error.square().div(2), size.sub(delta / 2).mul(delta));
  };

/** The loss of each token, and whether clipping raised it. `range` is null for no clipping. */
function clipped(x: Tokens, range: number | null, of: OfError) {
  const [values, old, returns] = [x.column('values'), x.column('oldValues'), x.column('returns')];
  const plain = of(values.sub(returns));
  if (range === null) return { loss: plain, raised: plain.test(() => false) };
  const distance = values.sub(old);
  const above = distance.test((d) => d > range);
  const isFar = distance.test((d) => Math.abs(d) > range);
  const bounded = of(isFar.choose(above.choose(old.add(range), old.sub(range)), values).sub(returns));
  return { loss: plain.max(bounded), raised: bounded.sub(plain).test((d) => d > 0) };
}

const range = (args: Args, name: string, fallback: number | null): number | null =>
  name in args ? (args[name] as number | null) : fallback;

/** Σ over the tokens of values times the weights of their rows. */
const weighted = (x: Tokens, values: Variable, weightOf: (row: number) => number): Variable =>
  x
    .rowSum(values)
    .mul(x.tape.leaf(x.rows.map((_, row) => weightOf(row))))
    .sum();
const overTokens = (x: Tokens, values: Variable): Variable => values.sum().per(x.index.length || 1);

/** The sum of the squares of differences from the mean. */
function squares(values: Variable): number {
  const numbers = [...values.value];
  const mean = numbers.reduce((sum, v) => sum + v, 0) / (numbers.length || 1);
  return numbers.reduce((sum, v) => sum + (v - mean) ** 2, 0);
}

function explainedBySamples(x: Tokens): number {
  const count = x.index.length;
  if (count < 2) return 0;
  const returns = x.column('returns');
  const variance = (values: Variable) => squares(values) / (count - 1);
  return 1 - variance(returns.sub(x.column('oldValues'))) / (variance(returns) + 1e-5);
}

const verl: Formula = (x, args) => {
  const { loss: perToken, raised } = clipped(x, option(args, 'cliprange_value', 0.5), half);
  const loss = aggregate(x, perToken, args);
  return {
    loss,
    metrics: {
      'critic/vf_loss': loss,
      'critic/vf_clipfrac': x.mean(raised),
      'critic/vpred_mean': x.mean(x.column('values')),
      'critic/vf_explained_var': explainedBySamples(x),
    },
  };
};

const trl: Formula = (x, args) => {
  const { loss: perToken, raised } = clipped(x, option(args, 'cliprange_value', 0.2), half);
  const loss = overTokens(x, perToken);
  return { loss, metrics: { 'loss/value_avg': loss, 'val/clipfrac_avg': overTokens(x, raised) } };
};

const openrlhf: Formula = (x, args) => {
  const { loss: perToken } = clipped(x, range(args, 'value_clip', 0.5), half);
  const isPerToken = option(args, 'token_level_loss', true);
  const filled = x.counts.filter((n) => n > 0).length;
  const total = option<number | null>(args, isPerToken ? 'batch_num_tokens' : 'global_batch_size', null);
  const share =
    total === null ? 1 / ((isPerToken ? x.index.length : filled) || 1) : option(args, 'dp_size', 1) / total;
  const loss = weighted(x, perToken, (row) => (isPerToken ? share : share / (x.counts[row]! + 1e-8)));
  return { loss, metrics: { critic_loss: loss, values: overTokens(x, x.column('values')) } };
};

const nemo: Formula = (x, args) => {
  const { sampleMask } = x.batch;
  const isCounted = x.rows.map((b) => (sampleMask?.[b] ?? 1) !== 0);
  const ofCounted = x.of(x.rows.filter((_, row) => isCounted[row]));
  const count = ofCounted.index.length;
  const total = option(args, 'global_valid_toks', count) + 1e-8;
  const { loss: perToken, raised } = clipped(ofCounted, option(args, 'cliprange', 0) || null, half);
  const [values, returns] = [ofCounted.column('values'), ofCounted.column('returns')];
  const errors = returns.sub(values);
  const mean = (of: Variable) => of.sum().per(total);
  // The mean of the squares less the square of the mean, without cancellation.
  const spread = (of: Variable) => {
    const average = [...of.value].reduce((sum, v) => sum + v, 0) / (count || 1);
    return squares(of) / total + (average ** 2 * count * (total - count)) / total ** 2;
  };
  const loss = mean(perToken).mul(option(args, 'scale', 1));
  return {
    loss,
    metrics: {
      loss,
      vf_clipfrac: mean(raised),
      returns_mean: mean(returns),
      values_mean: mean(values),
      values_min: count > 0 ? extreme(values, -1) : 0,
      values_max: count > 0 ? extreme(values, 1) : 0,
      returns_sq_mean: mean(returns.square()),
      residual_sq_mean: mean(errors.square()),
      num_valid_samples: x.rows.length,
      'critic/explained_var': 1 - spread(errors) / Math.max(spread(returns), 1e-8),
    },
  };
};

const skyrl: Formula = (x, args) => {
  const limit = range(args, 'value_clip', 0.2);
  const { loss: perToken, raised } = clipped(x, limit, half);
  const rows = x.rows.length || 1;
  const loss = weighted(x, perToken, (row) => 1 / (rows * Math.max(x.counts[row]!, 1)));
  const metrics: Outcome['metrics'] = { critic_loss: loss, values_mean: overTokens(x, x.column('values')) };
  if (limit !== null) metrics.values_clipfrac = overTokens(x, raised);
  return { loss, metrics };
};

const megatron: Formula = (x, args) => {
  const limit = option(args, 'value_clip', 0.2);
  const { loss: perToken } = clipped(x, limit, (error) => error.square());
  const { rolloutIds } = x.batch;
  const idOf = (row: number) => rolloutIds?.[x.rows[row]!] ?? row;
  const { counts } = x;
  const tokens = new Map<number | string, number>();
  for (const [row, n] of counts.entries()) tokens.set(idOf(row), (tokens.get(idOf(row)) ?? 0) + n);
  const perTokenTotal = counts.reduce((sum, n) => sum + Math.max(n, 1), 0);
  const batchSize = option(args, 'global_batch_size', counts.length || 1);
  const weightOf = (row: number) =>
    option(args, 'calculate_per_token_loss', false)
      ? 1 / perTokenTotal
      : 1 / (Math.max(tokens.get(idOf(row))!, 1) * batchSize);
  const isFar = x
    .column('values')
    .sub(x.column('oldValues'))
    .test((d) => Math.abs(d) > limit);
  const loss = weighted(x, perToken, weightOf);
  return { loss, metrics: { value_loss: loss, value_clipfrac: weighted(x, isFar, weightOf) } };
};

const areal: Formula = (x, args) => {
  const of = args.loss_fn_type === 'huber' ? huber(10) : half;
  const { loss: perToken, raised } = clipped(x, option(args, 'eps_clip', 0.5), of);
  const loss = overTokens(x, perToken);
  return {
    loss,
    metrics: {
      new_value: overTokens(x, x.column('values')),
      old_value: overTokens(x, x.column('oldValues')),
      target_value: overTokens(x, x.column('returns')),
      critic_loss: loss,
      clip_ratio: overTokens(x, raised),
    },
  };
};

const roll: Formula = (x, args) => {
  const limit = range(args, 'value_clip', null);
  const { loss: perToken, raised } = clipped(x, limit, (error) => error.square());
  const mean = (values: Variable) => x.meanOverRows(x.rowMean(values));
  const loss = mean(perToken).div(2);
  return {
    loss,
    metrics: {
      'critic/loss': loss,
      'critic/value': mean(x.column('oldValues')),
      'critic/vpred': mean(x.column('values')),
      'critic/clipfrac': mean(limit === null ? perToken : raised),
      'critic/error': mean(x.column('values').sub(x.column('returns')).square()),
    },
  };
};

const rlinf: Formula = (x, args) => {
  const delta = option(args, 'huber_delta', 10);
  const { loss: perToken } = clipped(x, option(args, 'value_clip', 0.2), huber(delta));
  const steps = option<number | null>(args, 'max_episode_steps', null);
  const elements = x.rows.length * x.batch.columns;
  const loss =
    steps === null
      ? overTokens(x, perToken)
      : weighted(x, perToken, (row) => steps / (x.batch.lossMaskSum![x.rows[row]!]! * elements));
  const returns = x.column('returns');
  const ofReturns = squares(returns);
  const isDefined = x.index.length > 1 && ofReturns > 0;
  return {
    loss,
    metrics: {
      'critic/value_loss': loss,
      'critic/value_clip_ratio': 0,
      'critic/explained_variance': isDefined ? 1 - squares(returns.sub(x.column('values'))) / ofReturns : 0,
    },
  };
};

const easyr1: Formula = (x, args) => {
  const { loss: perToken, raised } = clipped(x, option(args, 'cliprange_value', 0.5), half);
  const isPerToken = option(args, 'loss_avg_mode', 'token') === 'token';
  const loss = isPerToken ? x.mean(perToken) : x.meanOverRows(x.rowMean(perToken));
  const { attentionMask } = x.batch;
  return {
    loss,
    metrics: {
      'critic/vf_loss': loss,
      'critic/vf_clipfrac': x.mean(raised),
      'critic/vpred_mean': x.mean(x.column('values')),
      'critic/vf_explained_var': explainedBySamples(
        attentionMask ? x.corrected(attentionMask, undefined) : x,
      ),
    },
  };
};

export const valueFormulas: Record<string, Formula> = {
  'verl/value': verl,
  'trl/value': trl,
  'openrlhf/value': openrlhf,
  'nemo/value': nemo,
  'skyrl/value': skyrl,
  'slime/value': megatron,
  'miles/value': megatron,
  'areal/value': areal,
  'roll/value': roll,
  'rlinf/value': rlinf,
  'easyr1/value': easyr1,
};
