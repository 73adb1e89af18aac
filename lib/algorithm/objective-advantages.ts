// The advantages of an objective: found in a batch, or computed from rewards before the loss.

import { LossError } from '../base/errors.js';
import type { Steps } from '../base/steps.js';
import type { Batch } from '../batch/batch.js';
import type { BatchReader, Conversions } from '../batch/reader.js';
import type { Metrics } from '../call/calls.js';
import type { ComputedAdvantages, FusedAdvantage } from '../call/computed-advantages.js';
import { DeviceBatch } from '../device/device-batch.js';
import { hasInput } from '../device/input.js';
import type { AdvantageComputeSyncOptions, AdvantageFn } from '../losses/advantage-fn.js';
import type { PolicyLossFn } from '../losses/policy-loss-fn.js';
import type { KlPenalty } from './kl-penalty.js';

/**
 * The advantages for one call of the objective. For a host batch, `computed` holds them. For a batch on a device,
 * `fused` makes the device compute them in the same native call as the loss. After that call, `metrics` returns the
 * metrics of the advantages.
 */
export interface CallAdvantages {
  computed?: ComputedAdvantages;
  fused?: FusedAdvantage;
  metrics?: () => Metrics;
}

/** @internal The advantages that were computed for a host batch, and their metrics. */
export interface MadeAdvantages {
  computed: ComputedAdvantages;
  metrics: Metrics;
}

/** What of an objective its advantages depend on. */
interface Dependencies {
  readonly advantageFn: AdvantageFn | undefined;
  readonly policyLossFn: PolicyLossFn<Partial<Record<string, number>>>;
  readonly klPenalty: KlPenalty;
  /** Finds the columns of a batch. */
  readonly finder: BatchReader;
}

/** @internal Computes the advantages of batches that have none. */
export class ObjectiveAdvantages {
  readonly #at: string;
  readonly #dependencies: Dependencies;

  /** @param at the objective, for error messages. */
  constructor(at: string, dependencies: Dependencies) {
    this.#at = at;
    this.#dependencies = dependencies;
  }

  /** Returns whether the advantages of a batch must be computed. */
  areMissing(batch: Batch | DeviceBatch): boolean {
    const { advantageFn, finder } = this.#dependencies;
    return advantageFn !== undefined && !hasInput(finder, batch, 'advantages');
  }

  /** Returns whether the computation may drop rows of the batch. */
  mayDrop(batch: Batch | DeviceBatch): boolean {
    return this.#dependencies.advantageFn?.definition.drops === true && this.areMissing(batch);
  }

  /**
   * Returns the advantages of a batch that has none. Those of a batch on a device are computed together with the loss, so
   * there is nothing to wait for, and the loss can read the batch before it is updated.
   */
  *compute(
    batch: Batch | DeviceBatch,
    { seed }: AdvantageComputeSyncOptions,
    conversions?: Conversions,
  ): Steps<CallAdvantages> {
    const seeded = seed === undefined ? {} : { seed };
    if (batch instanceof DeviceBatch) return this.#fuse(batch, seeded);
    const { advantageFn, policyLossFn, klPenalty } = this.#dependencies;
    const penalised = yield* klPenalty.apply(batch);
    const { computed, metrics } = yield* advantageFn!.computeFor(
      penalised.batch,
      seeded,
      policyLossFn.readsMaskedAdvantages,
      conversions,
    );
    return { computed, metrics: () => ({ ...metrics, ...penalised.metrics }) };
  }

  #fuse(batch: DeviceBatch, options: AdvantageComputeSyncOptions): CallAdvantages {
    const { advantageFn, policyLossFn, klPenalty } = this.#dependencies;
    if (!klPenalty.isNone)
      throw new LossError('ERR_INVALID_INPUT', {
        at: this.#at,
        expected: 'a host batch, because the KL penalty is subtracted from rewards on the host',
        received: `a batch on ${batch.device}`,
      });
    if (policyLossFn.correction?.columns.includes('advantages'))
      throw new LossError('ERR_INVALID_INPUT', {
        at: this.#at,
        expected: 'a host batch, because a mask depends on the advantages',
        received: `a batch on ${batch.device}`,
      });
    const { metrics, ...fused } = advantageFn!.fuse(batch, options);
    return { fused, metrics };
  }
}
