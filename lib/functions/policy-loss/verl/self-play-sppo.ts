// The SPPO loss of verl's recipes: a row's log-ratio is to match its reward.
import type { MetricsOf } from '../../../core/declaration.js';
import { expressionLossClass } from '../expression-loss.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';

/** SPPO (self-play preference optimization) as in verl's recipe: the square of Σ ln r − η·reward. */
export class VerlSelfPlaySPPOLossFn extends expressionLossClass(
  {
    name: 'verl/self_play_sppo',
    summary: 'a row’s loss is (Σ ln r − η·reward)²',
    details: [
      'The loss is the mean over the rows with unmasked tokens, and the metrics are means over all rows.',
      'rewards are centred preferences. The paper centres them for each prompt, verl for the batch.',
    ],
    source: ['arXiv 2405.00675', 'verl'],
    unlike: { sppo: 'another method: Self-Play Preference Optimization' },
    reads: ['old_logprob', 'action_mask', 'rewards'],
    ofRows: true,
    options: {
      sppoEta: {
        type: 'number',
        default: 1,
        atLeast: 0,
        typical: [0.1, 10],
        help: 'η, the coefficient of the reward',
      },
    },
    metrics: {
      log_ratio_mean: { unit: 'nats' },
      preference_mean: { unit: 'nats' },
      pg_loss: { unit: 'loss' },
    },
    numerics: {
      range: 'any finite inputs',
      outside: 'nothing is clipped',
      /** The log-ratio and the reward cancel each other. */
      cancels: ({ logprob, oldLogprob }) => ({
        value: (logprob - oldLogprob) ** 2,
        gradient: 2 * Math.abs(logprob - oldLogprob),
      }),
    },
  },
  ({ d, n, rewards, rows, rowSum, rowsSum, square, select }, { sppoEta }) => {
    const logRatio = rowSum(d);
    const preference = rewards.mul(sppoEta);
    const hasTokens = n.gt(0);
    const rowLoss = select(hasTokens, square(logRatio.sub(preference)), 0).div(rowsSum(hasTokens).add(1e-8));
    return {
      rowLoss,
      metrics: {
        log_ratio_mean: { row: logRatio },
        preference_mean: { row: preference },
        pg_loss: { row: rowLoss.mul(rows) },
      },
      allRows: true,
    };
  },
) {
  static {
    POLICY_LOSS_FN.register('verl/self_play_sppo', VerlSelfPlaySPPOLossFn);
  }
}

/** Options of {@link VerlSelfPlaySPPOLossFn}. */
export type VerlSelfPlaySPPOLossOptions = NonNullable<
  ConstructorParameters<typeof VerlSelfPlaySPPOLossFn>[0]
>;
/** Metrics of {@link VerlSelfPlaySPPOLossFn}. */
export type VerlSelfPlaySPPOMetrics = MetricsOf<(typeof VerlSelfPlaySPPOLossFn)['declaration']['metrics']>;
