// The entropy losses and their registry.
import { Registry } from '../../core/registry.js';
import { DefaultEntropyLossFn } from './default.js';
import { DummyEntropyLossFn } from './dummy.js';
import type { EntropyLossFn } from './entropy-loss-fn.js';
import { MixEntropyLossFn } from './mix.js';

/** The entropy losses by Trinity-RFT's names. */
export const ENTROPY_LOSS_FN = new Registry<EntropyLossFn>('entropy loss', {
  default: DefaultEntropyLossFn,
  mix: MixEntropyLossFn,
  none: DummyEntropyLossFn,
});
