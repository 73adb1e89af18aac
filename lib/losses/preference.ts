// The preference losses of oat, NeMo-RL, AReaL, Tinker's cookbook and open-instruct.
import { choice, flag, like, number } from '../base/option.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import {
  BETA_OPTION,
  hinge,
  ipo,
  LINEAR_NUMERICS,
  LOGPS_METRICS,
  logpsMetrics,
  MARGIN,
  marginLoss,
  maskedMean,
  OR_IPO,
  overPairs,
  type Pair,
  pairOf,
  perToken,
  REFERENCE,
  rowsOf,
  SMOOTHING_OPTION,
  scaled,
  smoothed,
  sumOverRows,
  sumsOfValid,
  VALID_SEQS,
} from './pair-terms.js';
import { policyLoss } from './policy-loss.js';
import { FRACTION_OF_PAIRS, LOSS } from './units.js';

const REWARD = { unit: 'reward' };
const beta = number({ default: 0.1, ...BETA_OPTION });
const labelSmoothing = number(SMOOTHING_OPTION);

const OAT_METRICS = {
  loss_mean: LOSS,
  acc_mean: FRACTION_OF_PAIRS,
  chosen_reward: REWARD,
  rejected_reward: REWARD,
  reward_margin: REWARD,
};

// The loss of oat, of which pairs without sample_mask are no part. They do count in the metrics of rewards.
function oatLoss(symbols: ProgramSymbols, ofPair: Expression, rewards: Pair, broadcasts = false) {
  const { mean } = overPairs(symbols);
  const rowLoss = maskedMean(symbols, ofPair, broadcasts);
  return {
    rowLoss,
    metrics: {
      loss_mean: sumOverRows(symbols, rowLoss),
      acc_mean: mean(rewards.difference.gt(0)),
      chosen_reward: mean(rewards.chosen),
      rejected_reward: mean(rewards.rejected),
      reward_margin: mean(rewards.difference),
    },
    allRows: true,
  };
}

const lambda = { default: 0, atLeast: 0 } as const;

/** DPO and its relatives as in oat. */
export class OatDPOLossFn extends policyLoss({
  name: 'oat/dpo',
  summary:
    '−ln σ(β·margin), max(0, 1 − β·margin) or (margin − 1/(2β))², the mean over all pairs; masked pairs are 0',
  details: [
    MARGIN,
    'The algorithms IPO and LR_DPO take means over tokens instead of sums. So sft_weight counts the mean of LR_DPO divided by the length once more.',
    'Label smoothing, the two regularisations and sft_weight are those of DPO and LR_DPO.',
  ],
  source: ['arXiv 2305.18290', 'arXiv 2403.19159', 'arXiv 2402.13228', 'oat'],
  unlike: { dpo: 'it has other loss types and regularisations, and pairs can be masked' },
  reads: ['ref_logprob', 'action_mask', 'sample_mask', 'pair_ids'],
  pairs: true,
  options: {
    dapAlgo: choice(['DPO', 'LR_DPO', 'IPO', 'SLiC'], { default: 'DPO', help: 'the loss of a pair' }),
    beta,
    labelSmoothing,
    lenRegAlpha: number({
      ...lambda,
      typical: [0, 0.1],
      help: 'how much longer chosen rows add to the margin, in rewards per token (length regularisation)',
    }),
    dpoPositiveLambda: number({
      ...lambda,
      typical: [0, 5],
      help: 'how much a chosen row less likely than under the reference is subtracted from the margin (DPO-positive)',
    }),
    sftWeight: number({
      ...lambda,
      typical: [0, 1],
      help: 'the coefficient of the chosen rows’ NLL per token',
    }),
  },
  metrics: OAT_METRICS,
  numerics: LINEAR_NUMERICS,
  formula: (symbols, options) => {
    const { n, chosen, max } = symbols;
    const { dapAlgo, lenRegAlpha, dpoPositiveLambda, sftWeight } = options;
    const rows = rowsOf(symbols, () => false);
    const isMean = dapAlgo === 'IPO' || dapAlgo === 'LR_DPO';
    const averaged = (x: Expression) => (isMean ? perToken(symbols, x) : x);
    const z = pairOf(symbols, averaged(rows.logRatio));
    const rewards = scaled(z, options.beta);
    if (dapAlgo === 'IPO') return oatLoss(symbols, ipo(symbols, z.difference, options.beta), rewards);
    if (dapAlgo === 'SLiC') return oatLoss(symbols, hinge(symbols, rewards.difference), rewards);
    const longer = pairOf(symbols, n).difference.mul(lenRegAlpha / options.beta);
    const short = max(0, z.chosen.neg()).mul(dpoPositiveLambda);
    const margin = z.difference.add(longer).sub(short).mul(options.beta);
    const nll = chosen(perToken(symbols, averaged(rows.policy))).mul(-sftWeight);
    const ofPair = smoothed(symbols, margin, options.labelSmoothing).add(nll);
    return oatLoss(symbols, ofPair, rewards);
  },
}) {}

/** SimPO as in oat. */
export class OatSimPOLossFn extends policyLoss({
  name: 'oat/simpo',
  summary: '−ln σ(β·margin) or max(0, 1 − β·margin), the mean over all pairs; masked pairs are 0',
  details: [
    'The margin is the mean log-probability of the chosen row − that of the rejected row − gamma_beta_ratio.',
  ],
  source: ['arXiv 2405.14734', 'oat'],
  reads: ['action_mask', 'sample_mask', 'pair_ids'],
  pairs: true,
  options: {
    beta: number({ default: 0.1, ...BETA_OPTION }),
    gammaBetaRatio: number({ default: 0.5, typical: [0, 2], help: 'the target margin, in nats per token' }),
    labelSmoothing,
    lossType: choice(['sigmoid', 'hinge'], { default: 'sigmoid', help: 'the loss of a pair' }),
  },
  metrics: OAT_METRICS,
  numerics: LINEAR_NUMERICS,
  formula: (symbols, { gammaBetaRatio, lossType, ...options }) => {
    const { lp, rowSum } = symbols;
    const values = pairOf(symbols, perToken(symbols, rowSum(lp)));
    const ofPair = marginLoss(symbols, lossType, values.difference.sub(gammaBetaRatio), options);
    return oatLoss(symbols, ofPair, scaled(values, options.beta));
  },
}) {}

/** BNF as in oat: bidirectional negative feedback. */
export class OatBNFLossFn extends policyLoss({
  name: 'oat/bnf',
  summary:
    'X of the rejected row − X of the chosen row, X = Σ(t·logprob + o·entropy_other)/(the smallest number of tokens)',
  details: [
    't = min(π/(π_ref + 1e-6), 1) and o = (1 − t + 1e-6)/(1 − π + 1e-6) are constants for the gradient.',
    'The mean over all pairs is multiplied by the mean mask, as oat’s broadcasting does.',
    'The gradient by entropy_other is requested and returned as gradEntropy. fromLogits() takes entropy_other as a constant.',
  ],
  source: ['arXiv 2410.04834', 'oat'],
  reads: ['ref_logprob', 'action_mask', 'sample_mask', 'entropy_other', 'pair_ids'],
  pairs: true,
  options: {},
  metrics: OAT_METRICS,
  numerics: {
    range: 'logprobs from −20 to −1e-5',
    outside: 'o becomes as large as 1e6',
    /** The terms of the two rows cancel each other. */
    cancels: ({ logprob, refLogprob, entropyOther }) => {
      const target = Math.min(Math.exp(logprob) / (Math.exp(refLogprob) + 1e-6), 1);
      const other = ((1 - target + 1e-6) / (1 + 1e-6 - Math.exp(logprob))) * entropyOther;
      return { value: Math.max(Math.abs(target * logprob), Math.abs(other)) };
    },
  },
  variable: 'logprob_and_other',
  formula: (symbols) => {
    const { lp, ref, entropyOther, n, rowSum, rowsMin, exp, expm1, abs, min, max, select, sg } = symbols;
    const reference = exp(ref).add(1e-6);
    const ratio = exp(lp).div(reference);
    const target = min(ratio, 1);
    // π_ref − π loses digits where both are almost equal.
    const apart = ref.sub(lp);
    const isNear = abs(apart).lt(1);
    const behind = exp(lp).mul(expm1(select(isNear, apart, 0)));
    const rest = max(select(isNear, behind.add(1e-6).div(reference), ratio.neg().add(1)), 0);
    const others = rest.add(1e-6).div(expm1(lp).neg().add(1e-6));
    const ofToken = sg(target).mul(lp).add(sg(others).mul(entropyOther));
    const x = pairOf(symbols, rowSum(ofToken).div(max(rowsMin(n), 1)));
    const rewards = pairOf(symbols, rowSum(lp.sub(ref)));
    return oatLoss(symbols, x.difference.neg(), rewards, true);
  },
}) {}

/** DPO with an SFT loss as in NeMo-RL. */
export class NeMoDPOLossFn extends policyLoss({
  name: 'nemo/dpo',
  summary:
    'preference_loss_weight·(−ln σ(β·margin)) + sft_loss_weight·the chosen row’s NLL, divided by global_valid_seqs/2',
  details: [
    MARGIN,
    'The sample_mask of the chosen row multiplies the terms of a pair; that of the rejected row multiplies rewards_rejected_mean.',
    'The metrics of rewards are log-ratios, without β.',
  ],
  source: ['arXiv 2305.18290', 'NeMo-RL'],
  unlike: { dpo: 'the divisor comes from outside, and an SFT loss can be added' },
  reads: ['ref_logprob', 'action_mask', 'sample_mask', 'pair_ids'],
  pairs: true,
  options: {
    referencePolicyKlPenalty: like(beta, { default: 0.05 }),
    preferenceLossWeight: number({ default: 1, typical: [0, 2], help: 'the weight of the preference loss' }),
    sftLossWeight: number({ default: 0, typical: [0, 1], help: 'the weight of the chosen rows’ NLL' }),
    preferenceAverageLogProbs: flag({
      default: false,
      help: 'whether log-ratios are means over the tokens of a row instead of sums',
    }),
    sftAverageLogProbs: flag({
      default: false,
      help: 'whether the NLL is a mean over the tokens of a row instead of a sum',
    }),
    globalValidSeqs: VALID_SEQS,
  },
  metrics: {
    loss: LOSS,
    sft_loss: LOSS,
    preference_loss: LOSS,
    accuracy: FRACTION_OF_PAIRS,
    rewards_chosen_mean: REWARD,
    rewards_rejected_mean: REWARD,
    num_valid_samples: { unit: 'pairs' },
  },
  numerics: LINEAR_NUMERICS,
  formula: (symbols, options) => {
    const { logsigmoid } = symbols;
    const { referencePolicyKlPenalty, preferenceLossWeight, sftLossWeight, globalValidSeqs } = options;
    const rows = rowsOf(symbols, () => false);
    const averaged = (x: Expression, isMean: boolean) => (isMean ? perToken(symbols, x) : x);
    const ofRow = averaged(rows.logRatio, options.preferenceAverageLogProbs);
    const { difference } = pairOf(symbols, ofRow);
    const { weighted, sum, sumOfRejected, pairs } = sumsOfValid(symbols, globalValidSeqs);
    const preference = logsigmoid(difference.mul(referencePolicyKlPenalty)).neg();
    const nll =
      sftLossWeight === 0 ? symbols.constant(0) : averaged(rows.policy, options.sftAverageLogProbs).neg();
    const total = preference.mul(preferenceLossWeight).add(nll.mul(sftLossWeight));
    return {
      rowLoss: weighted(total),
      metrics: {
        loss: sum(total),
        sft_loss: sum(nll),
        preference_loss: sum(preference),
        accuracy: sum(difference.gt(0)),
        rewards_chosen_mean: sum(ofRow),
        rewards_rejected_mean: sumOfRejected(ofRow),
        num_valid_samples: pairs,
      },
      allRows: true,
    };
  },
}) {}

/** DPO as in AReaL. */
export class AReaLDPOLossFn extends policyLoss({
  name: 'areal/dpo',
  summary: `−ln σ(β·margin), ${OR_IPO}`,
  details: [MARGIN, 'Loss type ipo takes means over tokens instead of sums; the rewards stay sums.'],
  source: ['arXiv 2305.18290', 'arXiv 2310.12036', 'AReaL'],
  unlike: { dpo: 'it has IPO of means over tokens, no label smoothing, and other metrics' },
  ...REFERENCE,
  pairs: true,
  options: { beta, lossType: choice(['sigmoid', 'ipo'], { default: 'sigmoid', help: 'the loss of a pair' }) },
  metrics: {
    loss: LOSS,
    chosen_reward: REWARD,
    rejected_reward: REWARD,
    reward_accuracy: FRACTION_OF_PAIRS,
    reward_margin: REWARD,
  },
  numerics: LINEAR_NUMERICS,
  formula: (symbols, { lossType, ...options }, has) => {
    const { logRatio } = rowsOf(symbols, has);
    const z = pairOf(symbols, logRatio);
    const margin = lossType === 'ipo' ? pairOf(symbols, perToken(symbols, logRatio)) : z;
    const { mean, rowLoss } = overPairs(symbols);
    const ofPair = marginLoss(symbols, lossType, margin.difference, options);
    const rewards = scaled(z, options.beta);
    return {
      rowLoss: rowLoss(ofPair),
      metrics: {
        loss: mean(ofPair),
        chosen_reward: mean(rewards.chosen),
        rejected_reward: mean(rewards.rejected),
        reward_accuracy: mean(z.difference.gt(0)),
        reward_margin: mean(rewards.difference),
      },
      allRows: true,
    };
  },
}) {}

/** DPO as in Tinker's cookbook. */
export class TinkerDPOLossFn extends policyLoss({
  name: 'tinker/dpo',
  summary: '−ln σ(β·margin)',
  details: [MARGIN, 'With token_weights, each token has its weight in the log-ratios.'],
  source: ['arXiv 2305.18290', 'tinker-cookbook'],
  unlike: { dpo: 'tokens have weights, and it has no label smoothing' },
  reads: [...REFERENCE.reads, 'token_weights'],
  optional: [...REFERENCE.optional, 'token_weights'],
  pairs: true,
  options: { dpoBeta: beta },
  metrics: {
    dpo_loss: LOSS,
    accuracy: FRACTION_OF_PAIRS,
    margin: REWARD,
    chosen_reward: REWARD,
    rejected_reward: REWARD,
  },
  numerics: LINEAR_NUMERICS,
  formula: (symbols, { dpoBeta }, has) => {
    const { logRatio } = rowsOf(symbols, has, has('token_weights') ? symbols.tokenWeights : 1);
    const rewards = scaled(pairOf(symbols, logRatio), dpoBeta);
    const { mean, rowLoss } = overPairs(symbols);
    const ofPair = smoothed(symbols, rewards.difference, 0);
    return {
      rowLoss: rowLoss(ofPair),
      metrics: {
        dpo_loss: mean(ofPair),
        accuracy: mean(rewards.difference.gt(0)),
        margin: mean(rewards.difference),
        chosen_reward: mean(rewards.chosen),
        rejected_reward: mean(rewards.rejected),
      },
      allRows: true,
    };
  },
}) {}

const WITH_REWARDS = { when: 'with loss types dpo and dpo_norm' };

/** DPO, SimPO and WPO as in open-instruct. */
export class OpenInstructDPOLossFn extends policyLoss({
  name: 'openinstruct/dpo',
  summary: '−ln σ(β·margin) with label smoothing; the margin, and the weight of a pair, by loss type',
  details: [
    'dpo has the margin of log-ratios to the reference, and dpo_norm that of their means over tokens.',
    'simpo has the margin of mean log-probabilities − gamma_beta_ratio, and reads no reference.',
    'wpo weighs the pair of dpo by the probability of its rows, at most 1, through which the gradient flows.',
    'open-instruct computes wpo only for batches of one pair.',
  ],
  source: ['arXiv 2305.18290', 'arXiv 2405.14734', 'arXiv 2406.11827', 'open-instruct'],
  unlike: { dpo: 'by default, log-ratios are means over tokens, and β is 5' },
  ...REFERENCE,
  pairs: true,
  options: {
    lossType: choice(['dpo_norm', 'dpo', 'simpo', 'wpo'], {
      default: 'dpo_norm',
      help: 'the loss of a pair',
    }),
    beta: number({ default: 5, ...BETA_OPTION }),
    gammaBetaRatio: number({
      default: 0.3,
      typical: [0, 2],
      help: 'the target margin of simpo, in nats per token',
    }),
    labelSmoothing,
  },
  metrics: {
    train_loss: LOSS,
    ...LOGPS_METRICS,
    'rewards/chosen': { ...REWARD, ...WITH_REWARDS },
    'rewards/rejected': { ...REWARD, ...WITH_REWARDS },
    'rewards/average': { ...REWARD, ...WITH_REWARDS },
    'rewards/accuracy': { ...FRACTION_OF_PAIRS, ...WITH_REWARDS },
    'rewards/margin': { ...REWARD, ...WITH_REWARDS },
  },
  numerics: {
    ...LINEAR_NUMERICS,
    exponentiatesRowSums: true,
    /** β multiplies log-ratios that cancel each other in the margin. */
    cancels: ({ logprob, refLogprob }) => ({ value: 5 * Math.abs(logprob - refLogprob), gradient: 5 }),
  },
  formula: (symbols, { lossType, gammaBetaRatio, ...options }, has) => {
    const { lp, rowSum, exp, min } = symbols;
    const isMean = lossType === 'dpo_norm' || lossType === 'simpo';
    const averaged = (x: Expression) => (isMean ? perToken(symbols, x) : x);
    const policy = pairOf(symbols, averaged(rowSum(lp)));
    const hasReference = lossType !== 'simpo';
    const values = hasReference ? pairOf(symbols, averaged(rowsOf(symbols, has).logRatio)) : policy;
    const margin = hasReference ? values.difference : values.difference.sub(gammaBetaRatio);
    const plain = marginLoss(symbols, 'sigmoid', margin, options);
    const ofPair = lossType === 'wpo' ? plain.mul(min(exp(policy.chosen.add(policy.rejected)), 1)) : plain;
    const { mean, rowLoss } = overPairs(symbols);
    const reported = lossType === 'dpo' || lossType === 'dpo_norm';
    const rewards = scaled(values, options.beta);
    const metric = (x: Expression) => (reported ? mean(x) : undefined);
    return {
      rowLoss: rowLoss(ofPair),
      metrics: {
        train_loss: mean(ofPair),
        ...logpsMetrics(mean, policy),
        'rewards/chosen': metric(rewards.chosen),
        'rewards/rejected': metric(rewards.rejected),
        'rewards/average': metric(rewards.chosen.add(rewards.rejected).div(2)),
        'rewards/accuracy': metric(rewards.difference.gt(0)),
        'rewards/margin': metric(rewards.difference),
      },
      allRows: true,
    };
  },
}) {}
