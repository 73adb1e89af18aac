// The preference losses of LLaMA-Factory and ms-swift, which follow older versions of TRL.
import { choice, choices, flag, like, number } from '../base/option.js';
import type { Expression, Operand, ProgramSymbols } from '../program/expression.js';
import {
  bothSides,
  DIVERGENCE_OPTIONS,
  divergence,
  EXO_SMOOTHING,
  exoPair,
  type PairTerms,
  robust,
  scored,
  TRL_DPO_TYPES,
  TYPE_OPTIONS,
  weightedTypes,
} from './dpo-types.js';
import { KL_KEYS, withKlEstimate } from './kl-estimate.js';
import {
  BETA_OPTION,
  ipo,
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
  REWARD_METRICS,
  rewardMetrics,
  SMOOTHING_OPTION,
  scaled,
  shorterOf,
  smoothed,
  sumOverRows,
} from './pair-terms.js';
import { policyLoss } from './policy-loss.js';
import { ktoLoss, ofClass, RUNNING_OPTIONS, runningMean } from './row-preference-terms.js';
import { IN_ONE_CALL, LOSS } from './units.js';

const REWARD = { unit: 'reward' };
const beta = number({ default: 0.1, ...BETA_OPTION });

// Both sides' losses with the rewards' running mean as their shift, which a call counts once.
function shiftedSides(
  symbols: ProgramSymbols,
  reward: Expression,
  running: { runningMean: number; runningCount: number },
) {
  const { next, state } = runningMean(symbols, running, symbols.rowsMean(reward), 1);
  return { loss: bothSides(symbols, pairOf(symbols, reward.sub(next))), state };
}

// LLaMA-Factory counts the positions from the first label, masked ones among them.
function weightOfPosition(symbols: ProgramSymbols, ldAlpha: number | undefined): Operand {
  if (ldAlpha === undefined) return 1;
  const last = symbols.firstPosition.add(shorterOf(symbols)).sub(1);
  return symbols.select(symbols.isUpToPosition(last), 1, ldAlpha);
}

/** DPO, IPO, ORPO and SimPO as in LLaMA-Factory. */
export class LLaMAFactoryDPOLossFn extends policyLoss({
  name: 'llamafactory/dpo',
  summary: 'the loss of pref_loss, + pref_bco_weight·BCO’s, − pref_ftx·the chosen row’s mean log-probability',
  details: [
    'The log-probabilities of ipo, orpo and simpo are means over tokens. orpo and simpo read no reference.',
    'With TRL 0.20 to 0.24, LLaMA-Factory computes sigmoid for hinge and ipo. This function does not.',
    'ld_alpha holds for the policy only, and counts positions from the first label, masked tokens among them.',
    'The result’s state has the running mean and count for the next call, with pref_bco_weight.',
  ],
  source: ['arXiv 2305.18290', 'LLaMA-Factory'],
  unlike: { dpo: 'it has other loss types, and terms of BCO and SFT' },
  reads: ['ref_logprob', 'action_mask', 'pair_ids'],
  pairs: true,
  options: {
    prefLoss: choice(['sigmoid', 'hinge', 'ipo', 'orpo', 'simpo'], {
      default: 'sigmoid',
      help: 'the loss of a pair',
    }),
    prefBeta: beta,
    prefFtx: number({
      default: 0,
      atLeast: 0,
      typical: [0, 1],
      help: 'the coefficient of the chosen row’s NLL per token',
    }),
    prefBcoWeight: number({
      default: 0,
      atLeast: 0,
      typical: [0, 1],
      help: 'the weight of BCO’s loss, by which the sum is divided again, + 1; it needs a reference',
    }),
    dpoLabelSmoothing: number({
      ...SMOOTHING_OPTION,
      help: `${SMOOTHING_OPTION.help}, for sigmoid`,
    }),
    simpoGamma: number({ default: 0.5, typical: [0, 2], help: 'the target margin of simpo, in rewards' }),
    ldAlpha: LENGTH_WEIGHT.ldAlpha,
    ...RUNNING_OPTIONS,
  },
  metrics: {
    ...REWARD_METRICS,
    ...LOGPS_METRICS,
    sft_loss: { ...LOSS, when: 'with pref_loss orpo' },
    odds_ratio_loss: { ...LOSS, when: 'with pref_loss orpo' },
  },
  numerics: {
    range: 'logprobs below 0',
    outside: 'the loss grows linearly with the margin, or with its square',
  },
  formula: (symbols, options) => {
    const { lp, ref, rowSum, logsigmoid, constant } = symbols;
    const { prefLoss, prefBeta, prefFtx, prefBcoWeight, simpoGamma, ldAlpha } = options;
    const weight = weightOfPosition(symbols, ldAlpha);
    const isMean = prefLoss !== 'sigmoid' && prefLoss !== 'hinge';
    const averaged = (x: Expression) => (isMean ? perToken(symbols, x) : x);
    const policy = averaged(rowSum(lp.mul(weight)));
    const both = pairOf(symbols, policy);
    const hasReference = prefLoss !== 'orpo' && prefLoss !== 'simpo';
    const difference = ldAlpha === undefined ? rowSum(lp.sub(ref)) : rowSum(lp.mul(weight).sub(ref));
    const logRatio = hasReference ? averaged(difference) : policy;
    const values = pairOf(symbols, logRatio);
    const sft = both.chosen.neg();
    const odds = () => logsigmoid(pairOf(symbols, logOdds(symbols, policy)).difference).neg();
    const preference = {
      sigmoid: () => smoothed(symbols, values.difference.mul(prefBeta), options.dpoLabelSmoothing),
      hinge: () => marginLoss(symbols, 'hinge', values.difference, { beta: prefBeta }),
      ipo: () => ipo(symbols, values.difference, prefBeta),
      orpo: () => sft.add(odds().mul(prefBeta)),
      simpo: () => smoothed(symbols, values.difference.mul(prefBeta).sub(simpoGamma), 0),
    }[prefLoss]();
    const shifted =
      prefBcoWeight > 0 && hasReference ? shiftedSides(symbols, logRatio.mul(prefBeta), options) : undefined;
    const withBco = shifted
      ? preference.add(shifted.loss.mul(prefBcoWeight)).div(1 + prefBcoWeight)
      : preference;
    const nll = isMean ? sft : symbols.chosen(perToken(symbols, policy)).neg();
    const ofPair = prefFtx === 0 ? withBco : withBco.add(nll.mul(prefFtx));
    const { mean, rowLoss } = overPairs(symbols);
    const isOrpo = prefLoss === 'orpo';
    return {
      rowLoss: rowLoss(ofPair),
      metrics: {
        ...rewardMetrics(mean, scaled(values, prefBeta)),
        ...logpsMetrics(mean, both),
        sft_loss: isOrpo ? mean(sft) : undefined,
        odds_ratio_loss: isOrpo ? mean(ofPair.sub(sft).div(constant(prefBeta))) : undefined,
      },
      ...(shifted && { state: shifted.state }),
      allRows: true,
    };
  },
}) {}

const DESIRABLE = { when: 'if the batch has desirable rows' };
const UNDESIRABLE = { when: 'if the batch has undesirable rows' };

/** KTO as in LLaMA-Factory. */
export class LLaMAFactoryKTOLossFn extends policyLoss({
  name: 'llamafactory/kto',
  summary:
    '1 − σ(±β·(z − z₀)), z₀ = an estimate of the KL divergence; averaged over the rows; + pref_ftx·NLL',
  details: [
    'z is the sum of logprob − ref_logprob over a row. The sign is + for desirable rows.',
    'z₀ = max(0, the mean of z over mismatched rows), the columns kl_…, without a gradient. With kl_estimate it is that.',
    'The NLL is the mean over desirable rows with tokens of that of a token, divided by the share of desirable rows.',
  ],
  source: ['arXiv 2402.01306', 'LLaMA-Factory'],
  reads: ['ref_logprob', 'action_mask', 'label', ...KL_KEYS],
  ofRows: true,
  options: {
    prefBeta: beta,
    ktoChosenWeight: number({ default: 1, typical: [0.5, 2], help: 'the weight of desirable rows' }),
    ktoRejectedWeight: number({ default: 1, typical: [0.5, 2], help: 'the weight of the other rows' }),
    prefFtx: number({
      default: 0,
      atLeast: 0,
      typical: [0, 1],
      help: 'the coefficient of the desirable rows’ NLL',
    }),
  },
  metrics: {
    'rewards/chosen_sum': { ...REWARD, ...DESIRABLE },
    'logps/chosen_sum': { unit: 'nats', ...DESIRABLE },
    'count/chosen': { unit: 'rows', ...DESIRABLE },
    'rewards/rejected_sum': { ...REWARD, ...UNDESIRABLE },
    'logps/rejected_sum': { unit: 'nats', ...UNDESIRABLE },
    'count/rejected': { unit: 'rows', ...UNDESIRABLE },
    kl: { unit: 'nats per row', when: IN_ONE_CALL },
  },
  numerics: { range: 'any finite logprobs', outside: 'the loss saturates, and its gradient becomes 0' },
  formula: (symbols, options) => {
    const { lp, ref, label, klEstimate, n, rows, rowSum, rowsSum, rowsMean, select, max } = symbols;
    const { prefBeta, prefFtx, ktoChosenWeight, ktoRejectedWeight } = options;
    const policy = rowSum(lp);
    const logRatio = rowSum(lp.sub(ref));
    const ofRow = ktoLoss(symbols, logRatio.sub(klEstimate).mul(prefBeta), {
      desirable: ktoChosenWeight,
      undesirable: ktoRejectedWeight,
    }).div(rows);
    const isDesirable = label.gt(0);
    // LLaMA-Factory divides the mean by the number of desirable rows once more, and multiplies it by that of all rows. Rows
    // without tokens are NaN there, which the mean leaves out.
    const count = (isMember: Expression) => max(rowsSum(isMember), 1);
    const nll = () =>
      select(isDesirable, perToken(symbols, policy).neg(), 0)
        .div(count(isDesirable.mul(n.gt(0))))
        .mul(rows.div(count(isDesirable)));
    const reward = logRatio.mul(prefBeta);
    const [desirable, undesirable] = [ofClass(symbols, true), ofClass(symbols, false)];
    return {
      rowLoss: prefFtx === 0 ? ofRow : ofRow.add(nll().mul(prefFtx)),
      metrics: {
        'rewards/chosen_sum': desirable.sumIfAny(reward),
        'logps/chosen_sum': desirable.sumIfAny(policy),
        'count/chosen': desirable.countIfAny,
        'rewards/rejected_sum': undesirable.sumIfAny(reward),
        'logps/rejected_sum': undesirable.sumIfAny(policy),
        'count/rejected': undesirable.countIfAny,
        kl: { batch: rowsMean(klEstimate) },
      },
      allRows: true,
    };
  },
  further: () => ({ prepared: withKlEstimate, preparesWhole: true }),
}) {}

// The terms of ms-swift's losses.
interface SwiftTerms {
  /** From the log-ratios, or from the policy's log-probabilities alone if there is no reference, scored by f. */
  readonly free: PairTerms;
  /** The same, from means over tokens. */
  readonly freeMeans: PairTerms;
  /** From the log-ratios, without f. */
  readonly full: PairTerms;
  readonly shifted: Expression | undefined;
}

const SWIFT_TYPES = {
  sigmoid: ({ free }) => smoothed(free.symbols, free.score.difference.mul(free.beta), free.labelSmoothing),
  hinge: ({ free }) => TRL_DPO_TYPES.hinge(free),
  ipo: ({ freeMeans }) => ipo(freeMeans.symbols, freeMeans.score.difference, freeMeans.beta),
  exo_pair: ({ free }) => exoPair(free.symbols, free.score.difference.mul(free.beta), free.labelSmoothing),
  nca_pair: ({ full }) => TRL_DPO_TYPES.nca_pair(full),
  robust: ({ free }) => robust(free.symbols, free.score.difference.mul(free.beta), free.labelSmoothing),
  bco_pair: ({ shifted }) => shifted!,
  sppo_hard: ({ full }) => TRL_DPO_TYPES.sppo_hard(full),
  aot: ({ full }) => TRL_DPO_TYPES.aot(full),
  aot_unpaired: ({ full }) => TRL_DPO_TYPES.aot_unpaired(full),
  // The name of aot_unpaired in ms-swift with a TRL before 0.29.
  aot_pair: ({ full }) => TRL_DPO_TYPES.aot_unpaired(full),
  apo_zero: ({ free }) => TRL_DPO_TYPES.apo_zero(free),
  apo_down: ({ free }) => TRL_DPO_TYPES.apo_down({ ...free, score: free.z }),
  discopop: ({ full }) => TRL_DPO_TYPES.discopop(full),
  sft: ({ full }) => TRL_DPO_TYPES.sft(full),
} satisfies Record<string, (terms: SwiftTerms) => Expression>;
type SwiftType = keyof typeof SWIFT_TYPES;
const SWIFT_NAMES = Object.keys(SWIFT_TYPES) as SwiftType[];

/** DPO as in ms-swift, which follows TRL 0.24. */
export class SwiftDPOLossFn extends policyLoss({
  name: 'swift/dpo',
  summary:
    'a loss of β·(the log-ratio of the chosen row to the reference − that of the rejected row), by loss type',
  details: [
    'The log-ratio of a row is the sum over its tokens, and for ipo the mean. ld_alpha holds for the policy only.',
    'reference_free holds for sigmoid, robust, exo_pair, hinge, ipo and the apo types. forward_kl has no effect.',
    'bco_pair is shifted by a running mean of the rewards. The result’s state has it for the next call.',
    'With exo_pair in the list, a label_smoothing of 0 stands for 0.001 in all loss types, as from ms-swift’s second step on.',
    'The loss weights multiply the metrics of rewards too.',
    'With the Megatron trainer, ms-swift computes sigmoid for every loss type. This function does not.',
  ],
  source: ['arXiv 2305.18290', 'ms-swift'],
  unlike: {
    dpo: 'it has other loss types, f-divergences and terms',
    'trl/dpo':
      'sigmoid has label smoothing, ld_alpha and the running mean differ, and f-divergences have another α',
  },
  reads: ['ref_logprob', 'action_mask', 'pair_ids'],
  pairs: true,
  options: {
    lossType: choices(SWIFT_NAMES, {
      default: ['sigmoid'],
      typical: [...SWIFT_NAMES.map((type) => [type]), ['sigmoid', 'bco_pair', 'sft'], ['sigmoid', 'ipo']],
      help: 'the loss of a pair, or a list of losses, which are added up',
    }),
    ...TYPE_OPTIONS,
    labelSmoothing: like(TYPE_OPTIONS.labelSmoothing, {
      help: 'ε, the probability that a label is wrong, for the loss types sigmoid, exo_pair (0 stands for 0.001), robust (below ½) and the aot types',
    }),
    beta,
    fDivergenceType: like(DIVERGENCE_OPTIONS.fDivergenceType, {
      help: 'the f-divergence that scores log-ratios, for the loss types sigmoid, robust, exo_pair, hinge and ipo',
    }),
    fAlphaDivergenceCoef: like(DIVERGENCE_OPTIONS.fAlphaDivergenceCoef, {
      help: '1 − α of alpha_divergence',
    }),
    ...LENGTH_WEIGHT,
    referenceFree: flag({ default: false, help: 'whether some loss types leave out the reference' }),
    rpoAlpha: number({ typical: [0, 1], help: 'the coefficient of the chosen rows’ NLL; null for none' }),
    ...RUNNING_OPTIONS,
  },
  metrics: {
    ...REWARD_METRICS,
    ...LOGPS_METRICS,
    'logps_mean/chosen': { unit: 'nats per token', when: 'with loss type ipo' },
    'logps_mean/rejected': { unit: 'nats per token', when: 'with loss type ipo' },
    nll_loss: { ...LOSS, when: 'with rpo_alpha or loss type sft' },
  },
  numerics: {
    ...LINEAR_NUMERICS,
    outside: 'most loss types grow linearly with the margin; ipo and sppo_hard grow with its square',
    exponentiatesRowSums: true,
  },
  formula: (symbols, { lossType, lossWeights, rpoAlpha, ...options }) => {
    const { lp, ref, rowSum } = symbols;
    const types = [lossType].flat() as SwiftType[];
    const labelSmoothing = options.labelSmoothing || (types.includes('exo_pair') ? EXO_SMOOTHING : 0);
    const weight = lengthWeight(symbols, options);
    const weighted = lp.mul(weight);
    const sums = { policy: rowSum(weighted), reference: rowSum(ref), logRatio: rowSum(weighted.sub(ref)) };
    const means = (x: Expression) => perToken(symbols, x);
    const isForward = options.fDivergenceType === 'forward_kl';
    const f = divergence(
      symbols,
      isForward ? 'reverse_kl' : options.fDivergenceType,
      1 - options.fAlphaDivergenceCoef,
    );
    const terms = (z: Pair, score: Pair): PairTerms => ({
      symbols,
      rows: sums,
      z,
      score,
      ...options,
      labelSmoothing,
    });
    const free = options.referenceFree ? sums.policy : sums.logRatio;
    const scoredTerms = (x: Expression) => {
      const z = pairOf(symbols, x);
      return terms(z, scored(z, f));
    };
    const full = pairOf(symbols, sums.logRatio);
    const shifted = types.includes('bco_pair')
      ? shiftedSides(symbols, sums.logRatio.mul(options.beta), options)
      : undefined;
    const ofPair = weightedTypes(SWIFT_TYPES, types, lossWeights, {
      free: scoredTerms(free),
      freeMeans: scoredTerms(means(free)),
      full: terms(full, full),
      shifted: shifted?.loss,
    });
    const { isChosen, mean, rowLoss } = overPairs(symbols);
    const ofMeans = pairOf(symbols, means(sums.logRatio));
    const total = types.map((type, i) =>
      scaled(type === 'ipo' ? ofMeans : full, options.beta * (lossWeights?.[i] ?? 1)),
    );
    const rewards = total.length === 0 ? scaled(full, 0) : total.reduce(addedPairs);
    const nll = meanOfRows(symbols, isChosen, lp.neg());
    const hasNll = rpoAlpha !== undefined || types.includes('sft');
    const averages = types.includes('ipo') ? pairOf(symbols, means(sums.policy)) : undefined;
    return {
      rowLoss: rpoAlpha === undefined ? rowLoss(ofPair) : rowLoss(ofPair).add(nll.mul(rpoAlpha)),
      metrics: {
        ...rewardMetrics(mean, rewards),
        ...logpsMetrics(mean, pairOf(symbols, sums.policy)),
        'logps_mean/chosen': averages && mean(averages.chosen),
        'logps_mean/rejected': averages && mean(averages.rejected),
        nll_loss: hasNll ? sumOverRows(symbols, nll) : undefined,
      },
      ...(shifted && { state: shifted.state }),
      allRows: true,
    };
  },
}) {}

function addedPairs(a: Pair, b: Pair): Pair {
  return {
    chosen: a.chosen.add(b.chosen),
    rejected: a.rejected.add(b.rejected),
    difference: a.difference.add(b.difference),
  };
}
