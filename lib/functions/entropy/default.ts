// The entropy loss `default`, in which all rows count.
import { ENTROPY_LOSS_FN, entropyLossClass } from './entropy-loss-fn.js';

/** The entropy loss `default`: the entropy of the unmasked tokens of all rows, including experts' rows. */
export class DefaultEntropyLossFn extends entropyLossClass({
  name: 'default',
  summary: 'the entropy of all unmasked tokens',
  source: ['Trinity-RFT'],
  reads: ['entropy', 'action_mask'],
  rows: 'all',
  numerics: { range: 'any finite entropies', outside: 'NaN and Infinity pass through' },
}) {
  static {
    ENTROPY_LOSS_FN.register('default', DefaultEntropyLossFn);
  }
}
