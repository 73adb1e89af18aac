// The rollout corrections of verl 0.7.0 and 0.6.0.
import {
  ROLLOUT_CORRECTION_V070,
  ROLLOUT_WEIGHTS_V060,
  rolloutCorrectionV070,
  rolloutWeightsV060,
} from '../../policy-loss/verl/older-rollout-correction.js';
import { CORRECTION_FN, correctionClass } from '../correction-fn.js';

const READS = ['old_logprob', 'rollout_logprob', 'action_mask'] as const;
const NUMERICS = {
  range: 'old_logprob − rollout_logprob from −20 to 20',
  outside: 'the ratios clip the log-ratio to this range',
} as const;
const FRACTIONS = { rows: 'fraction of rows', tokens: 'fraction of tokens' } as const;

/** The rollout correction of verl 0.7.0. */
export class VerlRolloutCorrectionV070Fn extends correctionClass(
  {
    name: 'verl/rollout_correction_v070',
    summary: 'weights and rejection by the ratio of tokens, rows or their geometric means, as in verl 0.7.0',
    details: ['A row with a token whose ratio is below rollout_token_veto_threshold is rejected as a whole.'],
    source: ['verl 0.7.0'],
    reads: READS,
    options: ROLLOUT_CORRECTION_V070,
    metrics: {
      'rollout_corr/rollout_is_veto_fraction': { unit: FRACTIONS.rows },
      'rollout_corr/rollout_is_catastrophic_token_fraction': { unit: FRACTIONS.tokens },
      'rollout_corr/rollout_rs_masked_fraction': { unit: FRACTIONS.tokens, when: 'with rollout_rs' },
      'rollout_corr/rollout_rs_seq_masked_fraction': { unit: FRACTIONS.rows, when: 'with rollout_rs' },
      'rollout_corr/rollout_is_batch_norm_factor': {
        unit: 'ratio',
        when: 'with rollout_is_batch_normalize',
      },
    },
    numerics: NUMERICS,
  },
  (symbols, options) => rolloutCorrectionV070(symbols, options, symbols.old.sub(symbols.rollout)),
) {
  static {
    CORRECTION_FN.register('verl/rollout_correction_v070', VerlRolloutCorrectionV070Fn);
  }
}

/** The importance weights of verl 0.6.0. */
export class VerlRolloutImportanceWeightsV060Fn extends correctionClass(
  {
    name: 'verl/rollout_importance_weights_v060',
    summary: 'weights by the ratio of tokens, rows or their geometric means, as in verl 0.6.0',
    details: [
      'With the mode mask, weights outside the thresholds are 0. All tokens are kept.',
      'The weights of a row with a token whose ratio is below rollout_is_veto_threshold are 0.',
    ],
    source: ['verl 0.6.0'],
    reads: READS,
    options: ROLLOUT_WEIGHTS_V060,
    metrics: {
      'mismatch/rollout_is_veto_fraction': { unit: FRACTIONS.rows },
      'mismatch/rollout_is_catastrophic_token_fraction': { unit: FRACTIONS.tokens },
      'mismatch/rollout_is_masked_fraction': { unit: FRACTIONS.tokens, when: 'with the mode mask' },
      'mismatch/rollout_is_seq_masked_fraction': { unit: FRACTIONS.rows, when: 'with the mode mask' },
    },
    numerics: NUMERICS,
  },
  (symbols, options) => rolloutWeightsV060(symbols, options, symbols.old.sub(symbols.rollout)),
) {
  static {
    CORRECTION_FN.register('verl/rollout_importance_weights_v060', VerlRolloutImportanceWeightsV060Fn);
  }
}
