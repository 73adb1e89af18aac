// verl's optimal token baseline, which compares the tokens of a group column by column.
import { ADVANTAGE_FN, advantageClass } from '../advantage-fn.js';
import { OF_TOKENS, TOKEN_BASELINE } from './token-baseline.js';

/** The optimal token baseline: a token's reward to go minus a weighted mean of the group's rewards to go at its column. */
export class VerlOptimalTokenBaselineAdvantageFn extends advantageClass({
  name: 'verl/optimal_token_baseline',
  ...OF_TOKENS,
  summary: 'reward to go − mean of the group at the same column, weighted by gradient energy',
  details: [...TOKEN_BASELINE, 'Columns are compared with numbers of tokens, so masks should be prefixes.'],
}) {
  static {
    ADVANTAGE_FN.register('verl/optimal_token_baseline', VerlOptimalTokenBaselineAdvantageFn);
  }
}

/** The options of {@link VerlOptimalTokenBaselineAdvantageFn}. */
export type VerlOptimalTokenBaselineAdvantageOptions = NonNullable<
  ConstructorParameters<typeof VerlOptimalTokenBaselineAdvantageFn>[0]
>;
