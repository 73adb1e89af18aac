/** The policy losses that neither verl nor TRL has, in float64, by name. */
import type { Formula } from '../batch.js';
import { clippedFormulas } from './papers-clipped.js';
import { clippedPg } from './papers-clipped-pg.js';
import { correctedPpo } from './papers-corrected.js';
import { policiesFormulas } from './papers-policies.js';

export const papersFormulas: Record<string, Formula> = {
  ...clippedFormulas,
  ...policiesFormulas,
  clipped_pg: clippedPg,
  corrected_ppo: correctedPpo,
};
