// The KL estimator `corrected_k3`: k3, corrected because an older policy sampled the rows.
import { KL_FN, klClass } from './kl-fn.js';

/**
 * The KL estimator `corrected_k3`. An older policy sampled the rows, so k3 is multiplied by the ratio of the current
 * policy's probability to the older policy's. The ratio is limited to 2.
 */
export class CorrectedK3Fn extends klClass({
  name: 'corrected_k3',
  summary: 'k3 times clip(r, 0, 2), with r the ratio to the old policy',
  details: ['The gradient flows through both factors.', 'Without old_logprob in the batch it is k3.'],
  source: ['Trinity-RFT'],
  reads: ['ref_logprob', 'action_mask', 'old_logprob'],
  estimator: 'corrected_k3',
  estimatorWithoutOld: 'k3',
  numerics: {
    range: "as k3's; the ratio to old_logprob is clipped to [0, 2]",
    outside: "as k3's: Infinity, or NaN where the ratio is 0",
    overflows: 'always',
  },
}) {
  static {
    KL_FN.register('corrected_k3', CorrectedK3Fn);
  }
}
