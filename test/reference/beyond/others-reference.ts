/** The policy losses that exist in neither verl nor TRL, in plain float64, by name. */
import type { Formula } from '../batch.js';
import { evaluators } from './evaluate.js';
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
export const othersReference = evaluators(othersFormulas);
