// The preference losses of TRL.
import { choice, choices, flag, number } from '../base/option.js';
import type { Expression, Operand, ProgramSymbols } from '../program/expression.js';
import { withAnswerMask } from './answer-mask.js';
import {
  DIVERGENCE_OPTIONS,
  divergence,
  scored,
  TRL_DPO_NAMES,
  TRL_DPO_TYPES,
  TYPE_OPTIONS,
  weightedTypes,
} from './dpo-types.js';
import { KL_KEYS, withKlEstimate } from './kl-estimate.js';
import {
  BETA_OPTION,
  LENGTH_WEIGHT,
  LINEAR_NUMERICS,
  LOGPS_METRICS,
  lengthWeight,
  logOdds,
  logpsMetrics,
  marginLoss,
  meanOfRows,
  overPairs,
  type Pair,
  pairOf,
  perToken,
  REFERENCE,
  REWARD_METRICS,
  rewardMetrics,
  rowsOf,
  SMOOTHING_OPTION,
  scaled,
  sumOverRows,
} from './pair-terms.js';
import { policyLoss } from './policy-loss.js';
import { ktoLoss, ofClass, RUNNING_OPTIONS, runningMean } from './row-preference-terms.js';
import { LOSS } from './units.js';

const beta = number({ default: 0.1, ...BETA_OPTION });
const labelSmoothing = number({
  ...SMOOTHING_OPTION,
  help: `${SMOOTHING_OPTION.help}, except with ipo and hinge`,
});
const NLL_METRIC = { nll_loss: LOSS };

/** DPO as in TRL, with its loss types and weighted sums of them. */
export class TRLDPOLossFn extends policyLoss({
  name: 'trl/dpo',
  summary:
    'a loss of β·(the log-ratio of the chosen row to the reference − that of the rejected row), by loss type',
  details: [
    'The log-ratio of a row is the sum over its tokens. The loss is the mean over all pairs.',
    'Of loss types ipo and sigmoid_norm it is the mean over the tokens. The loss type sigmoid ignores label_smoothing.',
    'The aot types compare rows of the same rank in the batch.',
    'The weight of WPO is not capped at 1.',
  ],
  source: ['arXiv 2305.18290', 'TRL'],
  unlike: { dpo: 'loss type sigmoid ignores label_smoothing' },
  ...REFERENCE,
  reads: [...REFERENCE.reads, 'log_sum_sq_prob'],
  pairs: true,
  options: {
    lossType: choices(TRL_DPO_NAMES, {
      default: ['sigmoid'],
      typical: [...TRL_DPO_NAMES.map((type) => [type]), ['sigmoid', 'bco_pair', 'sft']],
      help: 'the loss of a pair, or a list of losses, which are added up',
    }),
    ...TYPE_OPTIONS,
    beta: number({ default: 0.1, ...BETA_OPTION }),
    ...DIVERGENCE_OPTIONS,
    ...LENGTH_WEIGHT,
    useWeighting: flag({
      default: false,
      help: 'whether a pair counts by the probability of its rows, which needs log_sum_sq_prob (WPO)',
    }),
  },
  metrics: { ...REWARD_METRICS, ...LOGPS_METRICS },
  numerics: {
    ...LINEAR_NUMERICS,
    outside: 'most loss types grow linearly with the margin; ipo and sppo_hard grow with its square',
    exponentiatesRowSums: true,
  },
  formula: (symbols, options, has) => {
    const { lp, logSumSqProb, chosen, rejected, exp, rowSum, sg } = symbols;
    const { beta, lossType, lossWeights, fDivergenceType, fAlphaDivergenceCoef, useWeighting } = options;
    const rows = rowsOf(symbols, has, lengthWeight(symbols, options));
    const z = pairOf(symbols, rows.logRatio);
    const score = scored(z, divergence(symbols, fDivergenceType, fAlphaDivergenceCoef));
    const terms = { symbols, rows, z, score, ...options };
    const ofPair = symbols.constant(1).mul(weightedTypes(TRL_DPO_TYPES, lossType, lossWeights, terms));
    const { mean, rowLoss } = overPairs(symbols);
    const likelihood = useWeighting ? perToken(symbols, rowSum(sg(lp.sub(logSumSqProb)))) : undefined;
    const weight = likelihood && exp(chosen(likelihood).add(rejected(likelihood)));
    return {
      rowLoss: rowLoss(weight ? ofPair.mul(weight) : ofPair),
      metrics: {
        ...rewardMetrics(mean, scaled(z, beta)),
        ...logpsMetrics(mean, pairOf(symbols, rows.policy)),
      },
      allRows: true,
    };
  },
}) {}

// e^80 is finite in float32.
const LARGEST_EXPONENT = 80;

/** CPO as in TRL, with SimPO and AlphaPO. */
export class TRLCPOLossFn extends policyLoss({
  name: 'trl/cpo',
  summary:
    'a loss of β·(the log-probability of the chosen row − that of the rejected row), + cpo_alpha·its NLL',
  details: [
    'Loss types ipo and simpo take the mean over the tokens of a row instead of the sum.',
    'AlphaPO (alpha ≠ 0) replaces a log-probability S with (1 − e^(−alpha·S))/alpha.',
    'Plain SimPO needs cpo_alpha = 0. The loss type alphapo is simpo with a cpo_alpha of 0.',
  ],
  source: ['arXiv 2401.08417', 'arXiv 2405.14734', 'arXiv 2501.03884', 'TRL'],
  reads: ['action_mask', 'pair_ids'],
  pairs: true,
  options: {
    lossType: choice(['sigmoid', 'hinge', 'ipo', 'simpo', 'alphapo'], {
      default: 'sigmoid',
      help: 'the loss of a pair: −ln σ(β·margin), max(0, 1 − β·margin), (margin − 1/(2β))², or sigmoid of the margin − simpo_gamma/β; alphapo is simpo without the NLL',
    }),
    beta,
    labelSmoothing,
    cpoAlpha: number({ default: 1, typical: [0, 1], help: 'the coefficient of the chosen rows’ NLL' }),
    alpha: number({
      default: 0,
      typical: [-0.2, 0.3],
      help: 'α of AlphaPO; 0 for the log-probability itself',
    }),
    simpoGamma: number({ default: 0.5, typical: [0, 2], help: 'the target margin of simpo, in rewards' }),
  },
  metrics: { ...REWARD_METRICS, ...LOGPS_METRICS, ...NLL_METRIC },
  numerics: {
    range: 'alpha·(the log-probability of a row) above −80',
    outside: 'the exponent of AlphaPO is at most 80, and has no gradient there',
    exponentiatesRowSums: true,
  },
  formula: (symbols, { alpha, simpoGamma, ...options }) => {
    const { lp, rowSum, expm1, min } = symbols;
    const lossType = options.lossType === 'alphapo' ? 'simpo' : options.lossType;
    const cpoAlpha = options.lossType === 'alphapo' ? 0 : options.cpoAlpha;
    const sum = rowSum(lp);
    const ofRow = lossType === 'ipo' || lossType === 'simpo' ? perToken(symbols, sum) : sum;
    const value = alpha === 0 ? ofRow : expm1(min(ofRow.mul(-alpha), LARGEST_EXPONENT)).div(-alpha);
    const values = pairOf(symbols, value);
    const isSimpo = lossType === 'simpo';
    const margin = isSimpo ? values.difference.sub(simpoGamma / options.beta) : values.difference;
    const { isChosen, mean, rowLoss } = overPairs(symbols);
    const ofPair = marginLoss(symbols, isSimpo ? 'sigmoid' : lossType, margin, options);
    const nll = cpoAlpha === 0 ? symbols.constant(0) : meanOfRows(symbols, isChosen, lp.neg());
    return {
      rowLoss: rowLoss(ofPair).add(nll.mul(cpoAlpha)),
      metrics: {
        ...rewardMetrics(mean, scaled(values, options.beta)),
        ...logpsMetrics(mean, pairOf(symbols, ofRow)),
        nll_loss: sumOverRows(symbols, nll),
      },
      allRows: true,
    };
  },
}) {}

/** ORPO as in TRL. */
export class TRLORPOLossFn extends policyLoss({
  name: 'trl/orpo',
  summary: 'the NLL of the chosen rows − β·ln σ(the log-odds of the chosen row − those of the rejected row)',
  details: [
    'The log-odds are those of the mean log-probability of a row, over action_mask.',
    'The NLL is the mean over the chosen rows’ tokens in attention_mask, prompts included, if the batch has it.',
  ],
  source: ['arXiv 2403.07691', 'TRL'],
  reads: ['action_mask', 'attention_mask', 'pair_ids'],
  optional: ['answer_mask'],
  pairs: true,
  options: { beta: number({ default: 0.1, ...BETA_OPTION, help: 'β, the coefficient of the odds ratio' }) },
  metrics: {
    ...REWARD_METRICS,
    ...LOGPS_METRICS,
    ...NLL_METRIC,
    log_odds_ratio: { unit: 'nats' },
    log_odds_chosen: { unit: 'nats' },
  },
  numerics: { range: 'logprobs below 0', outside: 'log-odds are limited to 85' },
  formula: (symbols, options, has) => {
    const { lp, answerMask, rowSum, max, select, logsigmoid } = symbols;
    const hasMask = has('answer_mask');
    const isAnswer = answerMask.gt(0);
    const isAttended = answerMask.lt(2);
    const mean = hasMask
      ? rowSum(select(isAnswer, lp, 0)).div(max(rowSum(isAnswer), 1))
      : perToken(symbols, rowSum(lp));
    const over = overPairs(symbols);
    const values = pairOf(symbols, mean);
    const odds = pairOf(symbols, logOdds(symbols, mean)).difference;
    const ratio = logsigmoid(odds);
    const nll = hasMask
      ? meanOfRows(symbols, over.isChosen, select(isAttended, lp.neg(), 0), rowSum(isAttended))
      : meanOfRows(symbols, over.isChosen, lp.neg());
    return {
      rowLoss: nll.sub(over.rowLoss(ratio.mul(options.beta))),
      metrics: {
        ...rewardMetrics(over.mean, scaled(values, options.beta)),
        ...logpsMetrics(over.mean, values),
        nll_loss: sumOverRows(symbols, nll),
        log_odds_ratio: over.mean(ratio),
        log_odds_chosen: over.mean(odds),
      },
      allRows: true,
    };
  },
  further: () => ({ prepared: withAnswerMask }),
}) {}

const THIRD = 2; // the place of the reference row

/** TPO as in TRL: each pair has a third row, a reference answer. */
export class TRLTPOLossFn extends policyLoss({
  name: 'trl/tpo',
  summary:
    'a loss of β·(the log-probability of the chosen row − that of the rejected row), + tpo_alpha·the NLL of a third row',
  details: [
    'Rows come in threes: chosen, rejected and reference. With tpo_alpha = 0 they come in pairs, without the reference.',
    'Loss types ipo and tpo-l take the mean over the tokens of a row instead of the sum.',
  ],
  source: ['arXiv 2405.16681', 'TRL'],
  reads: ['action_mask', 'pair_ids'],
  pairs: true,
  options: {
    lossType: choice(['sigmoid', 'hinge', 'ipo', 'tpo-l'], {
      default: 'sigmoid',
      help: 'the loss of a pair: −ln σ(β·margin), max(0, 1 − β·margin), (margin − 1/(2β))², or sigmoid of the margin − tpo_l_gamma/β',
    }),
    beta: number({ default: 0.01, ...BETA_OPTION }),
    labelSmoothing,
    tpoAlpha: number({ default: 1, typical: [0, 1], help: 'the coefficient of the reference rows’ NLL' }),
    tpoLGamma: number({ default: 0.5, typical: [0, 2], help: 'the target margin of tpo-l, in rewards' }),
  },
  metrics: { ...REWARD_METRICS, ...LOGPS_METRICS },
  numerics: LINEAR_NUMERICS,
  formula: (symbols, { lossType, tpoAlpha, tpoLGamma, ...options }) => {
    const { lp, rowSum, placeInPair } = symbols;
    const sum = rowSum(lp);
    const isLong = lossType === 'tpo-l';
    const values = pairOf(symbols, lossType === 'ipo' || isLong ? perToken(symbols, sum) : sum);
    const margin = isLong ? values.difference.sub(tpoLGamma / options.beta) : values.difference;
    const { mean, rowLoss } = overPairs(symbols, rowsOfThree(tpoAlpha));
    const ofPair = rowLoss(marginLoss(symbols, isLong ? 'sigmoid' : lossType, margin, options));
    const nll = () => meanOfRows(symbols, placeInPair.eq(THIRD), lp.neg());
    return {
      rowLoss: tpoAlpha === 0 ? ofPair : ofPair.add(nll().mul(tpoAlpha)),
      metrics: { ...rewardMetrics(mean, scaled(values, options.beta)), ...logpsMetrics(mean, values) },
      allRows: true,
    };
  },
  further: ({ tpoAlpha }) => ({ rowsOfPair: rowsOfThree(tpoAlpha) }),
}) {}

const rowsOfThree = (tpoAlpha: number) => (tpoAlpha === 0 ? 2 : 3);

const ONLINE_OPTIONS = {
  lossType: choice(['sigmoid', 'ipo'], {
    default: 'sigmoid',
    help: 'the loss of a pair: −ln σ(β·margin), or (margin − 1/(2β))²',
  }),
  beta,
};

// Returns the values of a pair of which the first row is chosen where a condition holds, and the second elsewhere.
function orderedPair({ select }: ProgramSymbols, isFirst: Expression, { chosen, rejected }: Pair): Pair {
  const either = (a: Operand, b: Operand) => select(isFirst, a, b);
  const both = { chosen: either(chosen, rejected), rejected: either(rejected, chosen) };
  return { ...both, difference: both.chosen.sub(both.rejected) };
}

/** Online DPO as in TRL: of two rows, the one with the larger reward is chosen. */
export class TRLOnlineDPOLossFn extends policyLoss({
  name: 'trl/online_dpo',
  summary: '−ln σ(β·margin) or (margin − 1/(2β))²; of each pair, the row with the larger reward is chosen',
  details: [
    'The margin is that of the sums of logprob − ref_logprob. At equal rewards the first row is chosen.',
  ],
  source: ['arXiv 2402.04792', 'TRL'],
  unlike: { 'verl/online_dpo': 'the rewards decide which row of a pair is chosen' },
  ...REFERENCE,
  reads: [...REFERENCE.reads, 'rewards'],
  pairs: true,
  options: ONLINE_OPTIONS,
  metrics: {
    ...REWARD_METRICS,
    ...LOGPS_METRICS,
    'objective/scores': { unit: 'reward' },
    'objective/scores_margin': { unit: 'reward' },
  },
  numerics: LINEAR_NUMERICS,
  formula: (symbols, options, has) => {
    const { rewards } = symbols;
    const rows = rowsOf(symbols, has);
    const { mean, rowLoss } = overPairs(symbols);
    const scores = pairOf(symbols, rewards);
    const ordered = (x: Expression) => orderedPair(symbols, scores.difference.ge(0), pairOf(symbols, x));
    const z = ordered(rows.logRatio);
    return {
      rowLoss: rowLoss(marginLoss(symbols, options.lossType, z.difference, options)),
      metrics: {
        ...rewardMetrics(mean, scaled(z, options.beta)),
        ...logpsMetrics(mean, ordered(rows.policy)),
        'objective/scores': { row: rewards },
        'objective/scores_margin': mean(ordered(rewards).difference),
      },
      allRows: true,
    };
  },
}) {}

/** XPO as in TRL: the rows of a pair are samples of the policy and of the reference. */
export class TRLXPOLossFn extends policyLoss({
  name: 'trl/xpo',
  summary: 'the loss of online DPO + alpha·the log-probability of the reference’s sample',
  details: [
    'The first row of a pair is a sample of the policy, and the second one of the reference. `chosen` says which one is preferred.',
  ],
  source: ['arXiv 2405.21046', 'TRL'],
  ...REFERENCE,
  reads: [...REFERENCE.reads, 'chosen'],
  pairs: true,
  options: {
    ...ONLINE_OPTIONS,
    alpha: number({
      default: 1e-5,
      typical: [1e-5, 0.5],
      help: 'the coefficient of the log-probability of the reference’s sample',
    }),
  },
  metrics: { 'loss/dpo': LOSS, 'loss/xpo': LOSS },
  numerics: LINEAR_NUMERICS,
  formula: (symbols, { alpha, ...options }, has) => {
    const rows = rowsOf(symbols, has);
    const { mean, rowLoss } = overPairs(symbols);
    const z = orderedPair(symbols, symbols.firstIsChosen.gt(0), pairOf(symbols, rows.logRatio));
    const ofPair = marginLoss(symbols, options.lossType, z.difference, options);
    const ofSample = symbols.rejected(rows.policy).mul(alpha);
    return {
      rowLoss: rowLoss(ofPair.add(ofSample)),
      metrics: { 'loss/dpo': mean(ofPair), 'loss/xpo': mean(ofSample) },
      allRows: true,
    };
  },
}) {}

const WHEN_DESIRABLE = 'if the batch has desirable rows';
const WHEN_UNDESIRABLE = 'if the batch has undesirable rows';
const WHOLE = 'when the whole batch is computed in one call';
const REWARD = { unit: 'reward' };
const LOGPS = { unit: 'nats per row' };

/** KTO as in TRL: a loss of single rows, which are desirable or not. */
export class TRLKTOLossFn extends policyLoss({
  name: 'trl/kto',
  summary: '1 − σ(±β·(z − z₀)), z₀ = an estimate of the KL divergence; averaged over the rows',
  details: [
    'z is the sum of logprob − ref_logprob over a row. The sign is + for desirable rows.',
    'z₀ = max(0, the mean of z over mismatched rows), the columns kl_…, without a gradient. With kl_estimate it is that.',
    'Loss type apo_zero_unpaired has z₀ = 0, and reads no mismatched rows.',
  ],
  source: ['arXiv 2402.01306', 'arXiv 2408.06266', 'TRL'],
  reads: ['ref_logprob', 'action_mask', 'ref_logps', 'label', ...KL_KEYS],
  optional: ['ref_logps'],
  ofRows: true,
  options: {
    lossType: choice(['kto', 'apo_zero_unpaired'], {
      default: 'kto',
      help: 'whether z₀ is the estimate of the KL divergence, or 0',
    }),
    beta,
    desirableWeight: number({ default: 1, typical: [0.5, 2], help: 'the weight of desirable rows' }),
    undesirableWeight: number({ default: 1, typical: [0.5, 2], help: 'the weight of the other rows' }),
  },
  metrics: {
    kl: { unit: 'nats per row', when: WHOLE },
    'rewards/chosen': { ...REWARD, when: WHEN_DESIRABLE },
    'logps/chosen': { ...LOGPS, when: WHEN_DESIRABLE },
    'rewards/rejected': { ...REWARD, when: WHEN_UNDESIRABLE },
    'logps/rejected': { ...LOGPS, when: WHEN_UNDESIRABLE },
    'rewards/margins': { ...REWARD, when: 'if the batch has rows of both kinds' },
  },
  numerics: { range: 'any finite logprobs', outside: 'the loss saturates, and its gradient becomes 0' },
  formula: (symbols, options, has) => {
    const { klEstimate, rows, rowsMean, constant } = symbols;
    const { policy, logRatio } = rowsOf(symbols, has);
    const reward = logRatio.mul(options.beta);
    const estimate = options.lossType === 'kto' ? klEstimate : constant(0);
    const ofRow = ktoLoss(symbols, logRatio.sub(estimate).mul(options.beta), {
      desirable: options.desirableWeight,
      undesirable: options.undesirableWeight,
    });
    const [desirable, undesirable] = [ofClass(symbols, true), ofClass(symbols, false)];
    return {
      rowLoss: ofRow.div(rows),
      metrics: {
        kl: { batch: rowsMean(estimate) },
        'rewards/chosen': { batch: desirable.mean(reward) },
        'logps/chosen': { batch: desirable.mean(policy) },
        'rewards/rejected': { batch: undesirable.mean(reward) },
        'logps/rejected': { batch: undesirable.mean(policy) },
        'rewards/margins': { batch: desirable.mean(reward).sub(undesirable.mean(reward)) },
      },
      allRows: true,
    };
  },
  further: ({ lossType }) => (lossType === 'kto' ? { prepared: withKlEstimate, preparesWhole: true } : {}),
}) {}

/** BCO as in TRL. */
export class TRLBCOLossFn extends policyLoss({
  name: 'trl/bco',
  summary: '−ln σ(βz − δ) of desirable rows, −ln σ(δ − βz) of the others; δ = the running mean of βz',
  details: [
    'z is the sum of logprob − ref_logprob over a row. δ has no gradient.',
    'The result’s state has the running mean and count for the next call.',
    'With prob_desirable p, an undesirable row has the weight p/(1 − p), within the bounds of the density ratio.',
    'The paper averages the means of the two kinds of rows.',
  ],
  source: ['arXiv 2404.04656', 'TRL'],
  reads: ['ref_logprob', 'action_mask', 'ref_logps', 'label', 'prob_desirable'],
  optional: ['ref_logps', 'prob_desirable'],
  ofRows: true,
  options: {
    beta,
    ...RUNNING_OPTIONS,
    minDensityRatio: number({
      default: 0.5,
      atLeast: 0,
      typical: [0.1, 0.9],
      help: 'the smallest weight of an undesirable row',
    }),
    maxDensityRatio: number({
      default: 10,
      atLeast: 0,
      atLeastOption: 'minDensityRatio',
      typical: [1, 10],
      help: 'the largest weight of an undesirable row',
    }),
  },
  metrics: {
    delta: { ...REWARD, when: WHOLE },
    'rewards/chosen_sum': { ...REWARD, when: WHEN_DESIRABLE },
    'logps/chosen_sum': { unit: 'nats', when: WHEN_DESIRABLE },
    'count/chosen': { unit: 'rows', when: WHEN_DESIRABLE },
    'rewards/rejected_sum': { ...REWARD, when: WHEN_UNDESIRABLE },
    'logps/rejected_sum': { unit: 'nats', when: WHEN_UNDESIRABLE },
    'count/rejected': { unit: 'rows', when: WHEN_UNDESIRABLE },
  },
  numerics: LINEAR_NUMERICS,
  formula: (symbols, { beta, minDensityRatio, maxDensityRatio, ...running }, has) => {
    const { label, probDesirable, rows, rowsMean, logsigmoid, select, clip, constant } = symbols;
    const { policy, logRatio } = rowsOf(symbols, has);
    const reward = logRatio.mul(beta);
    const { next: shift, state } = runningMean(symbols, running, rowsMean(reward), rows);
    const ahead = reward.sub(shift);
    const density = probDesirable.div(constant(1).sub(probDesirable).add(1e-8));
    const weight = has('prob_desirable') ? clip(density, minDensityRatio, maxDensityRatio) : 1;
    const ofRow = select(label.gt(0), logsigmoid(ahead), logsigmoid(ahead.neg()).mul(weight)).neg();
    const [desirable, undesirable] = [ofClass(symbols, true), ofClass(symbols, false)];
    return {
      rowLoss: ofRow.div(rows),
      metrics: {
        delta: { batch: shift },
        'rewards/chosen_sum': desirable.sumIfAny(reward),
        'logps/chosen_sum': desirable.sumIfAny(policy),
        'count/chosen': desirable.countIfAny,
        'rewards/rejected_sum': undesirable.sumIfAny(reward),
        'logps/rejected_sum': undesirable.sumIfAny(policy),
        'count/rejected': undesirable.countIfAny,
      },
      state,
      allRows: true,
    };
  },
}) {}
