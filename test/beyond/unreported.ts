/** The metrics that a framework does not report for a loss that it shares with another one, by framework and loss. */
export const UNREPORTED: Readonly<Record<string, readonly string[]>> = {
  'RLinf decoupled_ppo': [
    'importance_weight',
    'clip_ratio',
    'dual_clip_ratio',
    'behave_imp_weight',
    'behave_approx_kl',
  ],
  'AReaL ref_kl': ['ref_kl', 'masked_mismatch_kl', 'unmasked_mismatch_kl', 'is_masked'],
};
