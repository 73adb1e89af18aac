/** Draws hidden states and an output head for batches, and compares losses from them with the reference. */
import assert from 'node:assert/strict';
import type { FromHiddenOptions, HiddenBatch } from '../../lib/index.js';
import { type ReferenceHead, referenceHead, referenceHeadGradients } from '../reference/head.js';
import { type ReferenceLogits, referenceGradient, referenceLogprobs } from '../reference/logits.js';
import { without } from './batch-keys.js';
import { type Fn, isByOther } from './from-logits.js';
import { toHalf } from './half.js';
import { dataOf, type LogitsDType, stored } from './logits.js';
import { generator } from './random.js';
import { assertArray, assertSameArray } from './tolerance.js';

/** Sizes of a head. */
export interface HeadSpec {
  vocabulary: number;
  size: number;
  dtype: LogitsDType;
  bias: boolean;
}

export const HEAD: HeadSpec = { vocabulary: 37, size: 11, dtype: 'float32', bias: true };

export interface MadeHidden {
  dtype: LogitsDType;
  batch: HiddenBatch;
  mask: Uint8Array;
  /** The columns of the batch that a loss reads, without those that come from logits. */
  columns: Record<string, unknown>;
  reference: ReferenceHead;
}

/** Adds hidden states and a head to a batch. The hidden states and targets of masked tokens must not be read. */
export function withHidden(batch: object, spec: HeadSpec = HEAD): MadeHidden {
  const { normal, integer } = generator(78);
  const { vocabulary, size, dtype } = spec;
  const columns = without(batch, 'logprob', 'entropy') as Record<string, unknown>;
  const mask = columns.actionMask as Uint8Array;
  const draw = (length: number, scale: number) =>
    stored(
      Float64Array.from({ length }, () => scale * normal()),
      dtype,
    );
  const states = Array.from({ length: mask.length * size }, (_, i) =>
    mask[Math.floor(i / size)] ? normal() : Number.NaN,
  );
  const hidden = stored(states, dtype);
  const weight = draw(vocabulary * size, 3 / Math.sqrt(size));
  const bias = spec.bias ? draw(vocabulary, 0.5) : undefined;
  const targets = Int32Array.from(mask, (kept) => (kept ? integer(0, vocabulary - 1) : -7));
  return {
    dtype,
    columns,
    mask,
    batch: {
      ...columns,
      hidden: hidden.logits,
      weight: weight.logits,
      ...(bias && { bias: bias.logits }),
      targets,
    } as HiddenBatch,
    reference: {
      rows: mask.length,
      vocabulary,
      size,
      hidden: hidden.values,
      weight: weight.values,
      bias: bias?.values,
      targets: Array.from(targets, (target, i) => (mask[i] ? target : -100)),
    },
  };
}

/** What a call may be given in addition. */
export type MoreOfHidden = Pick<ReferenceLogits, 'temperature' | 'softcap' | 'support'>;

/** How much results may be off. */
const RELATIVE = 5e-5;

/** Fails if a loss from hidden states, computed in float32, differs from what the reference says. */
export async function assertReference(
  fn: Fn,
  { dtype, batch, columns, reference }: MadeHidden,
  more: MoreOfHidden = {},
  options: FromHiddenOptions = {},
): Promise<void> {
  const { rows, vocabulary, bias } = reference;
  const { length } = dataOf(batch.hidden);
  // The gradient overwrites whatever the array contains.
  const own = new Float32Array(length).fill(Number.NaN);
  const given = { ...batch, ...more } as HiddenBatch;
  const found = await fn.fromHidden(given, {
    ...options,
    grad: true,
    gradEntropy: true,
    entropy: true,
    gradHidden: own,
    gradWeight: true,
    gradBias: bias !== undefined,
  });
  const { logprob, entropy, grad, gradEntropy } = found;
  const expected = await fn.compute({ ...columns, logprob, entropy: entropy! } as never, {
    grad: true,
    gradEntropy: true,
    ...(options.device && { device: options.device }),
  });
  assert.deepStrictEqual(
    { loss: found.loss, metrics: found.metrics },
    { loss: expected.loss, metrics: expected.metrics },
  );
  assertSameArray(grad!, expected.grad!, 'grad');

  const logits: ReferenceLogits = {
    rows,
    vocabulary,
    logits: referenceHead(reference),
    targets: reference.targets,
    ...more,
  };
  const logprobs = referenceLogprobs(logits);
  assertArray(logprob, logprobs.logprob, 'logprob', RELATIVE);
  assertArray(entropy!, logprobs.entropy, 'entropy', RELATIVE);
  const gradLogits = referenceGradient(logits, grad!, isByOther(fn) ? undefined : gradEntropy);
  const wanted = referenceHeadGradients(reference, gradLogits.grad);
  const { magnitudes } = wanted;
  assert.equal(found.gradHidden, own);
  assertArray(own, wanted.gradHidden, 'gradHidden', RELATIVE, magnitudes.gradHidden);
  assertArray(found.gradWeight!, wanted.gradWeight, 'gradWeight', RELATIVE, magnitudes.gradWeight);
  if (bias) assertArray(found.gradBias!, wanted.gradBias, 'gradBias', RELATIVE, magnitudes.gradBias);

  if (dtype === 'float32') return;
  const half = { data: new Uint16Array(length), dtype };
  await fn.fromHidden(given, { ...options, gradHidden: half });
  assertSameArray(
    half.data,
    Uint16Array.from(own, (x) => toHalf(x, dtype)),
    'gradHidden of 16 bits',
  );
}
