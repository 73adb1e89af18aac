// verl's REINFORCE++, which skips masked tokens.
import { ADVANTAGE_FN, advantageClass } from '../advantage-fn.js';
import { GAMMA } from '../options.js';
import { FINITE_REWARDS, WHITENED } from './rewards.js';

/** REINFORCE++ as in verl: the discounted rewards to go of the unmasked tokens, whitened. */
export class VerlREINFORCEPlusPlusAdvantageFn extends advantageClass({
  name: 'verl/reinforce_plus_plus',
  summary: 'discounted reward to go, whitened; skips masked tokens',
  details: [
    'A masked token neither adds its reward nor discounts the later ones. Its advantage and its return are 0.',
    'Returns are the rewards to go.',
    WHITENED,
  ],
  source: ['arXiv 2501.03262', 'verl'],
  reads: ['token_level_rewards', 'action_mask'],
  perRow: false,
  returns: true,
  whitens: true,
  options: { gamma: GAMMA },
  metrics: {},
  numerics: FINITE_REWARDS,
}) {
  static {
    ADVANTAGE_FN.register('verl/reinforce_plus_plus', VerlREINFORCEPlusPlusAdvantageFn);
  }
}

/** The options of {@link VerlREINFORCEPlusPlusAdvantageFn}. */
export type VerlREINFORCEPlusPlusAdvantageOptions = NonNullable<
  ConstructorParameters<typeof VerlREINFORCEPlusPlusAdvantageFn>[0]
>;
