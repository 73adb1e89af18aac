/** TRL's losses as the library has them, by registry name. */
import { type Formula, option } from './batch.js';
import { furtherFormulasOfTokens } from './beyond/trl-further.js';
import { grpoFormulasOfRows } from './beyond/trl-grpo.js';

/** Omits the mean entropy unless the loss has an entropy bonus. TRL reports it whenever it computes entropies. */
const asReported =
  (formula: Formula): Formula =>
  (x, args) => {
    const { loss, metrics } = formula(x, args);
    const { entropy: _, ...others } = metrics;
    const hasBonus = option(args, 'entropy_coef', 0) !== 0 || option(args, 'use_adaptive_entropy', false);
    return { loss, metrics: hasBonus ? metrics : others };
  };

export const trlFormulas: Record<string, Formula> = Object.fromEntries(
  Object.entries({ ...grpoFormulasOfRows, ...furtherFormulasOfTokens }).map(([name, formula]) => [
    `trl/${name}`,
    asReported(formula),
  ]),
);
