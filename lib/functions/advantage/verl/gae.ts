// verl's generalised advantage estimation (GAE), which skips masked tokens.
import { ADVANTAGE_FN, advantageClass } from '../advantage-fn.js';
import { GAMMA, LAM } from '../options.js';
import { WHITENED } from './rewards.js';

/** GAE as in verl: masked tokens neither add to the estimate of the tokens before them nor discount it. */
export class VerlGAEAdvantageFn extends advantageClass({
  name: 'verl/gae',
  summary: 'generalised advantage estimate, whitened; skips masked tokens',
  details: [
    'a_t = δ_t + γ·λ·a_{t+1} with δ_t = R_t + γ·V_{t+1} − V_t, where t + 1 is the next unmasked token.',
    'A masked token has the a of the next unmasked token. Returns are a + V, at masked tokens too.',
    WHITENED,
  ],
  source: ['arXiv 1506.02438', 'verl'],
  reads: ['token_level_rewards', 'values', 'action_mask'],
  perRow: false,
  returns: true,
  readsMasked: true,
  whitens: true,
  options: { gamma: GAMMA, lam: LAM },
  metrics: {},
  numerics: {
    range: 'finite rewards and values',
    outside: 'not finite: ERR_INVALID_INPUT; results beyond 3.4e38 are Infinity',
  },
}) {
  static {
    ADVANTAGE_FN.register('verl/gae', VerlGAEAdvantageFn);
  }
}

/** The options of {@link VerlGAEAdvantageFn}. */
export type VerlGAEAdvantageOptions = NonNullable<ConstructorParameters<typeof VerlGAEAdvantageFn>[0]>;
