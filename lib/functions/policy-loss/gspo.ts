// GSPO's class.
import type { TrinityArgs } from '../../core/options.js';
import { type ClipRangeOptions, readClipRange } from './clip-range.js';
import { type AggregatedLossOptions, openOptions, PolicyLossFn, RATIO_KEYS } from './policy-loss-fn.js';

/** Options of {@link GSPOLossFn}. A clip range must be given; lossAggMode is 'seq-mean-token-mean' by default. */
export interface GSPOLossOptions extends AggregatedLossOptions, ClipRangeOptions {}

/** Metrics of {@link GSPOLossFn}. */
export type GSPOMetrics = Record<'pg_clipfrac' | 'ppo_kl' | 'ppo_kl_seq' | 'pg_loss', number>;

/**
 * GSPO: PPO's clipped surrogate on the sequence's ratio exp(mean of logprob − old_logprob over its unmasked
 * tokens); the gradient flows to each of them.
 *
 * Reads old_logprob, action_mask, advantages. Metrics: pg_clipfrac (fraction of tokens), ppo_kl (nats per token),
 * ppo_kl_seq (the same, meaned over rows), pg_loss.
 *
 * Source: arXiv 2507.18071; Trinity-RFT's GSPOLossFn. An aggregation other than the paper's is allowed and warned of.
 */
export class GSPOLossFn extends PolicyLossFn<GSPOMetrics> {
  /** @throws LossError `ERR_INVALID_OPTION`: no clip range, an unknown option. */
  constructor(options: GSPOLossOptions = {}) {
    const { reader, backend } = openOptions('GSPOLossFn', options);
    const native = readClipRange('GSPOLossFn', reader);
    const aggregation = reader.lossAggMode('seq-mean-token-mean');
    reader.end();
    if (aggregation !== 'seq-mean-token-mean') warnOnce(aggregation);
    super(backend, { policyLoss: { name: 'gspo', options: native, aggregation }, keys: RATIO_KEYS });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { clip_range_low: 0.0003, clip_range_high: 0.0004, loss_agg_mode: 'seq-mean-token-mean' };
  }
}

let warned = false;

// Once a process: a program that means it makes many of these objects.
function warnOnce(aggregation: string): void {
  if (warned) return;
  warned = true;
  process.emitWarning(`GSPO was published with loss_agg_mode seq-mean-token-mean, not ${aggregation}`, {
    code: 'POLICY_LOSS_GSPO_AGGREGATION',
  });
}
