/** A policy loss that requires every column but token_weights, which any loss can do without. It computes the same as SFT, which reads only logprob. */
import { COLUMNS as ALL } from '../../lib/batch/columns.js';
import { SFTLossFn } from '../../lib/index.js';
import { policyLoss } from '../../lib/losses/policy-loss.js';

/** The columns that the loss requires. */
export const COLUMNS = ALL.filter((name) => name !== 'token_weights');

export class EveryColumnLossFn extends policyLoss({
  ...SFTLossFn.declaration,
  reads: ['action_mask', ...COLUMNS.slice(1)],
  kernel: () => ({}),
}) {}
