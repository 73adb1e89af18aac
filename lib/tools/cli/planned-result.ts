// Which form the result of a plan is printed in.
import type { Plan } from '../parts/index.js';
import { printable as compared } from './compare.js';
import { printable as evaluated } from './evaluate.js';
import { printableFiles } from './gradients.js';
import type { Show } from './queue-run.js';
import { printable as swept } from './sweep.js';

/** Returns the function that gives a plan's merged result in the printed forms of the command that it is for. */
export function showFor({ configuration: { functions, compares } }: Plan): Show {
  if (compares) return compared;
  if (functions.length > 1) return swept;
  return (merged, skipped, quiet, gradients) =>
    gradients ? printableFiles(merged, skipped, gradients) : evaluated(merged, skipped, quiet);
}
