// DPO's class.
import type { Batch, Layout } from '../../core/batch.js';
import type { Normalizer } from '../../core/counts.js';
import type { DeviceBatch } from '../../core/device-batch.js';
import { LossError } from '../../core/errors.js';
import type { Coefficients } from '../../core/evaluator.js';
import type { TrinityArgs } from '../../core/options.js';
import { openOptions, PolicyLossFn, type PolicyLossOptions } from './policy-loss-fn.js';

/** Options of {@link DPOLossFn}. */
export interface DPOLossOptions extends PolicyLossOptions {
  /** 0.1 by default. */
  beta?: number | null | undefined;
  /** The probability that a label is wrong, from 0 to 1; 0 by default. */
  labelSmoothing?: number | null | undefined;
  /** true (default): a loss per pair, as in the paper. false: Trinity's arithmetic, one margin for the batch. */
  pairwise?: boolean | null | undefined;
}

/** Metrics of {@link DPOLossFn}. */
export type DPOMetrics = Record<'chosen_reward' | 'rejected_reward' | 'accuracy_mean' | 'dpo_loss', number>;

/**
 * DPO: −ln σ(β·h) of the margin h between the chosen row's sum of logprob − ref_logprob and the rejected row's,
 * meaned over pairs. Even rows are chosen, each odd row is the rejected one of the row before it.
 *
 * Reads ref_logprob, action_mask. Metrics: chosen_reward, rejected_reward (nats times β), accuracy_mean, dpo_loss.
 *
 * Source: arXiv 2305.18290; Trinity-RFT's DPOLossFn.
 */
export class DPOLossFn extends PolicyLossFn<DPOMetrics> {
  readonly #pairwise: boolean;

  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: DPOLossOptions = {}) {
    const { reader, backend } = openOptions('DPOLossFn', options);
    const pairwise = reader.boolean('pairwise', true);
    const native = {
      beta: reader.number('beta', 0.1),
      label_smoothing: reader.number('labelSmoothing', 0, {
        holds: (x) => x >= 0 && x <= 1,
        says: 'from 0 to 1',
      }),
      pairwise,
    };
    reader.end();
    super(backend, {
      policyLoss: { name: 'dpo', options: native, aggregation: 'token-mean' },
      keys: ['ref_logprob', 'action_mask'],
    });
    this.#pairwise = pairwise;
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { beta: 0.1, label_smoothing: 0.0, pairwise: true };
  }

  /** @internal */
  override coefficients(
    batch: Batch | DeviceBatch,
    layout: Layout,
    normalizer: Normalizer | undefined,
  ): Coefficients {
    if (!this.#pairwise && normalizer !== undefined)
      throw new LossError(
        'ERR_INVALID_OPTION',
        'normalizer: DPO with pairwise false is one margin of the whole batch, which parts do not add up to',
      );
    if (this.#pairwise && layout.rows % 2 !== 0)
      throw new LossError(
        'ERR_SHAPE_MISMATCH',
        `shape: expected an even number of rows (chosen, rejected, chosen, …) for pairwise DPO, not ${layout.rows}`,
      );
    return super.coefficients(batch, layout, normalizer);
  }
}
