// The losses of reward models, as the frameworks compute them. Rows come in pairs: a chosen one, then a rejected one.
import { flag, number } from '../base/option.js';
import type { Expression, Operand, ProgramSymbols } from '../program/expression.js';
import type { MetricExpression } from '../program/loss-program.js';
import { rewardLoss } from './column-loss.js';
import { FRACTION_OF_PAIRS, IN_ONE_CALL, LOSS } from './units.js';

const REWARD = { unit: 'reward' };
const NUMERICS = {
  range: 'any finite rewards',
  outside: 'the loss grows linearly, and its gradient becomes constant',
};
const BRADLEY_TERRY = 'ℓ = −ln σ(D), D = the reward of the chosen row − that of the rejected row';

/** The terms of a pair, which both of its rows have. */
interface Pair {
  readonly chosen: Expression;
  readonly rejected: Expression;
  /** The difference between the rewards. */
  readonly difference: Expression;
  /** The mean over the pairs of the batch as a metric, of a value of pairs. */
  readonly mean: (x: Operand) => MetricExpression;
  /** The loss of a row, from that of its pair including its weight in the batch. */
  readonly rowLoss: (ofPair: Expression) => Expression;
}

// The chosen row stands for its pair.
function pairOf({ rewards, placeInPair, select, ...ofPair }: ProgramSymbols): Pair {
  const isChosen = placeInPair.eq(0);
  const [chosen, rejected] = [ofPair.chosen(rewards), ofPair.rejected(rewards)];
  return {
    chosen,
    rejected,
    difference: chosen.sub(rejected),
    mean: (x) => ({ row: select(isChosen, x, 0).mul(2) }),
    rowLoss: (ofPair) => select(isChosen, ofPair, 0),
  };
}

const perPairs = ({ rows, constant }: ProgramSymbols) => constant(2).div(rows);

/**
 * Returns the mean over all pairs, with metrics that many frameworks report.
 * @param centring how much the square of the sum of the two rewards counts, which keeps rewards near 0.
 */
function averaged(symbols: ProgramSymbols, margin: Operand = 0, centring?: number) {
  const { logsigmoid, square } = symbols;
  const { chosen, rejected, difference, mean, rowLoss } = pairOf(symbols);
  const apart = logsigmoid(difference.sub(margin)).neg();
  const centred = centring === undefined ? undefined : square(chosen.add(rejected)).mul(centring);
  const perPair = centred ? apart.add(centred) : apart;
  return {
    rowLoss: rowLoss(perPair.mul(perPairs(symbols))),
    metrics: {
      loss: mean(perPair),
      centred: centred && mean(centred),
      accuracy: mean(difference.gt(0)),
      chosen: mean(chosen),
      rejected: mean(rejected),
      difference: mean(difference),
    },
    allRows: true,
  };
}

const CENTRING = {
  centerRewardsCoefficient: number({
    atLeast: 0,
    typical: [0, 0.1],
    help: 'how much the mean of (chosen + rejected)² counts; null for nothing',
  }),
};

/** The Bradley–Terry loss with a margin and centring as in TRL. */
export class TRLRewardLossFn extends rewardLoss({
  name: 'trl/reward',
  summary: 'ℓ = −ln σ(D − margin) + center_rewards_coefficient·(sum of the two rewards)²',
  source: ['TRL'],
  reads: ['margin'],
  options: CENTRING,
  metrics: {
    min_reward: { ...REWARD, when: IN_ONE_CALL },
    mean_reward: REWARD,
    max_reward: { ...REWARD, when: IN_ONE_CALL },
    accuracy: FRACTION_OF_PAIRS,
    margin: REWARD,
  },
  numerics: NUMERICS,
  formula: (symbols, { centerRewardsCoefficient }) => {
    const { rewards, rows, margin, rowsMin, rowsMax, select } = symbols;
    const { metrics, ...loss } = averaged(symbols, margin, centerRewardsCoefficient);
    const extreme = (of: (x: Operand) => Expression) => ({ batch: select(rows.gt(0), of(rewards), 0) });
    return {
      ...loss,
      metrics: {
        min_reward: extreme(rowsMin),
        mean_reward: { row: rewards },
        max_reward: extreme(rowsMax),
        accuracy: metrics.accuracy,
        margin: metrics.difference,
      },
    };
  },
}) {}

/** The Bradley–Terry loss with a margin and centring as in ms-swift. */
export class SwiftRewardLossFn extends rewardLoss({
  name: 'swift/reward',
  summary: 'ℓ = −ln σ(D − margin) + center_rewards_coefficient·(sum of the two rewards)²',
  source: ['ms-swift'],
  reads: ['margin'],
  options: CENTRING,
  metrics: {
    center_rewards_loss: { ...LOSS, when: 'with center_rewards_coefficient' },
    'rewards/chosen': REWARD,
    'rewards/rejected': REWARD,
    'rewards/accuracies': FRACTION_OF_PAIRS,
    'rewards/margins': REWARD,
  },
  numerics: NUMERICS,
  formula: (symbols, { centerRewardsCoefficient }) => {
    const { metrics, ...loss } = averaged(symbols, symbols.margin, centerRewardsCoefficient);
    return {
      ...loss,
      metrics: {
        center_rewards_loss: metrics.centred,
        'rewards/chosen': metrics.chosen,
        'rewards/rejected': metrics.rejected,
        'rewards/accuracies': metrics.accuracy,
        'rewards/margins': metrics.difference,
      },
    };
  },
}) {}

const OPENRLHF = {
  source: ['OpenRLHF'],
  options: {},
  metrics: { loss: LOSS, acc: FRACTION_OF_PAIRS, chosen_reward: REWARD, reject_reward: REWARD },
  numerics: NUMERICS,
} as const;

function openrlhf(symbols: ProgramSymbols, margin?: Expression) {
  const { metrics, ...loss } = averaged(symbols, margin);
  return {
    ...loss,
    metrics: {
      loss: metrics.loss,
      acc: metrics.accuracy,
      chosen_reward: metrics.chosen,
      reject_reward: metrics.rejected,
    },
  };
}

/** The Bradley–Terry loss with a margin as in OpenRLHF. */
export class OpenRLHFRewardLossFn extends rewardLoss({
  name: 'openrlhf/reward',
  summary: 'ℓ = −ln σ(D − margin)',
  reads: ['margin'],
  ...OPENRLHF,
  formula: (symbols) => openrlhf(symbols, symbols.margin),
}) {}

/** OpenRLHF's log-exp loss, which is the Bradley–Terry loss without a margin. */
export class OpenRLHFLogExpRewardLossFn extends rewardLoss({
  name: 'openrlhf/reward_logexp',
  summary: 'ℓ = ln(1 + exp(−D)), which ignores margins',
  details: ['OpenRLHF’s own form overflows for D below −709. This one does not.'],
  reads: [],
  ...OPENRLHF,
  formula: (symbols) => openrlhf(symbols),
}) {}

/** The Bradley–Terry loss as in NeMo-RL, whose divisor comes from outside. */
export class NeMoRewardLossFn extends rewardLoss({
  name: 'nemo/reward',
  summary: `${BRADLEY_TERRY}, divided by global_valid_seqs/2`,
  details: [
    'The sample_mask of the chosen row multiplies the terms of a pair; that of the rejected row multiplies rewards_rejected_mean.',
    'Without global_valid_seqs, the divisor is half the sum of sample_mask.',
  ],
  source: ['NeMo-RL'],
  reads: ['sample_mask'],
  options: {
    globalValidSeqs: number({
      atLeast: 0,
      typical: [1, 32],
      help: 'the number of rows that count in all micro-batches',
    }),
  },
  metrics: {
    loss: LOSS,
    accuracy: FRACTION_OF_PAIRS,
    rewards_chosen_mean: REWARD,
    rewards_rejected_mean: REWARD,
    num_valid_samples: { unit: 'pairs' },
  },
  numerics: NUMERICS,
  formula: (symbols, { globalValidSeqs }) => {
    const { sampleMask, placeInPair, rewards, rows, constant, rowsSum, logsigmoid, select } = symbols;
    const pair = pairOf(symbols);
    const count = globalValidSeqs === undefined ? rowsSum(sampleMask) : constant(globalValidSeqs);
    const weight = constant(1).div(count.div(2).add(1e-8));
    const weighted = (x: Expression) => select(sampleMask.gt(0), x, 0).mul(weight);
    const perPair = logsigmoid(pair.difference).neg();
    // A metric of rows is divided by B.
    const sum = (x: Expression): MetricExpression => ({ row: weighted(x).mul(rows) });
    return {
      rowLoss: weighted(pair.rowLoss(perPair)),
      metrics: {
        loss: sum(pair.rowLoss(perPair)),
        accuracy: sum(pair.rowLoss(pair.difference.gt(0))),
        rewards_chosen_mean: sum(pair.rowLoss(rewards)),
        rewards_rejected_mean: sum(select(placeInPair.eq(0), 0, rewards)),
        num_valid_samples: { row: sampleMask.div(2).mul(rows) },
      },
      allRows: true,
    };
  },
}) {}

/** The Bradley–Terry loss as in LLaMA-Factory. */
export class LLaMAFactoryRewardLossFn extends rewardLoss({
  name: 'llamafactory/reward',
  summary: BRADLEY_TERRY,
  source: ['LLaMA-Factory'],
  reads: [],
  options: {},
  metrics: { accuracy: FRACTION_OF_PAIRS },
  numerics: NUMERICS,
  formula: (symbols) => {
    const { metrics, ...loss } = averaged(symbols);
    return { ...loss, metrics: { accuracy: metrics.accuracy } };
  },
}) {}

/** The Bradley–Terry loss as in AReaL. */
export class AReaLRewardLossFn extends rewardLoss({
  name: 'areal/reward',
  summary: `${BRADLEY_TERRY}, the mean over the pairs that count`,
  details: [
    'A pair counts if the sample_mask of both rows is 1. AReaL leaves out pairs with an empty sequence.',
  ],
  source: ['AReaL'],
  reads: ['sample_mask'],
  options: {},
  metrics: { correct_ratio: FRACTION_OF_PAIRS, pos_score: REWARD, neg_score: REWARD, loss: LOSS },
  numerics: NUMERICS,
  formula: (symbols) => {
    const { sampleMask, rows, constant, pairSum, rowsSum, max, logsigmoid, select } = symbols;
    const pair = pairOf(symbols);
    const counts = pairSum(sampleMask.gt(0)).ge(2);
    const weight = constant(1).div(max(rowsSum(pair.rowLoss(counts)), 1));
    const weighted = (x: Expression) => pair.rowLoss(select(counts, x, 0)).mul(weight);
    const perPair = logsigmoid(pair.difference).neg();
    const mean = (x: Expression): MetricExpression => ({ row: weighted(x).mul(rows) });
    return {
      rowLoss: weighted(perPair),
      metrics: {
        correct_ratio: mean(pair.difference.gt(0)),
        pos_score: mean(pair.chosen),
        neg_score: mean(pair.rejected),
        loss: mean(perPair),
      },
      allRows: true,
    };
  },
}) {}

/** The Bradley–Terry loss as in open-instruct. */
export class OpenInstructRewardLossFn extends rewardLoss({
  name: 'openinstruct/reward',
  summary: BRADLEY_TERRY,
  source: ['open-instruct'],
  reads: [],
  options: {},
  metrics: {
    'train/rm/accuracy': FRACTION_OF_PAIRS,
    'train/rm/loss': LOSS,
    'train/rm/chosen_rewards': REWARD,
    'train/rm/rejected_rewards': REWARD,
    'train/rm/reward_margin': REWARD,
  },
  numerics: NUMERICS,
  formula: (symbols) => {
    const { metrics, ...loss } = averaged(symbols);
    return {
      ...loss,
      metrics: {
        'train/rm/accuracy': metrics.accuracy,
        'train/rm/loss': metrics.loss,
        'train/rm/chosen_rewards': metrics.chosen,
        'train/rm/rejected_rewards': metrics.rejected,
        'train/rm/reward_margin': metrics.difference,
      },
    };
  },
}) {}

/** The Bradley–Terry loss with a margin and a mask of pairs as in oat. */
export class OatRewardLossFn extends rewardLoss({
  name: 'oat/reward',
  summary: 'ℓ = −ln σ(D − margin)·sample_mask, the mean over all pairs',
  details: ['The sample_mask of a pair is that of its chosen row.'],
  source: ['oat'],
  reads: ['margin', 'sample_mask'],
  options: {
    broadcastMasks: flag({
      default: false,
      help: 'multiplies the mean loss by the mean mask, as oat’s learner does, which broadcasts them',
    }),
  },
  metrics: {
    'train/rm/loss_rew': LOSS,
    'train/rm/chosen_rewards': REWARD,
    'train/rm/rejected_rewards': REWARD,
  },
  numerics: NUMERICS,
  formula: (symbols, { broadcastMasks }) => {
    const { sampleMask, rows, margin, rowsSum, logsigmoid, select } = symbols;
    const pair = pairOf(symbols);
    const apart = logsigmoid(pair.difference.sub(margin)).neg();
    const perPair = broadcastMasks
      ? apart.mul(rowsSum(pair.rowLoss(sampleMask)).mul(perPairs(symbols)))
      : select(sampleMask.gt(0), apart, 0);
    const rowLoss = pair.rowLoss(perPair.mul(perPairs(symbols)));
    return {
      rowLoss,
      metrics: {
        'train/rm/loss_rew': { row: rowLoss.mul(rows) },
        'train/rm/chosen_rewards': pair.mean(pair.chosen),
        'train/rm/rejected_rewards': pair.mean(pair.rejected),
      },
      allRows: true,
    };
  },
}) {}
