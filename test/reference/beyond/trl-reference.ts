/** TRL's policy losses in plain float64, by TRL's names. */
import type { Formula } from '../batch.js';
import { evaluators } from './evaluate.js';
import { furtherFormulas } from './trl-further.js';
import { grpoFormulas } from './trl-grpo.js';

export const trlFormulas: Record<string, Formula> = { ...grpoFormulas, ...furtherFormulas };
export const trlReference = evaluators(trlFormulas);
