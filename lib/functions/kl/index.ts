// The KL functions and their registry.
import { Registry } from '../../core/registry.js';
import { AbsFn } from './abs.js';
import { CorrectedK3Fn } from './corrected-k3.js';
import { DummyKLFn } from './dummy.js';
import { K1Fn } from './k1.js';
import { K2Fn } from './k2.js';
import { K3Fn } from './k3.js';
import type { KLFn } from './kl-fn.js';
import { LowVarKLFn } from './low-var-kl.js';

/** The KL functions by Trinity-RFT's names. */
export const KL_FN = new Registry<KLFn>('KL function', {
  none: DummyKLFn,
  k1: K1Fn,
  k2: K2Fn,
  k3: K3Fn,
  low_var_kl: LowVarKLFn,
  abs: AbsFn,
  corrected_k3: CorrectedK3Fn,
});
