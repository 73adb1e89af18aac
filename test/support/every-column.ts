/** A policy loss that requires every column. It computes the same as SFT, which reads only logprob. */
import { COLUMNS } from '../../lib/batch/columns.js';
import { SFTLossFn } from '../../lib/index.js';
import { policyLoss } from '../../lib/losses/policy-loss.js';

export class EveryColumnLossFn extends policyLoss({
  ...SFTLossFn.declaration,
  reads: ['action_mask', ...COLUMNS.slice(1)],
  kernel: () => ({}),
}) {}
