// The loss of verl's actor: a policy loss, the KL loss and the entropy loss, all aggregated as verl does.
import type { Metrics } from '../../../core/calls.js';
import type { LossAggMode } from '../../../core/options.js';
import { createFunction } from '../../../core/registry.js';
import type { Expression, ProgramSymbols } from '../../../program/expression.js';
import { lossMetric } from '../../../program/loss-program.js';
import { rolloutCorrection } from '../../correction/verl/rollout-expressions.js';
import type { CorrectionOptions } from '../../correction/verl/rollout-weights.js';
import { type AddedTerm, withAddedTerm } from '../expression-loss.js';
import { POLICY_LOSS_FN, type PolicyLossFn } from '../policy-loss-fn.js';
import { weightOf } from './aggregation.js';
import { keeping } from './corrected.js';
import { ESTIMATES, straightThrough } from './estimates.js';

/** The terms that verl's actor adds to a policy loss. A term whose coefficient is 0 is left out. */
export interface ActorTerms {
  /** The name of the KL function: one of verl's estimates, or with a + for the gradient of k2. */
  readonly klLossFn: string;
  readonly klCoef: number;
  readonly entropyCoef: number;
  /** How both terms are aggregated. The policy loss has options of its own for that. */
  readonly lossAggMode: LossAggMode;
  readonly lossScaleFactor: number | undefined;
}

const OWNER = "the loss of verl's actor";

/**
 * Creates a policy loss of verl plus klCoef times the KL loss, minus entropyCoef times the entropy loss. Tokens that a
 * rollout correction rejects count in none of the three. Only verl/bypass_mode rejects them within the policy loss.
 * @throws LossError `ERR_INVALID_OPTION`, `ERR_UNKNOWN_NAME`
 */
export function verlActorLoss(
  policyLoss: string,
  args: Readonly<Record<string, unknown>>,
  terms: ActorTerms,
  options: { backend?: string },
): PolicyLossFn<Partial<Metrics>> {
  const { klCoef, entropyCoef } = terms;
  const rejects = policyLoss !== 'verl/bypass_mode';
  const Loss = withAddedTerm(
    POLICY_LOSS_FN.get(policyLoss),
    (symbols, options: CorrectionOptions): AddedTerm => {
      const { H, constant, select, old, rollout } = symbols;
      const isRejecting = rejects && options.rolloutRs !== undefined;
      const kept = isRejecting ? rolloutCorrection(OWNER, symbols, options, old, rollout).kept : undefined;
      const weight = weightOf(OWNER, kept ? keeping(symbols, kept) : symbols, {
        lossAggMode: terms.lossAggMode,
        lossScaleFactor: terms.lossScaleFactor,
        dpSize: 1,
        batchNumTokens: undefined,
        globalBatchSize: undefined,
      });
      const aggregated = (perToken: Expression) => {
        const weighted = perToken.mul(weight);
        return kept ? select(kept, weighted, 0) : weighted;
      };
      const kl = klCoef === 0 ? undefined : aggregated(klOf(symbols, terms.klLossFn));
      const entropy = entropyCoef === 0 ? undefined : aggregated(H);
      return {
        loss: (kl?.mul(klCoef) ?? constant(0)).sub(entropy?.mul(entropyCoef) ?? 0),
        metrics: {
          ...(kl && { kl_loss: lossMetric(symbols, kl), kl_coef: { batch: klCoef } }),
          ...(entropy && { entropy_loss: lossMetric(symbols, entropy) }),
        },
      };
    },
  );
  return createFunction(Loss, args, options);
}

function klOf(symbols: ProgramSymbols, name: string): Expression {
  const delta = symbols.ref.sub(symbols.lp);
  const value = ESTIMATES[name.replace('+', '') as keyof typeof ESTIMATES](symbols, delta);
  return name.endsWith('+') ? straightThrough(symbols, delta, value) : value;
}
