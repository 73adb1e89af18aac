// The estimate of the KL divergence that KTO losses compute from mismatched rows: prompts with the answers of other rows.
import { LossError } from '../base/errors.js';
import type { Steps } from '../base/steps.js';
import { type Batch, find } from '../batch/batch.js';
import type { InputName } from '../batch/columns.js';
import type { KeyMapper } from '../batch/key-mapper.js';
import { readLayout } from '../batch/layout.js';
import { BatchReader, missingInput, nestedIn } from '../batch/reader.js';
import type { CallOptions, Metrics } from '../call/calls.js';
import { Evaluator } from '../call/evaluator.js';
import { DeviceBatch } from '../device/device-batch.js';
import { programSymbolsOf } from '../program/expression.js';
import { Graph } from '../program/graph.js';
import { nodesOf, programOf } from '../program/loss-program.js';

/** The inputs from which the estimate is computed. */
export const KL_KEYS = [
  'kl_estimate',
  'kl_logprob',
  'kl_ref_logprob',
  'kl_ref_logps',
  'kl_action_mask',
] as const satisfies readonly InputName[];

const estimators = new Map<string, Evaluator>();

// Returns what computes the mean over the rows of the log-ratio of a row.
function estimatorOf(reference: 'ref_logprob' | 'ref_logps', mapper: KeyMapper): Evaluator {
  const key = `${reference} ${mapper.fromTrinity('logprob')}`;
  const known = estimators.get(key);
  if (known) return known;
  const graph = new Graph();
  const { lp, ref, refLogps, rows, rowSum } = programSymbolsOf(graph);
  const ofRow = reference === 'ref_logprob' ? rowSum(lp.sub(ref)) : rowSum(lp).sub(refLogps);
  const program = programOf(
    nodesOf('kl_estimate', graph, { rowLoss: ofRow.div(rows), metrics: {}, allRows: true }),
  );
  const reader = new BatchReader(mapper, { inputs: ['logprob', reference, 'action_mask'] });
  const spec = { policyLoss: { program, metrics: [], aggregation: 'token-sum' as const } };
  const made = new Evaluator(spec, reader);
  estimators.set(key, made);
  return made;
}

/**
 * Returns a batch with kl_estimate, which is computed from the mismatched rows if the batch lacks it: the mean of their
 * log-ratios, or 0 if that is negative.
 * @throws LossError `ERR_MISSING_INPUT` for a batch without them; `ERR_INVALID_OPTION` for a part of a batch, because all of
 * them are needed; `ERR_INVALID_INPUT`, `ERR_SHAPE_MISMATCH`
 */
export function* withKlEstimate(
  batch: Batch | DeviceBatch,
  mapper: KeyMapper,
  options: CallOptions,
): Steps<Batch | DeviceBatch> {
  if (batch instanceof DeviceBatch) return batch;
  const value = (name: InputName) => find(batch, mapper.keys(name))?.value;
  if (value('kl_estimate') !== undefined) return batch;
  const logprob = value('kl_logprob');
  if (logprob === undefined)
    throw missingInput(mapper, 'kl_logprob').with({
      hint: 'Or give kl_estimate, the same number for every row',
    });
  if (options.normalizer !== undefined || options.part)
    throw new LossError('ERR_INVALID_OPTION', {
      option: options.part ? 'part' : 'normalizer',
      expected: 'the whole batch in one call, or kl_estimate, which the mismatched rows of all parts give',
      received: 'a part of a batch',
    });
  if (options.stream !== undefined)
    throw new LossError('ERR_INVALID_INPUT', {
      option: 'stream',
      expected: 'no stream, because the CPU computes kl_estimate, or a batch with kl_estimate',
      received: 'one',
    });
  const sums = value('kl_ref_logps');
  const reference = sums === undefined ? 'ref_logprob' : 'ref_logps';
  if (sums === undefined && value('kl_ref_logprob') === undefined)
    throw missingInput(mapper, 'kl_ref_logprob');
  const { rows } = yield* readLayout(batch, value('logprob') ?? nestedIn(batch, mapper));
  const mismatched = {
    ...shapeOf(logprob, rows),
    logprob,
    ref_logprob: value('kl_ref_logprob'),
    ref_logps: sums,
    action_mask: value('kl_action_mask'),
  } as Batch;
  const mean = yield* named(estimate(estimatorOf(reference, mapper), mismatched));
  return { ...batch, kl_estimate: new Float64Array(rows).fill(Math.max(mean, 0)) };
}

// Without tokens, every shape fits.
function shapeOf(logprob: unknown, rows: number): Pick<Batch, 'shape'> {
  if (Array.isArray(logprob) && Array.isArray(logprob[0])) return {};
  const data = (logprob as { data?: ArrayLike<unknown> }).data ?? (logprob as ArrayLike<unknown>);
  return { shape: [rows, Math.floor((data?.length ?? 0) / Math.max(rows, 1))] };
}

function* estimate(estimator: Evaluator, batch: Batch): Steps<number> {
  const input = yield* estimator.read(batch);
  const call = { input, gradients: {}, options: {}, coefficients: {} };
  return (yield* estimator.evaluate<Metrics>(call)).loss;
}

// Gives the inputs of the mismatched rows their own names in errors.
function* named<T>(steps: Steps<T>): Steps<T> {
  try {
    return yield* steps;
  } catch (error) {
    if (error instanceof LossError && error.key !== undefined) throw error.with({ key: `kl_${error.key}` });
    throw error;
  }
}
