/** TRL's policy losses in float64, by name. */
import type { Formula } from '../batch.js';
import { type Evaluate, evaluators } from '../index.js';
import { furtherFormulas } from './trl-further.js';
import { grpoFormulas } from './trl-grpo.js';

export const trlFormulas: Record<string, Formula> = { ...grpoFormulas, ...furtherFormulas };
export const trlReference: Record<string, Evaluate> = evaluators(trlFormulas, 'logprob');
