/** TRL's losses as the library has them, by registry name. */
import type { Formula } from './batch.js';
import { furtherFormulas } from './frameworks/trl-further.js';
import { grpoFormulas } from './frameworks/trl-grpo.js';

export const trlFormulas: Record<string, Formula> = Object.fromEntries(
  Object.entries({ ...grpoFormulas, ...furtherFormulas }).map(([name, formula]) => [`trl/${name}`, formula]),
);
