// PPO's advantages: generalised advantage estimation (GAE).
import { ADVANTAGE_FN, advantageClass } from './advantage-fn.js';
import { GAMMA, LAM } from './options.js';

/**
 * PPO's advantage of a token: the generalised advantage estimate, from rewards and a critic's values, whitened over the
 * batch.
 */
export class PPOAdvantageFn extends advantageClass({
  name: 'ppo',
  summary: 'generalised advantage estimate, whitened',
  details: [
    'a_t = δ_t + γ·λ·a_{t+1} with δ_t = R_t + γ·V_{t+1} − V_t, whitened over the unmasked tokens of the batch.',
    'As in the source, masked tokens take part: their rewards and values count for the tokens before them, and they get advantages too.',
    'Returns are a + V.',
  ],
  source: ['arXiv 1506.02438', 'Trinity-RFT'],
  reads: ['token_level_rewards', 'values', 'action_mask'],
  perRow: false,
  returns: true,
  readsMasked: true,
  whitens: true,
  options: {
    gamma: GAMMA,
    lam: LAM,
  },
  metrics: {},
  numerics: {
    range: 'finite rewards and values',
    outside: 'not finite: ERR_INVALID_INPUT; results beyond 3.4e38 are Infinity',
  },
}) {
  static {
    ADVANTAGE_FN.register('ppo', PPOAdvantageFn);
  }
}

/** The options of {@link PPOAdvantageFn}. */
export type PPOAdvantageOptions = NonNullable<ConstructorParameters<typeof PPOAdvantageFn>[0]>;
