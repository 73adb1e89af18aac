// The KL function `none`, which estimates nothing.
import { KL_FN, klClass } from './kl-fn.js';

/** The KL function `none`. It estimates nothing: its values, its loss and its penalty are 0. */
export class DummyKLFn extends klClass({
  name: 'none',
  summary: 'no estimate',
  details: ['The values, the loss and its gradient are 0, and rewards are the scores.'],
  source: ['Trinity-RFT'],
  reads: ['action_mask'],
  numerics: {
    range: 'anything',
    outside: 'the values do not matter',
  },
}) {
  static {
    KL_FN.register('none', DummyKLFn);
  }
}
