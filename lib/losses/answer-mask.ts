// The masks of ORPO, whose log-likelihood counts more tokens than its odds do.
import { LossError } from '../base/errors.js';
import { inSlices, type Steps } from '../base/steps.js';
import { type Batch, find } from '../batch/batch.js';
import { readMask } from '../batch/convert.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import { readLayout } from '../batch/layout.js';
import { nestedIn, readActionMask } from '../batch/reader.js';
import { DeviceBatch } from '../device/device-batch.js';

/**
 * Returns a batch in which the tokens of both masks count. Its answer_mask is 0 for those of attention_mask only, 2 for those
 * of action_mask only, and 1 for those of both. A batch without attention_mask stays as it is. A loss with masks or a
 * correction takes none. The KL and entropy losses of an objective count answers only, so with them the tokens of
 * attention_mask must be tokens of answers.
 * @throws LossError `ERR_INVALID_INPUT`, `ERR_SHAPE_MISMATCH`
 */
export function* withAnswerMask(
  batch: Batch | DeviceBatch,
  mapper: KeyMapper,
  _options: unknown,
  isCorrected: boolean,
  hasTerms: boolean,
): Steps<Batch | DeviceBatch> {
  if (batch instanceof DeviceBatch) {
    batch.checkAttention();
    return batch;
  }
  const attention = find(batch, mapper.keys('attention_mask'));
  if (!attention) return batch;
  if (isCorrected)
    throw new LossError('ERR_INVALID_INPUT', {
      at: attention.key,
      expected: 'none with masks or a correction, which count tokens of answers only',
      received: 'one',
    });
  const nested = find(batch, mapper.keys('logprob'))?.value ?? nestedIn(batch, mapper);
  const layout = yield* readLayout(batch, nested);
  const answers = yield* readActionMask(batch, mapper, layout);
  const given = yield* readMask(attention.key, attention.value, layout, 'token');
  const mask = new Uint8Array(layout.tokens);
  const kinds = new Float32Array(layout.tokens);
  yield* inSlices(layout.tokens, (begin, end) => {
    for (let i = begin; i < end; i++) {
      const isAnswer = answers[i] !== 0;
      const isGiven = given[i] !== 0;
      if (hasTerms && isGiven && !isAnswer)
        throw new LossError('ERR_INVALID_INPUT', {
          key: attention.key,
          index: i,
          expected: '0 outside the action mask, because the KL or entropy loss counts tokens of answers only',
          received: '1',
        });
      kinds[i] = isAnswer ? (isGiven ? 1 : 2) : 0;
      mask[i] = isAnswer || isGiven ? 1 : 0;
    }
  });
  const replaced = [...mapper.keys('action_mask'), ...mapper.keys('attention_mask')];
  const others = Object.entries(batch).filter(([key]) => !replaced.includes(key));
  return { ...Object.fromEntries(others), action_mask: mask, answer_mask: kinds } as Batch;
}
