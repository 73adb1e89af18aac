// The loss of verl's actor: a policy loss, the KL loss and the entropy loss, all aggregated as verl does.
import type { LossAggMode } from '../base/options.js';
import { createFunction } from '../base/registry.js';
import type { Expression, ProgramSymbols } from '../program/expression.js';
import { lossMetric } from '../program/loss-program.js';
import { keeping } from './corrected-loss.js';
import { verlWeight } from './divisors.js';
import { straightThrough, VERL_ESTIMATES } from './kl-terms.js';
import { type AddedTerm, type Metrics, withAddedTerm } from './policy-loss.js';
import { POLICY_LOSS_FN, type PolicyLossFn } from './policy-loss-fn.js';
import { MAX_BATCH_METRICS, rolloutCorrection } from './rollout-correction.js';
import type { CorrectionOptions } from './rollout-weights.js';

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
): PolicyLossFn<Partial<Record<string, number>>> {
  const { klCoef, entropyCoef } = terms;
  const rejects = policyLoss !== 'verl/bypass_mode';
  const Loss = withAddedTerm(
    POLICY_LOSS_FN.get(policyLoss),
    (symbols, options: CorrectionOptions, metrics): AddedTerm => {
      const { H, constant, select, old, rollout } = symbols;
      const isRejecting = rejects && options.rolloutRs !== undefined;
      const kept = isRejecting ? rolloutCorrection(symbols, options, old, rollout).kept : undefined;
      const weight = verlWeight(kept ? keeping(symbols, kept) : symbols, {
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
        metrics: withTerms(
          symbols,
          metrics,
          { ...(kl && { kl_loss: kl }), ...(entropy && { entropy_loss: entropy }) },
          kl && { kl_coef: { batch: klCoef } },
        ),
      };
    },
  );
  return createFunction(Loss, args, options);
}

// The largest number of metrics of tokens and rows that a program can have.
const MAX_METRICS = 16;

// Adds the sums of the terms over the batch to the metrics of the policy loss, and further metrics of the batch. If there
// are too many metrics of tokens, the sums are metrics of the batch. Where there is no room for these, the last ones of the
// rollout correction are left out.
function withTerms(
  symbols: ProgramSymbols,
  metrics: Metrics,
  terms: Readonly<Record<string, Expression>>,
  further: Metrics | undefined,
): Metrics {
  const isOfBatch = (metric: Metrics[string]) => metric !== undefined && 'batch' in metric;
  const perToken = Object.values(metrics).filter((metric) => metric && !isOfBatch(metric)).length;
  const hasRoom = perToken + Object.keys(terms).length <= MAX_METRICS;
  const sums = Object.entries(terms).map(([name, term]) => [
    name,
    hasRoom ? lossMetric(symbols, term) : { batch: symbols.batchSum(term) },
  ]);
  const added: Metrics = { ...Object.fromEntries(sums), ...further };
  const names = Object.keys(metrics).filter((name) => isOfBatch(metrics[name]));
  const room = MAX_BATCH_METRICS - Object.values(added).filter(isOfBatch).length;
  const left = new Set(names.slice(room));
  const kept = Object.entries(metrics).filter(([name]) => !left.has(name));
  return { ...Object.fromEntries(kept), ...added };
}

function klOf(symbols: ProgramSymbols, name: string): Expression {
  const delta = symbols.ref.sub(symbols.lp);
  const value = VERL_ESTIMATES[name.replace('+', '') as keyof typeof VERL_ESTIMATES](symbols, delta);
  return name.endsWith('+') ? straightThrough(symbols, delta, value) : value;
}
