/** A policy loss that requires every column. It computes the same as SFT, which reads only logprob. */
import { COLUMNS } from '../../lib/core/native-batch.js';
import { policyLossClass } from '../../lib/functions/policy-loss/policy-loss-fn.js';
import { SFTLossFn } from '../../lib/index.js';

export class EveryColumnLossFn extends policyLossClass({
  ...SFTLossFn.declaration,
  reads: ['action_mask', ...COLUMNS.slice(1)],
}) {}
