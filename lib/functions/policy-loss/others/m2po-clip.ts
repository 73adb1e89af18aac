// M2PO as its authors wrote it: PPO whose clip range follows from a budget for the second moment of the log-ratios.
import type { MetricsOf } from '../../../core/declaration.js';
import { aggregationOption } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { aggregated } from './aggregation.js';
import { surrogate } from './surrogate.js';

// The type of `help` is the text itself, because the build documents the option by it in the declaration files.
function least<S extends string>(side: S, value: number) {
  return {
    type: 'number',
    default: value,
    atLeast: 0,
    typical: [0.05, 0.6],
    help: `the clip range reaches at least this far ${side} 1 if it is limited`,
  } as const;
}

/** M2PO: tokens that moved as their advantage favours are clipped so that the mean square of log-ratios stays small. */
export class M2POClipLossFn extends expressionLossClass(
  {
    name: 'm2po_clip',
    summary: 'PPO whose clip range limits the mean of (ln r)² to m2_budget',
    details: [
      'The mean is over the tokens that moved in the direction which their advantage favours.',
      'Nothing is clipped while the mean is within the budget.',
    ],
    source: ['arXiv 2510.01161', 'M2PO'],
    reads: RATIO_KEYS,
    options: {
      m2Budget: {
        type: 'number',
        default: 0.04,
        above: 0,
        typical: [0.001, 0.1],
        help: 'the largest mean of (ln r)² without clipping',
      },
      miniclipLow: least('below', 0.3),
      miniclipHigh: least('above', 0.5),
      lossAggMode: aggregationOption('token-mean'),
    },
    metrics: {
      pg_clipfrac: { unit: 'fraction of tokens' },
      ppo_kl: { unit: 'nats per token' },
      clip_low: { unit: 'ratio' },
      clip_high: { unit: 'ratio' },
      m2: { unit: 'square nats' },
      m2_after: { unit: 'square nats' },
      pg_loss: { unit: 'loss' },
    },
    numerics: {
      range: 'logprob − old_logprob up to 88.7',
      outside: 'the ratio is not clipped where A < 0: it overflows',
      overflows: 'for A < 0',
    },
  },
  (symbols, options) => {
    const { d, r, constant } = symbols;
    const { low, high, m2, after } = rangeWithin(symbols, options);
    const one = constant(1);
    const ppo = surrogate(symbols, r, one.sub(low), one.add(high));
    const { loss, pg_loss } = aggregated(symbols, ppo.loss, options.lossAggMode);
    return {
      loss,
      metrics: {
        pg_clipfrac: { token: ppo.clipped },
        ppo_kl: { token: d.neg() },
        clip_low: { batch: low },
        clip_high: { batch: high },
        m2: { batch: m2 },
        m2_after: { batch: after },
        pg_loss,
      },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('m2po_clip', M2POClipLossFn);
  }
}

/** Options of {@link M2POClipLossFn}. */
export type M2POClipLossOptions = NonNullable<ConstructorParameters<typeof M2POClipLossFn>[0]>;
/** Metrics of {@link M2POClipLossFn}. */
export type M2POClipMetrics = MetricsOf<(typeof M2POClipLossFn)['declaration']['metrics']>;

// Returns how far the clip range reaches, and the mean square of the log-ratios before and after clipping. Clipping all
// squares at a level leaves the sum of min(square, level); the range reaches up to the last square below the level at
// which this sum reaches the budget.
function rangeWithin(
  { A, d, exp, max, select, sg, square, sqrt, batchSum, batchRank, batchUnderFill }: ProgramSymbols,
  options: { m2Budget: number; miniclipLow: number; miniclipHigh: number },
): Record<'low' | 'high' | 'm2' | 'after', Expression> {
  const tiny = 1e-12;
  const logRatio = sg(d);
  const hasMoved = A.gt(tiny)
    .and(logRatio.gt(0))
    .or(A.lt(-tiny).and(logRatio.lt(0)));
  // The squares of other tokens count as 0, which changes neither the sums nor how many squares are above a level.
  const squares = select(hasMoved, square(logRatio), 0);
  const n = batchSum(hasMoved);
  const m2 = batchSum(squares).div(max(n, 1));
  const below = batchUnderFill(squares, n.mul(options.m2Budget));
  const last = select(below.gt(0), batchRank(squares, below.sub(1)), 0);
  const isBelow = squares.le(last);
  const rest = batchSum(isBelow.not()).mul(last);
  const cut = batchSum(select(isBelow, squares, 0))
    .add(rest)
    .div(max(n, 1));
  // The token with the last square is itself clipped, because the range is a little too short for it. In float32, that
  // takes a few rounding errors.
  const reach = max(sqrt(max(last.sub(tiny), 0)).sub(4e-7), 0);
  const isFree = m2.le(options.m2Budget + tiny);
  const unit = exp(reach);
  return {
    low: select(isFree, 1, max(exp(reach.neg()).neg().add(1), options.miniclipLow)),
    high: select(isFree, 99999, max(unit.sub(1), options.miniclipHigh)),
    m2,
    after: select(isFree, m2, select(last.gt(0), cut, m2)),
  };
}
