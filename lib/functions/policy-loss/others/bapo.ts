// BAPO: PPO whose clip range adapts to the balance of positive and negative tokens in the batch.
import type { MetricsOf } from '../../../core/declaration.js';
import { LossError } from '../../../core/errors.js';
import { aggregationOption, type CheckedOptions } from '../../../core/options.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN, RATIO_KEYS } from '../policy-loss-fn.js';
import { aggregated } from './aggregation.js';
import { CLIP_METRICS, clipMetrics, dualClip, limited, surrogate } from './surrogate.js';

/** The most values of the upper bound that can be tried. Each is a sum over the batch. */
const MAX_TRIALS = 64;

const BOUNDS = {
  advRatioTarget: {
    type: 'number',
    default: 1,
    atLeast: 0,
    typical: [0.3, 3],
    help: 'the bounds rise until the sum of A·r over positive tokens is this many times that over negative tokens',
  },
  ratioLowerStart: {
    type: 'number',
    default: 0.6,
    atLeast: 0,
    typical: [0.4, 0.7],
    help: "the lower bound's first value",
  },
  ratioLowerMax: {
    type: 'number',
    default: 0.8,
    atLeast: 0,
    typical: [0.6, 0.9],
    help: "the lower bound's largest value",
  },
  ratioLowerStep: {
    type: 'number',
    default: 0.05,
    atLeast: 0,
    typical: [0, 0.1],
    help: 'how much the lower bound rises at a time; 0 keeps its first value',
  },
  ratioUpperStart: {
    type: 'number',
    default: 1.2,
    atLeast: 0,
    typical: [1.1, 1.4],
    help: "the upper bound's first value",
  },
  ratioUpperMax: {
    type: 'number',
    default: 2,
    atLeast: 0,
    typical: [1.3, 2.5],
    help: "the upper bound's largest value",
  },
  ratioUpperStep: {
    type: 'number',
    default: 0.05,
    atLeast: 0,
    typical: [0.05, 0.3],
    help: 'how much the upper bound rises at a time; 0 keeps its first value',
  },
  eps: { type: 'number', default: 1e-8, atLeast: 0, help: 'added to the sum over negative tokens' },
} as const;

/** BAPO: PPO whose bounds on the ratio rise until positive tokens weigh enough against negative ones. */
export class BAPOLossFn extends expressionLossClass(
  {
    name: 'bapo',
    summary: 'PPO whose bounds on the ratio rise until positive tokens balance negative ones',
    details: [
      'First the lower bound rises, then the upper one. Both are the same for the whole batch.',
      'A higher lower bound only adds weight to negative tokens, so it rises to its largest value or not at all.',
    ],
    source: ['arXiv 2510.18927', 'BAPO'],
    reads: RATIO_KEYS,
    options: { ...BOUNDS, ...dualClip(3), lossAggMode: aggregationOption('token-mean') },
    metrics: {
      ...CLIP_METRICS,
      clip_low: { unit: 'ratio' },
      clip_high: { unit: 'ratio' },
      pos_neg_ratio: { unit: 'ratio', when: 'unless the sum over negative tokens is 0' },
    },
    numerics: {
      range: 'logprob − old_logprob from −20 to 20',
      outside: 'the difference is clipped to ±20: the loss saturates and the gradient is 0',
    },
  },
  (symbols, options) => {
    const { d, clip, exp, sg } = symbols;
    const log = clip(d, -20, 20);
    const { low, high, balance } = adaptedBounds(symbols, sg(exp(log)), options);
    const ppo = surrogate(symbols, exp(log), low, high);
    const { loss: perToken, cut } = limited(symbols, ppo.loss, options.clipRatioC);
    const { loss, pg_loss } = aggregated(symbols, perToken, options.lossAggMode);
    return {
      loss,
      metrics: {
        ...clipMetrics(ppo.clipped, cut, log),
        clip_low: { batch: low },
        clip_high: { batch: high },
        pos_neg_ratio: { batch: balance },
        pg_loss,
      },
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('bapo', BAPOLossFn);
  }
}

/** Options of {@link BAPOLossFn}. */
export type BAPOLossOptions = NonNullable<ConstructorParameters<typeof BAPOLossFn>[0]>;
/** Metrics of {@link BAPOLossFn}. */
export type BAPOMetrics = MetricsOf<(typeof BAPOLossFn)['declaration']['metrics']>;

// Returns the bounds on the ratio, and the balance of the batch's positive and negative tokens under them. The balance is
// NaN without the latter, and the bounds then do not rise.
function adaptedBounds(
  { A, batchSum, max, min, select, constant }: ProgramSymbols,
  ratio: Expression,
  options: CheckedOptions<typeof BOUNDS>,
): { low: Expression; high: Expression; balance: Expression } {
  const { ratioLowerStart, ratioLowerMax, ratioLowerStep, eps } = options;
  const gainUnder = (high: number) => batchSum(max(A, 0).mul(min(ratio, high)));
  const lossOver = (low: number) => batchSum(max(A.neg(), 0).mul(max(ratio, low)));
  const balanceOf = (gain: Expression, loss: Expression) =>
    select(loss.gt(0), gain.div(loss.add(eps)), constant(0).div(0));
  const isShort = (gain: Expression, loss: Expression) => balanceOf(gain, loss).lt(options.advRatioTarget);

  const trials = upperTrials(options).map((high) => ({ high: constant(high), gain: gainUnder(high) }));
  let low = constant(ratioLowerStart);
  let loss = lossOver(ratioLowerStart);
  if (ratioLowerStep > 0 && ratioLowerStart < ratioLowerMax) {
    const rises = isShort(trials[0]!.gain, loss);
    low = select(rises, ratioLowerMax, low);
    loss = select(rises, lossOver(ratioLowerMax), loss);
  }
  const { high, gain } = trials.reduceRight((next, trial) => {
    const rises = isShort(trial.gain, loss);
    return { high: select(rises, next.high, trial.high), gain: select(rises, next.gain, trial.gain) };
  });
  return { low, high, balance: balanceOf(gain, loss) };
}

// Returns the values of the upper bound in the order in which they are tried.
function upperTrials({
  ratioUpperStart,
  ratioUpperMax,
  ratioUpperStep,
}: CheckedOptions<typeof BOUNDS>): number[] {
  const trials = [ratioUpperStart];
  while (ratioUpperStep > 0 && trials.at(-1)! < ratioUpperMax) {
    if (trials.length === MAX_TRIALS)
      throw new LossError('ERR_INVALID_OPTION', {
        at: 'BAPOLossFn',
        option: 'ratioUpperStep',
        expected: (spell) => `at most ${MAX_TRIALS} values up to ${spell('ratioUpperMax')}`,
        received: String(ratioUpperStep),
      });
    trials.push(Math.min(trials.at(-1)! + ratioUpperStep, ratioUpperMax));
  }
  return trials;
}
