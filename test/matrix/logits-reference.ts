/** The references of the losses from logits, and what is asserted of them. */
import assert from 'node:assert/strict';
import { type Evaluate, evaluator, formulas, type ReferenceBatch, type Wrt } from '../reference/index.js';
import { allClose, metricsAgree } from '../support/close.js';
import { type LogitsLossCase, referenceBatch } from '../support/golden.js';
import { poisonedLogits, someRows } from '../support/logits-losses.js';
import { slopesAgree } from '../support/slopes.js';

/** Losses whose mean is over all positions, with those of masked tokens. */
export const COUNTS_MASKED: readonly string[] = ['trl/minillm'];

const wrtOf = (name: string): Wrt => (name === 'liger/tvd' ? 'probs' : 'logits');
export const evaluateLogits = (name: string): Evaluate => evaluator(formulas.logits[name]!, wrtOf(name));

/** A case as a batch. Without a mask, the tokens with a label count. */
export function caseBatch({ inputs }: Pick<LogitsLossCase, 'inputs'>): ReferenceBatch {
  const batch = referenceBatch(inputs);
  if (inputs.action_mask) return batch;
  return { ...batch, actionMask: Array.from(batch.targets!, (id) => (id === -100 ? 0 : 1)) };
}

/** Asserts that the reference computes what a framework did. */
export function assertLogitsReference(golden: LogitsLossCase): void {
  const { fn, args, expected } = golden;
  const actual = evaluateLogits(fn)(args, caseBatch(golden));
  allClose([actual.loss], [expected.loss], 'loss');
  metricsAgree(actual.metrics, expected.metrics);
  allClose(actual.grad, (expected.grad_logits ?? expected.grad_probs)!.data, 'gradient');
}

/** Asserts that the reference's gradients are slopes. Returns how many elements were compared. */
export function assertLogitsSlopes(golden: LogitsLossCase): number {
  const { fn, args } = golden;
  return slopesAgree(formulas.logits[fn]!, evaluateLogits(fn), args, caseBatch(golden), wrtOf(fn));
}

/** Asserts that the reference reads no masked token, and is finite without any. */
export function assertLogitsMasks(golden: LogitsLossCase): void {
  const { fn, args } = golden;
  const batch = caseBatch(golden);
  const of = (given: ReferenceBatch) => evaluateLogits(fn)(args, given);
  const countsMasked = COUNTS_MASKED.includes(fn);
  if (!countsMasked) assert.deepEqual(of(poisonedLogits(batch, Number.NaN)), of(batch));
  const none = new Uint8Array(batch.actionMask.length);
  const masked = { ...batch, actionMask: none, ...(batch.distillMask && { distillMask: none }) };
  for (const given of [masked, someRows(batch, [])]) {
    const { loss, metrics, grad } = of(given);
    for (const value of [loss, ...Object.values(metrics)]) assert.ok(Number.isFinite(value), `${value}`);
    if (countsMasked) continue;
    assert.equal(Math.abs(loss), 0);
    assert.ok(grad.every((g) => g === 0));
  }
}
