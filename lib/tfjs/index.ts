// The subpath policy-loss/tfjs: policy losses and objectives as TensorFlow.js operations whose gradients this package
// computes.
import { customGrad, engine, type Scalar, scalar, Tensor, tensor } from '@tensorflow/tfjs-core';
import type { Objective } from '../algorithm/objective.js';
import type { ObjectiveComputeSyncOptions } from '../algorithm/objective-options.js';
import { describeValue, guarded, LossError } from '../base/errors.js';
import { type Batch, find } from '../batch/batch.js';
import type { InputName } from '../batch/columns.js';
import type { Normalizer } from '../batch/counts.js';
import type { RowNumbers } from '../batch/values.js';
import type { LossResult, Metrics } from '../call/calls.js';
import type { LogitsResult } from '../logits/from-logits.js';
import type { LogitsOptions } from '../logits/inputs.js';
import type { PolicyLossFn } from '../losses/policy-loss-fn.js';

/**
 * A batch whose columns may also be tensors: float32 for numbers, int32 for ids, bool for masks. If the logits or the
 * log-probabilities have the padded shape [B, T], the batch needs no `shape`.
 */
export type TensorBatch = { [K in keyof Batch]?: Batch[K] | Tensor } & {
  /** Shape [B]: the logarithm of a learned normaliser of each row, for losses that read it. */
  logZ?: RowNumbers | Tensor;
};

/** A {@link TensorBatch} with the sampled tokens. */
export type TokenBatch = Omit<TensorBatch, 'logprob' | 'log_prob' | 'entropy'> & {
  /**
   * Shape [B, T]: the id of the token that was sampled at each position. A model's logits at a position are those of
   * the next token, so these are the ids shifted by one. Those of masked tokens may be any whole numbers.
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
 * @throws LossError as fromLogitsSync() of the loss does, and `ERR_INVALID_INPUT` or `ERR_SHAPE_MISMATCH` for a tensor
 * of another dtype or shape.
 */
export function lossFromLogits<M = Metrics>(
  fn: PolicyLossFn<M> | Objective,
  logits: Tensor,
  batch: TokenBatch,
  options: LogitsLossOptions<M> = {},
): Scalar {
  return differentiable(options, () => {
    checkFloats('logits', logits, [2, 3], '[B, T, V] or [N, V]');
    const given = readBatch(batch, logits.shape.slice(0, -1)) as Batch & Pick<LogitsOptions, 'targets'>;
    const { temperature, softcap, support } = options;
    const rows = { temperature, softcap, support, vocabulary: logits.shape.at(-1)! };
    const isRecorded = engine().isTapeOn();
    const compute = () => {
      const columns = { ...given, ...rows, logits: logits.dataSync() as Float32Array };
      const wanted = { gradLogits: isRecorded, gradLogZ: isRecorded, ...computeOptions(options) };
      const result = fn.fromLogitsSync(columns, wanted) as LossResult<M> & LogitsResult;
      return { result, gradients: [result.gradLogits as Float32Array, result.gradLogZ] };
    };
    return { inputs: [logits, inputOf(fn, batch, 'log_z')], compute };
  });
}

/**
 * Computes a policy loss or an objective from log-probabilities that TensorFlow.js computed. This package computes the
 * gradients with respect to `logprob`, and to `entropy` and `logZ` of the batch if they are tensors; for oat/bnf, to
 * `entropyOther` instead of `entropy`. They are exactly 0 at masked tokens. If you have the logits, {@link lossFromLogits}
 * needs less time and memory.
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
  return differentiable(options, () => {
    checkFloats('logprob', logprob, [1, 2], '[B, T] or [N]');
    const given = readBatch(batch, logprob.shape);
    const compute = () => {
      const columns = { ...given, logprob: logprob.dataSync() as Float32Array };
      const wanted = { grad: true, gradEntropy: true, gradLogZ: true, ...computeOptions(options) };
      const result = fn.computeSync(columns, wanted) as LossResult<M>;
      return { result, gradients: [result.grad, result.gradEntropy, result.gradLogZ] };
    };
    const { columns } = lossOf(fn).reads;
    const entropy = inputOf(fn, batch, columns.includes('entropy_other') ? 'entropy_other' : 'entropy');
    return { inputs: [logprob, entropy, inputOf(fn, batch, 'log_z')], compute };
  });
}

function inputOf(fn: PolicyLossFn<unknown> | Objective, batch: TensorBatch, name: InputName): unknown {
  return find(batch, lossOf(fn).keysOf(name))?.value;
}

function lossOf<M>(fn: PolicyLossFn<M> | Objective): PolicyLossFn<unknown> {
  return 'lossFn' in fn ? fn.lossFn : fn;
}

/** A loss of some inputs. Only those that are tensors receive a gradient. */
interface Operation<M> {
  inputs: readonly unknown[];
  /** Returns the loss, and its gradients with respect to the inputs. */
  compute(): { result: LossResult<M>; gradients: readonly (Float32Array | undefined)[] };
}

// Makes an operation of TensorFlow.js and runs it. Errors of reading its arguments become LossErrors, but not those of
// `onResult`.
function differentiable<M>(options: TensorLossOptions<M>, read: () => Operation<M>): Scalar {
  let result!: LossResult<M>;
  const loss = guarded(() => {
    const { inputs, compute } = read();
    const operation = customGrad(() => {
      const computed = compute();
      result = computed.result;
      const gradFunc = (dy: Scalar) => {
        const factor = dy.dataSync()[0]!;
        const scaled = (gradient: Float32Array) =>
          factor === 1 ? gradient : gradient.map((each) => each * factor);
        return inputs.flatMap((input, i) =>
          input instanceof Tensor ? [tensor(scaled(computed.gradients[i]!), input.shape, 'float32')] : [],
        );
      };
      return { value: scalar(result.loss), gradFunc };
    });
    return operation(...inputs.filter((input) => input instanceof Tensor));
  });
  options.onResult?.({ loss: result.loss, metrics: result.metrics });
  return loss;
}

function computeOptions({ normalizer, seed }: TensorLossOptions<never>): ObjectiveComputeSyncOptions {
  return { ...(normalizer !== undefined && { normalizer }), ...(seed !== undefined && { seed }) };
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
