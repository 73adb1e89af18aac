// The KL penalty that an objective subtracts from rewards before it computes advantages.

import { allocate } from '../base/errors.js';
import { SLICE, type Steps } from '../base/steps.js';
import { type Batch, find } from '../batch/batch.js';
import { inputRow } from '../batch/columns.js';
import { readRowNumbers } from '../batch/convert.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import { type Layout, readLayout } from '../batch/layout.js';
import { missingInput, nestedIn, readActionMask } from '../batch/reader.js';
import type { Metrics } from '../call/calls.js';
import type { KLFn } from '../losses/kl-fn.js';

/** A batch after the KL penalty was subtracted from its token-level rewards, and the metrics of the penalty. */
export interface PenalisedBatch {
  batch: Batch;
  metrics: Metrics;
}

/** Subtracts the penalty that a KL function computes from the rewards of host batches. */
export class KlPenalty {
  readonly #fn: KLFn;
  readonly #mapper: KeyMapper;

  constructor(fn: KLFn, mapper: KeyMapper) {
    this.#fn = fn;
    this.#mapper = mapper;
  }

  /** Whether the KL function is `none`, which leaves every batch unchanged. */
  get isNone(): boolean {
    return this.#fn.term('token-mean', false) === undefined;
  }

  /** Returns the batch with the KL penalty subtracted from its token-level rewards. */
  *apply(batch: Batch): Steps<PenalisedBatch> {
    if (this.isNone) return { batch, metrics: {} };
    const scored = yield* this.#withScores(batch);
    const { tokenLevelRewards, metrics } = yield* this.#fn.penalise(scored);
    return {
      batch: { ...batch, tokenLevelRewards },
      metrics: { 'kl_penalty/kl': metrics.kl!, 'kl_penalty/kl_coef': metrics.kl_coef! },
    };
  }

  // The penalty is subtracted from token-level scores. If the batch has none, this makes them from the rewards of the
  // rows: the last unmasked token of a row gets the row's reward, and all other tokens get 0.
  *#withScores(batch: Batch): Steps<Batch> {
    if (find(batch, this.#mapper.keys('token_level_scores'))) return batch;
    const rewards = find(batch, this.#mapper.keys('rewards'));
    if (!rewards) throw missingInput(this.#mapper, 'token_level_scores', 'a score per token, or rewards');
    const layout = yield* readLayout(batch, nestedIn(batch, this.#mapper));
    const masks = yield* readActionMask(batch, this.#mapper, layout);
    const { hint } = inputRow('rewards');
    const perRow = yield* readRowNumbers(rewards.key, rewards.value, layout.rows, hint);
    return { ...batch, tokenLevelScores: yield* onLastToken(perRow, masks, layout) };
  }
}

function* onLastToken(rewards: Float64Array, mask: Uint8Array, layout: Layout): Steps<Float32Array> {
  const scores = allocate(`scores of ${layout.tokens} tokens`, () => new Float32Array(layout.tokens));
  let inSlice = 0;
  for (let row = 0; row < layout.rows; row++) {
    const begin = layout.offsets ? layout.offsets[row]! : row * layout.rowLength;
    let last = (layout.offsets ? layout.offsets[row + 1]! : begin + layout.rowLength) - 1;
    while (last >= begin && mask[last] === 0) last--;
    if (last >= begin) scores[last] = rewards[row]!;
    inSlice += 1 + layout.rowLength;
    if (inSlice < SLICE) continue;
    yield;
    inSlice = 0;
  }
  return scores;
}
