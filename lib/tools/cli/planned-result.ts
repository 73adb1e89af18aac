// Which form the result of a plan is printed in.
import type { Plan } from '../parts/index.js';
import { printableComparison } from './comparison-result.js';
import { printableEvaluation } from './evaluation-result.js';
import { printableGradients } from './gradients-result.js';
import type { Show } from './queue-run.js';
import { printableSweep } from './sweep-result.js';

/** Returns the function that gives a plan's merged result in the printed forms of the command that it is for. */
export function showFor({ configuration: { functions, compares } }: Plan): Show {
  if (compares) return printableComparison;
  if (functions.length > 1) return printableSweep;
  return (merged, skipped, quiet, gradients) =>
    gradients ? printableGradients(merged, skipped, gradients) : printableEvaluation(merged, skipped, quiet);
}
