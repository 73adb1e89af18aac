/** Compares gradients of the reference with central differences of its losses. */
import type { Formula } from '../reference/batch.js';
import {
  type Args,
  centralDifference,
  type Evaluate,
  type ReferenceBatch,
  type Wrt,
} from '../reference/index.js';
import { close } from './close.js';

/** Returns how many elements were compared. Elements on a kink of the loss have no slope. */
export function slopesAgree(
  formula: Formula,
  evaluate: Evaluate,
  args: Args,
  batch: ReferenceBatch,
  wrt: Wrt,
): number {
  const { loss, grad } = evaluate(args, batch);
  let compared = 0;
  for (const element of wrt === 'rewards' ? someOf(everyRow(batch)) : someElements(batch, grad.length)) {
    const slope = centralDifference(formula, args, batch, wrt, element);
    if (slope === undefined) continue;
    compared++;
    // A central difference with step h has two errors. One is h² times the third derivative, which is about
    // as large as the gradient or the advantage. The other is the rounding error of the loss, divided by h.
    const scale = Math.max(Math.abs(grad[element]!), 1e-3) + 1e-4 * Math.abs(loss);
    close(slope, grad[element]!, `gradient at ${element}`, 1e3 * scale);
  }
  return compared;
}

/**
 * Selects some elements of unmasked tokens, evenly spaced. Testing all would be slow, because each difference evaluates the
 * whole loss several times.
 */
function someElements(batch: ReferenceBatch, length: number): number[] {
  const perToken = length / (batch.rows * batch.columns);
  const unmasked = Array.from({ length }, (_, i) => i).filter(
    (i) => batch.actionMask[Math.floor(i / perToken)],
  );
  return someOf(unmasked);
}

const everyRow = ({ rows }: ReferenceBatch) => Array.from({ length: rows }, (_, row) => row);

function someOf(elements: number[]): number[] {
  const stride = Math.max(1, Math.floor(elements.length / 16));
  return elements.filter((_, i) => i % stride === 0);
}
