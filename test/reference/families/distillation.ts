/** The losses of distillation in float64, by name. */
import type { Formula } from '../batch.js';
import { fullFormulas } from './distillation-full.js';
import { listFormulas } from './distillation-lists.js';
import { ownFormulas } from './distillation-own.js';

export const distillationFormulas: Record<string, Formula> = {
  ...fullFormulas,
  ...listFormulas,
  ...ownFormulas,
};
