// The entropy loss `mix`, in which only the rows that the policy itself sampled count.
import { ENTROPY_LOSS_FN, entropyLossClass } from './entropy-loss-fn.js';

/** The entropy loss `mix`: the entropy of the rows that the policy itself sampled, without experts' rows. */
export class MixEntropyLossFn extends entropyLossClass({
  name: 'mix',
  summary: "the entropy of the policy's own rows, without experts' rows",
  source: ['Trinity-RFT'],
  reads: ['entropy', 'action_mask', 'expert_mask'],
  rows: 'usual',
  numerics: { range: 'any finite entropies', outside: 'NaN and Infinity pass through' },
}) {
  static {
    ENTROPY_LOSS_FN.register('mix', MixEntropyLossFn);
  }
}
