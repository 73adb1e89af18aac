/** The policy losses that neither verl nor TRL has, in float64, by name. */
import type { Formula } from '../batch.js';
import { clippedFormulas } from './others-clipped.js';
import { clippedPg } from './others-clipped-pg.js';
import { correctedPpo } from './others-corrected.js';
import { policiesFormulas } from './others-policies.js';

export const othersFormulas: Record<string, Formula> = {
  ...clippedFormulas,
  ...policiesFormulas,
  clipped_pg: clippedPg,
  corrected_ppo: correctedPpo,
};
