// verl's optimal token baseline for rows with masked tokens, such as the results of tools, between unmasked ones.
import { ADVANTAGE_FN, advantageClass } from '../advantage-fn.js';
import { OF_TOKENS, TOKEN_BASELINE } from './token-baseline.js';

/** The optimal token baseline for tool-integrated reasoning: the n-th unmasked tokens of a group's rows are compared. */
export class VerlTIROptimalTokenBaselineAdvantageFn extends advantageClass({
  name: 'verl/tir_optimal_token_baseline',
  ...OF_TOKENS,
  summary: 'reward to go − mean of the group at the n-th unmasked token, weighted by gradient energy',
  details: [...TOKEN_BASELINE, 'Rows without unmasked tokens do not count in their groups.'],
}) {
  static {
    ADVANTAGE_FN.register('verl/tir_optimal_token_baseline', VerlTIROptimalTokenBaselineAdvantageFn);
  }
}

/** The options of {@link VerlTIROptimalTokenBaselineAdvantageFn}. */
export type VerlTIROptimalTokenBaselineAdvantageOptions = NonNullable<
  ConstructorParameters<typeof VerlTIROptimalTokenBaselineAdvantageFn>[0]
>;
