// sPPO's class.
import type { TrinityArgs } from '../../core/options.js';
import { type AggregatedLossOptions, openOptions, PolicyLossFn, RATIO_KEYS } from './policy-loss-fn.js';

/** Options of {@link sPPOPolicyLossFn}. */
export interface SPPOPolicyLossOptions extends AggregatedLossOptions {
  /** A token counts while its ratio is within [1/(1 + ε), 1 + ε]; 0.3 by default. */
  epsilon?: number | null | undefined;
}

/** Metrics of {@link sPPOPolicyLossFn}. */
export type SPPOMetrics = Record<'pg_clipfrac' | 'pg_loss', number>;

/**
 * sPPO: ℓ = −A·(logprob − old_logprob) for tokens whose ratio is within its range, 0 for the others.
 *
 * Reads old_logprob, action_mask, advantages. Metrics: pg_clipfrac (fraction of tokens outside), pg_loss.
 *
 * Source: Trinity-RFT's sPPOPolicyLossFn.
 */
export class sPPOPolicyLossFn extends PolicyLossFn<SPPOMetrics> {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: SPPOPolicyLossOptions = {}) {
    const { reader, backend } = openOptions('sPPOPolicyLossFn', options);
    const native = {
      epsilon: reader.number('epsilon', 0.3, { holds: (x) => x >= 0, says: 'of at least 0' }),
    };
    const aggregation = reader.lossAggMode('token-mean');
    reader.end();
    super(backend, { policyLoss: { name: 'sppo', options: native, aggregation }, keys: RATIO_KEYS });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { epsilon: 0.3, loss_agg_mode: 'token-mean' };
  }
}
