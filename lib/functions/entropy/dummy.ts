// The entropy loss `none`, which computes nothing.
import { ENTROPY_LOSS_FN, entropyLossClass } from './entropy-loss-fn.js';

/** The entropy loss `none`. It computes nothing: its loss and its gradient are 0. */
export class DummyEntropyLossFn extends entropyLossClass({
  name: 'none',
  summary: 'no entropy: loss and gradient are 0',
  source: ['Trinity-RFT'],
  reads: ['entropy', 'action_mask'],
  rows: 'none',
  numerics: { range: 'anything', outside: 'the values do not matter' },
}) {
  static {
    ENTROPY_LOSS_FN.register('none', DummyEntropyLossFn);
  }
}
