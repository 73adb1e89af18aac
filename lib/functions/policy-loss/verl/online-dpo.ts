// The online DPO loss of verl's SPIN recipe, with IPO as a variant.
import type { Input } from '../../../core/batch-reader.js';
import type { Normalizer } from '../../../core/counts.js';
import type { MetricsOf } from '../../../core/declaration.js';
import type { Coefficients } from '../../../core/evaluator.js';
import { expressionLossClass } from '../expression-loss.js';
import { checkPairs } from '../pairs.js';
import { POLICY_LOSS_FN } from '../policy-loss-fn.js';

/** Online DPO as in verl's recipe: a loss over pairs of rows, of which the first is preferred to the second. */
export class VerlOnlineDPOLossFn extends expressionLossClass(
  {
    name: 'verl/online_dpo',
    summary: '−ln σ(β·margin) or (margin − 1/(2β))², averaged over pairs of rows',
    details: [
      "The margin is the chosen row's sum of logprob − ref_logprob minus the rejected row's sum.",
      'Even rows are chosen, and each odd row is the rejected answer to the row before it.',
    ],
    source: ['arXiv 2305.18290', 'arXiv 2310.12036', 'verl'],
    reads: ['ref_logprob', 'action_mask'],
    pairs: true,
    options: {
      beta: {
        type: 'number',
        above: 0,
        required: true,
        typical: [0.05, 2],
        help: 'β: the margin is multiplied by this; with loss type ipo, the margin is to be 1/(2β)',
      },
      labelSmoothing: {
        type: 'number',
        default: 0,
        atLeast: 0,
        atMost: 1,
        typical: [0, 0.4],
        help: 'the probability that a label is wrong; loss type ipo ignores it',
      },
      lossType: {
        type: 'choice',
        choices: ['sigmoid', 'ipo'],
        default: 'sigmoid',
        help: 'the loss of a pair: −ln σ(β·margin), or (margin − 1/(2β))²',
      },
      referenceFree: {
        type: 'boolean',
        default: false,
        help: 'leave ref_logprob out of the margin; the batch then needs no ref_logprob',
      },
    },
    metrics: { dpo_loss: { unit: 'loss' } },
    numerics: {
      range: 'any finite logprobs',
      outside: 'margins of any size are linear or 0 with loss type sigmoid, and squared with ipo',
    },
  },
  (
    { lp, ref, placeInPair, rows, rowSum, pairSum, select, square, logsigmoid },
    { beta, labelSmoothing, lossType, referenceFree },
  ) => {
    const ofRow = rowSum(referenceFree ? lp : lp.sub(ref));
    const isChosen = placeInPair.eq(0);
    const margin = pairSum(select(isChosen, ofRow, ofRow.neg()));
    const logit = margin.mul(beta);
    const losses = {
      sigmoid: () =>
        logsigmoid(logit)
          .mul(labelSmoothing - 1)
          .sub(logsigmoid(logit.neg()).mul(labelSmoothing)),
      ipo: () => square(margin.sub(1 / (2 * beta))),
    };
    const rowLoss = select(isChosen, losses[lossType](), 0).div(rows.div(2));
    return { rowLoss, metrics: { dpo_loss: { row: rowLoss.mul(rows) } }, allRows: true };
  },
) {
  static {
    POLICY_LOSS_FN.register('verl/online_dpo', VerlOnlineDPOLossFn);
  }

  /** @internal */
  override coefficients(input: Input, normalizer: Normalizer | undefined): Coefficients {
    checkPairs(input, 'online DPO');
    return super.coefficients(input, normalizer);
  }
}

/** Options of {@link VerlOnlineDPOLossFn}. */
export type VerlOnlineDPOLossOptions = NonNullable<ConstructorParameters<typeof VerlOnlineDPOLossFn>[0]>;
/** Metrics of {@link VerlOnlineDPOLossFn}. */
export type VerlOnlineDPOMetrics = MetricsOf<(typeof VerlOnlineDPOLossFn)['declaration']['metrics']>;
