// The subpath policy-loss/tfjs: policy losses and objectives as TensorFlow.js operations whose gradients this package
// computes.
import { customGrad, type Scalar, scalar, Tensor, tensor } from '@tensorflow/tfjs-core';
import type { Objective } from '../algorithm/objective.js';
import type { Batch, RowNumbers } from '../core/batch.js';
import type { LossResult, Metrics } from '../core/calls.js';
import type { Normalizer } from '../core/counts.js';
import { describeValue, guarded, LossError } from '../core/errors.js';
import type { PolicyLossFn } from '../functions/policy-loss/policy-loss-fn.js';
import { IGNORED, type LogitsOptions } from '../logits/inputs.js';
import { logprobsBackwardSync, logprobsSync } from '../logits/logprobs.js';

/**
 * A batch whose columns may also be tensors: float32 for numbers, int32 for ids, bool for masks. If the logits or the
 * log-probabilities have the padded shape [B, T], the batch needs no `shape`.
 */
export type TensorBatch = { [K in keyof Batch]?: Batch[K] | Tensor } & {
  /** Shape [B]: the logarithm of a learned normaliser of each row, for losses that read it. */
  logZ?: RowNumbers | Tensor;
};

/** A {@link TensorBatch} with the sampled tokens. */
export type TokenBatch = TensorBatch & {
  /**
   * Shape [B, T]: the id of the token that was sampled at each position. A model's logits at a position are those of
   * the next token, so these are the ids shifted by one. −100 for masked tokens that have no id.
   */
  targets: Int32Array | readonly number[] | Tensor;
};

/** Options of {@link lossFromLogprobs}. */
export interface TensorLossOptions<M = Metrics> {
  /** The counts of the whole batch, if this batch is one part of it (a micro-batch). */
  normalizer?: Normalizer;
  /** The seed for the random choices of an objective's advantage function. */
  seed?: number;
  /** Receives the loss in float64 and the metrics, before the call returns. */
  onResult?: (result: { loss: number; metrics: M }) => void;
}

/** Options of {@link lossFromLogits}. */
export interface LogitsLossOptions<M = Metrics>
  extends TensorLossOptions<M>,
    Pick<LogitsOptions, 'temperature' | 'softcap' | 'support'> {}

/**
 * Computes a policy loss or an objective from a model's logits. This package computes the gradient with respect to the
 * logits, the part through the entropies included. It is exactly 0 at masked tokens. Call this function in the one that
 * is given to `tf.variableGrads()` or `optimizer.minimize()`.
 *
 * The values of tensors are read with `dataSync()`, which every backend but WebGPU has. If `logZ` of the batch is a
 * tensor, it receives its gradient too.
 *
 * @param fn the loss. Its class says which columns it reads from the batch. The log-probabilities and the entropies are
 * computed from the logits.
 * @param logits float32, of shape [B, T, V], where V is the size of the vocabulary. The shape may also be [N, V] if the
 * batch has `shape` or `cuSeqlens`.
 * @returns the loss, a scalar.
 * @throws LossError as logprobsSync() and computeSync() of the loss do, and `ERR_INVALID_INPUT` or `ERR_SHAPE_MISMATCH`
 * for a tensor of another dtype or shape.
 */
export function lossFromLogits<M = Metrics>(
  fn: PolicyLossFn<M> | Objective,
  logits: Tensor,
  batch: TokenBatch,
  options: LogitsLossOptions<M> = {},
): Scalar {
  return guarded(() => {
    checkFloats('logits', logits, [2, 3], '[B, T, V] or [N, V]');
    const tokens = logits.shape.slice(0, -1);
    const { targets, ...columns } = readBatch(batch, tokens) as Batch & { targets: Int32Array };
    const { temperature, softcap, support } = options;
    const rows = { temperature, softcap, support, targets, shape: flatShape(logits) };
    return differentiable([logits, batch.logZ], () =>
      fromLogits(fn, logits.dataSync() as Float32Array, rows, columns, options),
    );
  });
}

/**
 * Computes a policy loss or an objective from log-probabilities that TensorFlow.js computed. This package computes the
 * gradients with respect to `logprob`, and to `entropy` and `logZ` of the batch if they are tensors. They are exactly 0
 * at masked tokens. If you have the logits, {@link lossFromLogits} needs less time and memory.
 *
 * @param fn the loss. Its class says which columns it reads from the batch.
 * @param logprob float32, of shape [B, T]: the log-probability of each sampled token. The shape may also be [N] if the
 * batch has `shape` or `cuSeqlens`.
 * @returns the loss, a scalar.
 * @throws LossError as computeSync() of the loss does, and `ERR_INVALID_INPUT` or `ERR_SHAPE_MISMATCH` for a tensor of
 * another dtype or shape.
 */
export function lossFromLogprobs<M = Metrics>(
  fn: PolicyLossFn<M> | Objective,
  logprob: Tensor,
  batch: TensorBatch,
  options: TensorLossOptions<M> = {},
): Scalar {
  return guarded(() => {
    checkFloats('logprob', logprob, [1, 2], '[B, T] or [N]');
    const columns = readBatch(batch, logprob.shape);
    return differentiable([logprob, batch.entropy, batch.logZ], () => {
      const given = { ...columns, logprob: logprob.dataSync() as Float32Array };
      const { loss, grad, gradEntropy, gradLogZ } = compute(fn, given, options);
      const gradients = [grad!, gradEntropy!, gradLogZ!];
      return { loss, backward: (factor) => gradients.map((gradient) => scaled(gradient, factor)) };
    });
  });
}

/** A loss, and the function that computes its gradients with respect to each input, times a factor. */
interface Differentiated {
  loss: number;
  backward(factor: number): Float32Array[];
}

// Makes an operation of TensorFlow.js. `inputs` are those of `backward`; only tensors among them receive a gradient.
function differentiable(inputs: readonly unknown[], forward: () => Differentiated): Scalar {
  const operation = customGrad(() => {
    const { loss, backward } = forward();
    const gradFunc = (dy: Scalar) => {
      const gradients = backward(dy.dataSync()[0]!);
      return inputs.flatMap((input, i) =>
        input instanceof Tensor ? [tensor(gradients[i]!, input.shape, 'float32')] : [],
      );
    };
    return { value: scalar(loss), gradFunc };
  });
  return operation(...inputs.filter((input) => input instanceof Tensor));
}

// Masked tokens have a gradient of exactly 0. Their rows are ignored in the backward pass, so that a NaN in them changes
// nothing.
function fromLogits<M>(
  fn: PolicyLossFn<M> | Objective,
  logits: Float32Array,
  rows: LogitsOptions & { targets: Int32Array },
  columns: Batch,
  options: TensorLossOptions<M>,
): Differentiated {
  const { logprob, logsumexp, entropy } = logprobsSync(logits, { ...rows, entropy: true });
  const given = { ...columns, logprob, entropy: entropy! };
  const { loss, grad, gradEntropy, gradLogZ } = compute(fn, given, options);
  const hasEntropy = gradEntropy!.some((g) => g !== 0);
  const targets = Int32Array.from(rows.targets, (target, i) =>
    grad![i] === 0 && gradEntropy![i] === 0 ? IGNORED : target,
  );
  const backward = (factor: number) => [
    logprobsBackwardSync(logits, {
      ...rows,
      targets,
      logsumexp,
      gradLogprob: scaled(grad!, factor),
      ...(hasEntropy && { entropy, gradEntropy: scaled(gradEntropy!, factor) }),
    }),
    scaled(gradLogZ!, factor),
  ];
  return { loss, backward };
}

function compute<M>(
  fn: PolicyLossFn<M> | Objective,
  batch: Batch,
  { normalizer, seed, onResult }: TensorLossOptions<M>,
): LossResult<M> {
  const result = fn.computeSync(batch, {
    grad: true,
    gradEntropy: true,
    gradLogZ: true,
    ...(normalizer !== undefined && { normalizer }),
    ...(seed !== undefined && { seed }),
  }) as LossResult<M>;
  onResult?.({ loss: result.loss, metrics: result.metrics });
  return result;
}

const scaled = (gradient: Float32Array, factor: number) =>
  factor === 1 ? gradient : gradient.map((each) => each * factor);

function flatShape({ shape }: Tensor): [number, number] {
  const vocabulary = shape.at(-1)!;
  return [shape.slice(0, -1).reduce((product, size) => product * size, 1), vocabulary];
}

function checkFloats(key: string, value: unknown, ranks: readonly number[], shapes: string): void {
  if (!(value instanceof Tensor) || value.dtype !== 'float32')
    throw new LossError('ERR_INVALID_INPUT', {
      key,
      expected: 'a tensor of dtype float32',
      received: value instanceof Tensor ? `dtype ${value.dtype}` : describeValue(value),
    });
  if (!ranks.includes(value.rank))
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key,
      expected: shapes,
      received: `[${value.shape.join(', ')}]`,
    });
}

// Reads the tensors of a batch. `tokens` is the shape of its tokens: [B, T] or [N].
function readBatch(batch: TensorBatch, tokens: readonly number[]): Batch {
  const columns = Object.fromEntries(
    Object.entries(batch).map(([key, value]) => [key, valuesOf(key, value, tokens)]),
  );
  const isPadded = tokens.length === 2 && LAYOUT_KEYS.every((key) => columns[key] == null);
  return isPadded ? { ...columns, shape: tokens as [number, number] } : columns;
}

const LAYOUT_KEYS = ['shape', 'cuSeqlens', 'cu_seqlens'];

// A transposed tensor has as many values as the right one, so its shape tells the difference.
function valuesOf(key: string, value: unknown, tokens: readonly number[]): unknown {
  if (!(value instanceof Tensor)) return value;
  const { shape, size } = value;
  const isTransposed =
    shape.length === 2 &&
    tokens.length === 2 &&
    size === tokens[0]! * tokens[1]! &&
    shape.join() !== tokens.join();
  if (isTransposed)
    throw new LossError('ERR_SHAPE_MISMATCH', {
      key,
      expected: `[${tokens.join(', ')}]`,
      received: `[${shape.join(', ')}]`,
    });
  return value.dataSync();
}
