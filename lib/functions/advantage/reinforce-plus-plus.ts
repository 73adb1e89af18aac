// REINFORCE++: a token's advantage is the sum of the rewards from this token on, whitened over the batch.
import { ADVANTAGE_FN, advantageClass } from './advantage-fn.js';
import { GAMMA } from './options.js';

/**
 * REINFORCE++. A token's reward to go is the discounted sum of the rewards from this token to the end of the row. The
 * advantages are the rewards to go, whitened to mean 0 and variance 1 over the batch.
 */
export class REINFORCEPLUSPLUSAdvantageFn extends advantageClass({
  name: 'reinforceplusplus',
  summary: 'discounted reward to go, whitened',
  details: [
    'The advantages are whitened over the unmasked tokens of the batch.',
    'As in the source, rewards of masked tokens count for the tokens before them.',
    'Returns are the rewards to go.',
  ],
  source: ['arXiv 2501.03262', 'Trinity-RFT'],
  reads: ['token_level_rewards', 'action_mask'],
  perRow: false,
  returns: true,
  readsMasked: true,
  whitens: true,
  options: {
    gamma: GAMMA,
  },
  metrics: {},
  numerics: {
    range: 'finite rewards',
    outside: 'not finite: ERR_INVALID_INPUT; results beyond 3.4e38 are Infinity',
  },
}) {
  static {
    ADVANTAGE_FN.register('reinforceplusplus', REINFORCEPLUSPLUSAdvantageFn);
  }
}

/** Options of {@link REINFORCEPLUSPLUSAdvantageFn}. */
export type REINFORCEPLUSPLUSAdvantageOptions = NonNullable<
  ConstructorParameters<typeof REINFORCEPLUSPLUSAdvantageFn>[0]
>;
