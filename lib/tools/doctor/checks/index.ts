// The registry of all checks. Their order is the order in which they are shown.
import type { Check } from '../check.js';
import { ENTROPY_CHECKS } from './entropy.js';
import { GROUP_CHECKS } from './groups.js';
import { KL_CHECKS } from './kl.js';
import { RATIO_CHECKS } from './ratio.js';
import { ROLLOUT_CHECKS } from './rollout.js';
import { ROW_CHECKS } from './rows.js';
import { SHIFT_CHECKS } from './shift.js';
import { VALUE_CHECKS } from './values.js';

/** All checks of the doctor. */
export const CHECKS: readonly Check[] = [
  ...VALUE_CHECKS,
  ...ROW_CHECKS,
  ...SHIFT_CHECKS,
  ...ROLLOUT_CHECKS,
  ...RATIO_CHECKS,
  ...KL_CHECKS,
  ...GROUP_CHECKS,
  ...ENTROPY_CHECKS,
];
