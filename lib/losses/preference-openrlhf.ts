// The preference losses of OpenRLHF, and of ROLL, whose DPO is like OpenRLHF's.
import { flag, number } from '../base/option.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { KL_KEYS, withKlEstimate } from './kl-estimate.js';
import {
  BETA_OPTION,
  LINEAR_NUMERICS,
  MARGIN,
  marginLoss,
  OR_IPO,
  overPairs,
  pairOf,
  perToken,
  REFERENCE,
  rowsOf,
  SMOOTHING_OPTION,
  scaled,
} from './pair-terms.js';
import { policyLoss } from './policy-loss.js';
import { ktoLoss } from './row-preference-terms.js';
import { FRACTION_OF_PAIRS, IN_ONE_CALL, LOSS } from './units.js';

const REWARD = { unit: 'reward' };
const beta = number({ default: 0.1, ...BETA_OPTION });
const labelSmoothing = number(SMOOTHING_OPTION);

const OPENRLHF_OPTIONS = { beta, labelSmoothing };
const NLL_COEF = number({
  default: 0,
  typical: [0, 0.5],
  help: 'the coefficient of the mean log-probability of the chosen rows’ tokens, which is subtracted',
});

// DPO with label smoothing, or IPO of sums.
function smoothedOrIpo(
  symbols: ProgramSymbols,
  margin: Expression,
  isIpo: boolean,
  options: { beta: number; labelSmoothing: number },
): Expression {
  return marginLoss(symbols, isIpo ? 'ipo' : 'sigmoid', margin, options);
}

/** DPO as in OpenRLHF. */
export class OpenRLHFDPOLossFn extends policyLoss({
  name: 'openrlhf/dpo',
  summary: `−ln σ(β·margin) with label smoothing, ${OR_IPO}; − nll_loss_coef·the chosen rows’ mean log-probability`,
  details: [MARGIN, 'The metric loss leaves out the term of nll_loss_coef.'],
  source: ['arXiv 2305.18290', 'OpenRLHF'],
  unlike: { dpo: 'it has IPO and an NLL term, and other metrics' },
  ...REFERENCE,
  pairs: true,
  options: {
    ...OPENRLHF_OPTIONS,
    ipoEnable: flag({ default: false, help: `whether the loss of a pair is (margin − 1/(2β))² (IPO)` }),
    nllLossCoef: NLL_COEF,
  },
  metrics: {
    loss: LOSS,
    acc: FRACTION_OF_PAIRS,
    chosen_reward: REWARD,
    reject_reward: REWARD,
    nll_loss: { ...LOSS, when: 'with nll_loss_coef' },
  },
  numerics: LINEAR_NUMERICS,
  formula: (symbols, { ipoEnable, nllLossCoef, ...options }, has) => {
    const rows = rowsOf(symbols, has);
    const z = pairOf(symbols, rows.logRatio);
    const { mean, rowLoss } = overPairs(symbols);
    const ofPair = smoothedOrIpo(symbols, z.difference, ipoEnable, options);
    const nll = symbols.chosen(perToken(symbols, rows.policy)).neg();
    const rewards = scaled(z, options.beta);
    return {
      rowLoss: rowLoss(nllLossCoef === 0 ? ofPair : ofPair.add(nll.mul(nllLossCoef))),
      metrics: {
        loss: mean(ofPair),
        acc: mean(z.difference.gt(0)),
        chosen_reward: mean(rewards.chosen),
        reject_reward: mean(rewards.rejected),
        nll_loss: nllLossCoef === 0 ? undefined : mean(nll),
      },
      allRows: true,
    };
  },
}) {}

/** DPO as in ROLL. */
export class ROLLDPOLossFn extends policyLoss({
  name: 'roll/dpo',
  summary: `−ln σ(β·margin) with label smoothing, ${OR_IPO}`,
  details: [MARGIN],
  source: ['arXiv 2305.18290', 'ROLL'],
  unlike: { dpo: 'it has IPO, and other metrics' },
  ...REFERENCE,
  pairs: true,
  options: {
    ...OPENRLHF_OPTIONS,
    ipo: flag({ default: false, help: 'whether the loss of a pair is (margin − 1/(2β))² (IPO)' }),
  },
  metrics: {
    'actor/loss': LOSS,
    'actor/acc': FRACTION_OF_PAIRS,
    'actor/chosen_reward': REWARD,
    'actor/reject_reward': REWARD,
  },
  numerics: LINEAR_NUMERICS,
  formula: (symbols, { ipo: isIpo, ...options }, has) => {
    const z = pairOf(symbols, rowsOf(symbols, has).logRatio);
    const { mean, rowLoss } = overPairs(symbols);
    const ofPair = smoothedOrIpo(symbols, z.difference, isIpo, options);
    const rewards = scaled(z, options.beta);
    return {
      rowLoss: rowLoss(ofPair),
      metrics: {
        'actor/loss': mean(ofPair),
        'actor/acc': mean(z.difference.gt(0)),
        'actor/chosen_reward': mean(rewards.chosen),
        'actor/reject_reward': mean(rewards.rejected),
      },
      allRows: true,
    };
  },
}) {}

const KTO_METRICS = { chosen_reward: REWARD, reject_reward: REWARD };

/** KTO as in OpenRLHF. */
export class OpenRLHFKTOLossFn extends policyLoss({
  name: 'openrlhf/kto',
  summary: '1 − σ(±β·(z − z₀)), z₀ = an estimate of the KL divergence; averaged over the rows',
  details: [
    'z is the sum of logprob − ref_logprob over a row. The sign is + for desirable rows.',
    'z₀ = max(0, the mean of z over mismatched rows), the columns kl_…, without a gradient. With kl_estimate it is that.',
  ],
  source: ['arXiv 2402.01306', 'OpenRLHF'],
  reads: ['ref_logprob', 'action_mask', 'ref_logps', 'label', ...KL_KEYS],
  optional: ['ref_logps'],
  ofRows: true,
  options: {
    beta,
    desirableWeight: number({ default: 1, typical: [0.5, 2], help: 'the weight of desirable rows' }),
    undesirableWeight: number({ default: 1, typical: [0.5, 2], help: 'the weight of the other rows' }),
  },
  metrics: { kto_loss: LOSS, ...KTO_METRICS, kl: { unit: 'nats per row', when: IN_ONE_CALL } },
  numerics: { range: 'any finite logprobs', outside: 'the loss saturates, and its gradient becomes 0' },
  formula: (symbols, options, has) => {
    const { klEstimate, label, rows, rowsMean, rowsSum, select, max } = symbols;
    const { logRatio } = rowsOf(symbols, has);
    const ofRow = ktoLoss(symbols, logRatio.sub(klEstimate).mul(options.beta), {
      desirable: options.desirableWeight,
      undesirable: options.undesirableWeight,
    });
    const mean = (isMember: Expression) => ({
      batch: rowsSum(select(isMember, logRatio.mul(options.beta), 0)).div(max(rowsSum(isMember), 1)),
    });
    return {
      rowLoss: ofRow.div(rows),
      metrics: {
        kto_loss: { row: ofRow },
        chosen_reward: mean(label.gt(0)),
        reject_reward: mean(label.eq(0)),
        kl: { batch: rowsMean(klEstimate) },
      },
      allRows: true,
    };
  },
  further: () => ({ prepared: withKlEstimate, preparesWhole: true }),
}) {}

/** OpenRLHF's KTO over pairs, whose KL estimates are those of the other side. */
export class OpenRLHFVanillaKTOLossFn extends policyLoss({
  name: 'openrlhf/vanilla_kto',
  summary: 'the mean of 1 − σ(β·(z_chosen − K_rejected)) and 1 − σ(β·(K_chosen − z_rejected)) over all pairs',
  details: [
    'z is the sum of logprob − ref_logprob over a row, and K = max(0, the mean of z over the chosen or the rejected rows).',
    'The gradient flows through K.',
  ],
  source: ['arXiv 2402.01306', 'OpenRLHF'],
  ...REFERENCE,
  pairs: true,
  options: { beta },
  metrics: KTO_METRICS,
  numerics: { range: 'any finite logprobs', outside: 'the loss saturates, and its gradient becomes 0' },
  formula: (symbols, options, has) => {
    const { placeInPair, rows, rowsSum, max, select, sigmoid } = symbols;
    const { logRatio } = rowsOf(symbols, has);
    const { isChosen, mean, perPair } = overPairs(symbols);
    const meanOf = (isMember: Expression) => rowsSum(select(isMember, logRatio, 0)).mul(perPair);
    const estimate = (isMember: Expression) => max(0, meanOf(isMember));
    const advance = select(
      isChosen,
      logRatio.sub(estimate(placeInPair.eq(1))),
      estimate(isChosen).sub(logRatio),
    );
    const rewards = scaled(pairOf(symbols, logRatio), options.beta);
    return {
      rowLoss: sigmoid(advance.mul(-options.beta)).div(rows),
      metrics: { chosen_reward: mean(rewards.chosen), reject_reward: mean(rewards.rejected) },
      allRows: true,
    };
  },
}) {}
