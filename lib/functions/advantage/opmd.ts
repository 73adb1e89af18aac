// The class of OPMD's advantages.
import { OptionReader, type TrinityArgs } from '../../core/options.js';
import { AdvantageFn, type AdvantageOptions } from './advantage-fn.js';

/** What rewards are compared with: their mean, or the soft maximum tau·ln(mean e^(R/tau)). */
export type OPMDBaseline = 'mean' | 'logavgexp';

/** Options of {@link OPMDGroupAdvantage}. */
export interface OPMDAdvantageOptions extends AdvantageOptions {
  /** 'mean' by default. */
  opmdBaseline?: OPMDBaseline | null | undefined;
  /** The temperature of logavgexp, in units of reward; 1 by default. */
  tau?: number | null | undefined;
}

/**
 * OPMD: the reward less the group's baseline; a group of one has none.
 *
 * Reads rewards [B], group_ids [B], action_mask. Metrics: group_advantages/group_baseline/…,
 * group_advantages/reward_mean/… (mean, max, min over groups).
 *
 * Source: arXiv 2505.17826; Trinity-RFT's OPMDGroupAdvantage.
 */
export class OPMDGroupAdvantage extends AdvantageFn {
  /** @throws LossError `ERR_INVALID_OPTION` */
  constructor(options: OPMDAdvantageOptions = {}) {
    const reader = new OptionReader('OPMDGroupAdvantage', options);
    const native = {
      opmd_baseline: reader.choice<OPMDBaseline>('opmdBaseline', 'mean', ['mean', 'logavgexp']),
      tau: reader.number('tau', 1, { holds: (x) => x > 0, says: 'above 0' }),
    };
    reader.end();
    super(reader.backend, {
      advantage: { name: 'opmd', options: native },
      inputs: ['rewards', 'group_ids'],
      perRow: true,
    });
  }

  /** Trinity-RFT's default arguments (snake_case). */
  static override defaultArgs(): TrinityArgs {
    return { opmd_baseline: 'mean', tau: 1.0 };
  }
}
