// OPMD's class.
import type { TrinityArgs } from '../../core/options.js';
import { type AggregatedLossOptions, openOptions, PolicyLossFn } from './policy-loss-fn.js';

/** Options of {@link OPMDPolicyLossFn}. */
export interface OPMDPolicyLossOptions extends AggregatedLossOptions {
  /** At least 0; 1 by default. */
  tau?: number | null | undefined;
}

/** Metrics of {@link OPMDPolicyLossFn}. */
export type OPMDMetrics = Record<'opmd_loss', number>;

/**
 * OPMD: ℓ = −A·logprob / (1 + tau).
 *
 * Reads action_mask, advantages. Metric: opmd_loss.
 *
 * Source: Trinity-RFT's OPMDPolicyLossFn (arXiv 2505.17826).
 */
export class OPMDPolicyLossFn extends PolicyLossFn<OPMDMetrics> {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: OPMDPolicyLossOptions = {}) {
    const { reader, backend } = openOptions('OPMDPolicyLossFn', options);
    const native = { tau: reader.number('tau', 1, { holds: (x) => x >= 0, says: 'of at least 0' }) };
    const aggregation = reader.lossAggMode('token-mean');
    reader.end();
    super(backend, {
      policyLoss: { name: 'opmd', options: native, aggregation },
      keys: ['action_mask', 'advantages'],
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { tau: 1.0, loss_agg_mode: 'token-mean' };
  }
}
